"""What a server of machines has opened and ended, on disk, so that the next one can end what a kill left.

Each life of a server writes one file, NUMBER.jsonl, of JournalLines: who it is, each lease *before* its machine is made,
each end when nothing of the machine is left, and that nothing is left at all. A file without this last line is that of
a life that was killed: its processes are ended, its leases are written down as ended, exactly once. A line that was cut
by the kill opened nothing: machines are made after their line is whole.

"Killed" means the process: nothing is synced to the disk, since after a loss of power no machine is left either.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from twinmill.records import wire
from twinmill.records.machines import JournalLine, LeaseEnd, LeaseEnded, LeaseOpened, LifeBegan, LifeEnded

from .. import leftovers
from ..base import MachineStartError

KEPT_S = 7 * 86400.0
"""how long files of ended lives are kept"""


class Journal:
    """with Journal(folder) as journal: ...  Raises MachineStartError where another server has the folder, or where what
    an earlier one left does not end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended_before: list[str] = []
        """leases of earlier lives that were found open and ended"""
        self._open: set[str] = set()
        self._lock = self._file = -1

    def __enter__(self) -> "Journal":
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise MachineStartError(
                f"{self.folder} is in use by another server of machines; stop it, or give this one another --folder"
            ) from None
        lives = sorted(int(path.stem) for path in self.folder.glob("*.jsonl"))
        for life in lives:
            self.ended_before += reconcile(self.folder / f"{life}.jsonl")
        self._forget_old(lives)
        self._file = _open(self.folder / f"{max(lives, default=0) + 1}.jsonl")
        self.write(LifeBegan(pid=os.getpid()))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """The last line only when all was ended in order, and is written down."""
        if kind is None and not self._open:
            self.write(LifeEnded())
        os.close(self._file)
        os.close(self._lock)

    def write(self, what: LifeBegan | LeaseOpened | LeaseEnded | LifeEnded) -> None:
        """Raises OSError when the disk is full."""
        _append(self._file, what)
        if isinstance(what, LeaseOpened):
            self._open.add(what.lease)
        if isinstance(what, LeaseEnded):
            self._open.discard(what.lease)

    def _forget_old(self, lives: list[int]) -> None:
        """The newest stays, so that numbers go on."""
        for life in lives[:-1]:
            path = self.folder / f"{life}.jsonl"
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()


def read(path: Path) -> Iterator[JournalLine]:
    """The whole lines of one life."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        with contextlib.suppress(wire.WireError):  # cut by a kill, and gone on in the next life
            yield wire.from_json(line, JournalLine)


def reconcile(path: Path) -> list[str]:
    """End what the life that wrote `path` has left, and write that down there. Returns the leases it found open."""
    lines = [line.what for line in read(path)]
    if any(isinstance(line, LifeEnded) for line in lines):
        return []
    for pid in {line.pid for line in lines if isinstance(line, LifeBegan)}:
        end_processes(pid)
    closed = {line.lease for line in lines if isinstance(line, LeaseEnded)}
    left = [line.lease for line in lines if isinstance(line, LeaseOpened) and line.lease not in closed]
    file = _open(path)
    try:
        os.write(file, b"\n")  # ends a line that was cut
        for lease in left:
            _append(file, LeaseEnded(lease=lease, reason=LeaseEnd.KILLED))
        _append(file, LifeEnded())
    finally:
        os.close(file)
    return left


def end_processes(owner: int) -> None:
    """As leftovers.end, unless `owner` lives: then the number is another's by now, and what carries it is not ours to kill."""
    if owner == os.getpid() or not Path(f"/proc/{owner}").exists():
        leftovers.end(owner)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _append(file: int, what: LifeBegan | LeaseOpened | LeaseEnded | LifeEnded) -> None:
    """Raises OSError when the disk is full, also where a part of the line still fitted."""
    line = wire.to_json(JournalLine(at=round(time.time(), 3), what=what)) + b"\n"
    if os.write(file, line) != len(line):
        os.write(file, b"\n")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the journal")
