"""One meaning of paths and globs."""

import re

import pytest

from twinmill.env.machine.paths import check_path, glob_regex, matches


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\0b"])
def test_a_path_that_leaves_the_workspace_is_refused(path):
    with pytest.raises(ValueError, match="workspace"):
        check_path(path)


@pytest.mark.parametrize("path", ["a", "a/b.py", "..a/b..", "-x", "a b", "ü.py"])
def test_plain_paths_pass(path):
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("**/*.py", ["a.py", "d/a.py", "d/e/a.py"], ["a.pyc", "a"]),
        ("*.py", ["a.py"], ["d/a.py"]),
        ("test_*.py", ["test_a.py"], ["a_test_.py", "d/test_a.py"]),
        ("**", ["a", "d/e"], []),
        ("src/**", ["src/a", "src/d/e"], ["a", "src"]),
        ("a?.txt", ["ab.txt"], ["a.txt", "a/.txt"]),
        ("[ab].txt", ["a.txt"], ["c.txt", "[ab].txt"]),
        ("[!ab].txt", ["c.txt"], ["a.txt"]),
        ("we[[]i[*]rd.py", ["we[i*rd.py"], ["weird.py"]),
        ("a.b+c", ["a.b+c"], ["aXb+c", "a.bbc"]),
    ],
)
def test_globs(pattern, yes, no):
    assert [p for p in yes if not matches(p, [pattern])] == []
    assert [p for p in no if matches(p, [pattern])] == []
    re.compile(glob_regex(pattern))


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../*"])
def test_a_glob_that_leaves_the_workspace_is_refused(pattern):
    with pytest.raises(ValueError, match="workspace"):
        glob_regex(pattern)
