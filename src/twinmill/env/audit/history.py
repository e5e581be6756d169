"""A repository's history, scrubbed, and proven to be scrubbed.

The mended code of a task is often in the history of its repository: in later commits, other branches and tags, the
reflog, the stash, packed objects that no ref names, alternates, worktrees, or fetched remotes; and in byte code and
editors' leftovers beside it. `scrub` builds the repository anew as one commit of what is checked out; `leaks` looks at
the result as an attacker would, with no trust in how it came about.

Works on a folder of the host, before a task's snapshot is made of it. Needs git.
"""

import os
import shutil
import subprocess
from pathlib import Path

GIT_S = 120.0
_LEFTOVERS = (
    "**/__pycache__", "**/*.pyc", "**/*.pyo", "**/.pytest_cache", "**/.mypy_cache", "**/.ruff_cache", "**/.tox", "**/.nox",
    "**/*.sw[op]", "**/*~", "**/*.orig", "**/*.rej", "**/.ipynb_checkpoints", "**/.hypothesis", "**/*.egg-info", "**/.eggs",
    "**/.hg", "**/.svn",
)  # fmt: skip
"""files in which code outlives its deletion"""
_ALLOWED = frozenset(("HEAD", "config", "description", "index", "objects", "refs", "info", "hooks", "branches"))
"""what a fresh .git may hold"""
_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "dev", "GIT_AUTHOR_EMAIL": "dev@localhost", "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "dev", "GIT_COMMITTER_EMAIL": "dev@localhost", "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_TERMINAL_PROMPT": "0", "PATH": os.defpath,
    "LC_ALL": "C",
}  # fmt: skip
"""the same commit id on every machine, and nothing of its owner's settings"""


class NotScrubbed(RuntimeError):
    """A repository still holds more than what is checked out. The message lists what."""


def scrub(repo: Path, *, message: str = "Import") -> str:
    """Make `repo` a repository of one commit of its tracked files, and remove leftovers. Returns the commit's id.

    Untracked files stay as they are (leftovers apart), and untracked. Raises NotScrubbed when the proof fails."""
    tracked = [path for path in _git(repo, "ls-files", "-z").split("\0") if path]
    for pattern in _LEFTOVERS:
        for path in [*repo.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    for each in sorted(repo.rglob(".git"), reverse=True):  # submodules and nested repositories have histories, too
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    _git(repo, "init", "--quiet", "--initial-branch=main", "--template=")
    kept = "\0".join(path for path in tracked if (repo / path).is_symlink() or (repo / path).is_file())
    _git(repo, "add", "--force", "--pathspec-from-file=-", "--pathspec-file-nul", stdin=kept)
    _git(repo, "commit", "--quiet", "--no-verify", "--allow-empty", "-m", message)
    for name in ("logs", "COMMIT_EDITMSG"):
        path = repo / ".git" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    _git(repo, "config", "core.logAllRefUpdates", "false")
    found = leaks(repo)
    if found:
        raise NotScrubbed(f"{repo}: " + "; ".join(found))
    return _git(repo, "rev-parse", "HEAD").strip()


def leaks(repo: Path) -> list[str]:
    """What a repository holds beyond one commit of what is checked out, one line each; [] = nothing."""
    git = repo / ".git"
    if not git.is_dir() or git.is_symlink():
        return [f"{git} is no folder: history lies elsewhere"]
    found = [f".git/{path.name} should not be there" for path in sorted(git.iterdir()) if path.name not in _ALLOWED]
    found += [f"nested repository {path.relative_to(repo)}" for path in repo.rglob(".git") if path != git]
    for name in ("objects/info/alternates", "objects/info/http-alternates", "info/grafts"):
        if (git / name).exists():
            found.append(f".git/{name} borrows objects from elsewhere")
    refs = _git(repo, "for-each-ref", "--format=%(refname)").split()
    if refs != ["refs/heads/main"]:
        found.append(f"refs beside main: {' '.join(refs[:5])}")
    if remotes := _git(repo, "remote").split():
        found.append(f"remotes: {' '.join(remotes)}")
    if _git(repo, "rev-list", "--count", "HEAD").strip() != "1":
        found.append("more than one commit")
    reachable = {line.split(" ")[0] for line in _git(repo, "rev-list", "--objects", "HEAD").splitlines()}
    stored = set(_git(repo, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())
    if extra := stored - reachable:
        found.append(f"{len(extra)} objects that the commit does not need, as {min(extra)[:12]}")
    for pattern in _LEFTOVERS:
        found += [f"leftover {path.relative_to(repo)}" for path in repo.glob(pattern)]
    return found


def _git(repo: Path, *arguments: str, stdin: str = "") -> str:
    """Raises NotScrubbed with git's own words."""
    command = ["git", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(
            command, cwd=repo, env=_ENVIRONMENT, input=stdin.encode(), capture_output=True, timeout=GIT_S, check=False
        )
    except FileNotFoundError:
        raise NotScrubbed("git is not installed; scrubbing a history needs it") from None
    except subprocess.TimeoutExpired:
        raise NotScrubbed(f"git {arguments[0]} in {repo} took longer than {GIT_S:g} s") from None
    if done.returncode != 0:
        raise NotScrubbed(f"git {arguments[0]} in {repo}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout.decode(errors="surrogateescape")
