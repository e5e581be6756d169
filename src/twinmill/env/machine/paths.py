"""Workspace-relative paths and the globs that select them: one meaning for machines, graders and tools."""

import re
from collections.abc import Iterable
from functools import lru_cache


def check_path(path: str) -> str:
    """The path itself. Raises ValueError for one that is not a plain path below the workspace."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"path must lie in the workspace: {path!r}")
    return path


@lru_cache(maxsize=1024)
def glob_regex(pattern: str) -> str:
    """A regular expression for re.fullmatch. `*` and `?` stay within a folder, `**/` is any folders or none, a final
    `**` is anything below, `[...]` a class. Raises ValueError for an absolute pattern or one with `..`."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValueError(f"pattern must lie in the workspace: {pattern!r}")
    out, i = [], 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out.append("(?:.*/)?")
            i += 3
        elif pattern.startswith("**", i):
            out.append(".*")
            i += 2
        elif pattern[i] == "[" and (end := pattern.find("]", i + 2)) > 0:
            inside = pattern[i + 1 : end].replace("\\", "\\\\")
            inside = "^" + inside[1:] if inside[0] in "!^" else inside
            out.append("[" + inside.replace("[", "\\[") + "]")
            i = end + 1
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(pattern[i], re.escape(pattern[i])))
            i += 1
    return "".join(out)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether any of the globs selects the path."""
    return any(re.fullmatch(glob_regex(pattern), path, re.DOTALL) for pattern in patterns)
