"""A repository with history in every corner: after scrubbing, nothing of it can be found, and `leaks` finds each corner."""

import subprocess

import pytest

from twinmill.env.audit.history import NotScrubbed, leaks, scrub

SECRET = "def mended(): return 'the right code'"


def git(repo, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *arguments], cwd=repo, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path):
    """The mended code is in a later commit, a tag, a branch, the stash, the reflog and byte code; HEAD has the broken."""
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q")
    (root / "main.py").write_text("def broken(): return 0\n")
    (root / "sub").mkdir()
    (root / "sub" / "mod.py").write_text("x = 1\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "broken")
    (root / "main.py").write_text(SECRET + "\n")
    git(root, "commit", "-qam", "mend it")
    git(root, "tag", "v2")
    git(root, "branch", "later")
    git(root, "reset", "-q", "--hard", "HEAD~1")
    (root / "main.py").write_text(SECRET + "  # stashed\n")
    git(root, "stash")
    git(root, "remote", "add", "origin", "https://example.invalid/x.git")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"\0" * 16 + SECRET.encode())
    (root / "notes.txt").write_text("untracked\n")
    return root


def everything(root):
    """All that git and the folder hold, as text."""
    listed = git(root, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    objects = [git(root, "cat-file", "-p", name) for name in listed]
    return "\n".join([*objects, *(p.read_text(errors="replace") for p in root.rglob("*") if p.is_file())])


def test_nothing_of_the_history_is_left(repo):
    assert SECRET in everything(repo)
    commit = scrub(repo)
    assert leaks(repo) == []
    assert SECRET not in everything(repo)
    assert git(repo, "rev-parse", "HEAD") == commit and git(repo, "rev-list", "--all", "--count") == "1"
    assert git(repo, "ls-files").split() == ["main.py", "sub/mod.py"]
    assert (repo / "notes.txt").exists() and git(repo, "status", "--porcelain") == "?? notes.txt"
    assert scrub(repo) == commit  # the same tree gives the same commit, anywhere


def _alternate(root):
    (root / ".git/objects/info").mkdir(exist_ok=True)
    (root / ".git/objects/info/alternates").write_text(str(root.parent / "other") + "\n")


def _loose(root):
    subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=root, input=SECRET.encode(), check=True, capture_output=True
    )


def _worktree(root):
    git(root, "worktree", "add", "-q", "--detach", str(root.parent / "tree"))


CORNERS = {
    "tag": lambda root: git(root, "tag", "v1"),
    "branch": lambda root: git(root, "branch", "other"),
    "remote": lambda root: git(root, "remote", "add", "up", "/nowhere"),
    "commit": lambda root: git(root, "commit", "-q", "--allow-empty", "-m", "two"),
    "unreachable object": _loose,
    "alternates": _alternate,
    "worktree": _worktree,
    "nested repository": lambda root: git(root, "init", "-q", "vendor/lib"),
    "byte code": lambda root: (root / "old.pyc").write_bytes(b"x"),
    "fetch head": lambda root: (root / ".git" / "FETCH_HEAD").write_text("x"),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_each_corner_is_looked_into(repo, corner):
    scrub(repo)
    CORNERS[corner](repo)
    assert leaks(repo)
    if corner != "alternates":  # git itself cannot work with what is not there
        scrub(repo)
        assert leaks(repo) == []


def test_a_folder_that_is_no_repository_is_named(tmp_path):
    with pytest.raises(NotScrubbed, match="ls-files"):
        scrub(tmp_path)
    assert leaks(tmp_path) == [f"{tmp_path / '.git'} is no folder: history lies elsewhere"]
