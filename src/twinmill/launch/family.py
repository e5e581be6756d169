"""A process with all that comes from it, and how to end them all.

Killing a process group misses children that made a group of their own (job control) or a session of their own
(sandboxes), so a family is read from /proc: whoever descends from the process, sits in its session, or carries its
mark, a variable that the supervisor set and children inherit. The mark finds those whose parent is gone already.
Without /proc the group is all there is.

Not covered: a grandchild with a session and an environment of its own whose parent is gone. Such processes must watch
their parent themselves (death.watch_parent, PR_SET_PDEATHSIG, bwrap --die-with-parent).
"""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

_PROC = Path("/proc")


def family(pid: int | None, mark: str = "") -> set[int]:
    """Living processes that descend from `pid`, sit in the session it leads, or have `mark` ("NAME=value") in their
    environment; `pid` included while it lives, never ourselves. None = the marked ones only, "" = no mark."""
    children: dict[int, list[int]] = {}
    queue = [] if pid is None else [pid]
    for one, state, parent, session in _processes():
        children.setdefault(parent, []).append(one)
        if state != "Z" and (session == pid or (mark and _has_mark(one, mark))):
            queue.append(one)
    seen = {os.getpid()}
    while queue:
        one = queue.pop()
        if one not in seen:
            seen.add(one)
            queue.extend(children.get(one, ()))
    return {one for one in seen if _alive(one)} - {os.getpid()}


def kill_family(pid: int | None, mark: str = "", deadline_s: float = 5.0) -> set[int]:
    """SIGKILL the whole family until none is left or `deadline_s` is over. Returns who is still there.

    `pid` must be a child that has not been reaped yet, a zombie at worst: then its number cannot mean someone else.
    """
    until = time.monotonic() + deadline_s
    while True:
        # Descendants first, as long as their parents tie them to us; then the group in one stroke.
        for one in family(pid, mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        left = family(pid, mark)
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.01)


_POSTURES = {
    "R": "computing",
    "S": "waiting",
    "D": "stuck in the kernel, on a disk or a mount",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "dead",
}


def posture(pid: int) -> str:
    """What the kernel says `pid` is doing, in a word or two."""
    row = _stat(pid)
    return "gone" if row is None else _POSTURES.get(row[1], f"state {row[1]}")


def catches(pid: int, number: int) -> bool:
    """Whether `pid` has a handler for the signal. False where /proc cannot say."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def _processes() -> list[tuple[int, str, int, int]]:
    """(pid, state, parent, session) of everyone that /proc shows."""
    rows = []
    for folder in _PROC.glob("[0-9]*"):
        row = _stat(int(folder.name))
        if row is not None:
            rows.append(row)
    return rows


def _stat(pid: int) -> tuple[int, str, int, int] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command stands in brackets and may itself hold blanks and brackets.
    state, parent, _group, session = text.rpartition(")")[2].split()[:4]
    return pid, state, int(parent), int(session)


def _has_mark(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False


def _alive(pid: int) -> bool:
    row = _stat(pid)
    return row is not None and row[1] != "Z"
