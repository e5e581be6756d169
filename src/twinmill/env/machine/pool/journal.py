"""What a pool has made and not ended, on disk: written before a create, so that no kill leaves a machine that nobody knows.

One file for each life of a pool, named by its process: PID-STARTED.jsonl. A line is what a machine's create or end is, with
its number; a life that ended everything removes its file. At start-up the pool goes over the files of the dead:
whatever carries their label (processes, control groups) is ended, which the number of a process that has been given to
another since then never is: the time at which it started is in the name.
"""

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path

from twinmill.env.machine import leftovers
from twinmill.env.machine.base import MachineStartError


class Journal:
    def __init__(self, folder: Path) -> None:
        """Ends what dead pools left in this folder. Raises MachineStartError that says what does not end, or why no journal
        can be written."""
        self.ended_before = 0
        """machines of dead pools that were found open"""
        self.open: set[int] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _alone(folder):
                for path in sorted(folder.glob("*-*.jsonl")):
                    self.ended_before += _reconcile(path)
            self.path = folder / f"{os.getpid()}-{_started(os.getpid())}.jsonl"
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise MachineStartError(
                f"no journal of machines in {folder}: {error}; give the pool another folder"
            ) from error

    def create(self, number: int) -> None:
        """Before the machine is made. Raises OSError when the disk is full: then it must not be made."""
        self._write({"create": number})
        self.open.add(number)

    def end(self, number: int) -> None:
        """Nothing of it is left. After close() this is only remembered: a line more would say no more to the next life."""
        if self._file >= 0:
            self._write({"end": number})
        self.open.discard(number)

    def close(self) -> None:
        """A life that ended everything leaves no file; any other one leaves it to the next."""
        os.close(self._file)
        self._file = -1
        if not self.open:
            self.path.unlink(missing_ok=True)

    def _write(self, what: dict[str, int]) -> None:
        line = json.dumps(what).encode() + b"\n"
        if os.write(self._file, line) != len(line):
            os.write(self._file, b"\n")  # or the next line would be lost with this one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def open_in(path: Path) -> set[int]:
    """Machines that a journal knows of and that did not end. A line that a kill has cut opened nothing."""
    found = set[int]()
    for text in path.read_text(errors="replace").split("\n")[:-1]:
        with contextlib.suppress(ValueError, AttributeError):
            line = json.loads(text)
            found |= {line["create"]} if "create" in line else set()
            found -= {line.get("end")}
    return found


def _reconcile(path: Path) -> int:
    pid, _, started = path.stem.partition("-")
    if _started(int(pid)) == started:
        return 0  # it lives
    left = open_in(path)
    if not Path(f"/proc/{pid}").exists():  # else the number is another's by now: what carries it is not ours to kill
        leftovers.end(int(pid))
    path.unlink(missing_ok=True)
    return len(left)


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; "" = there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


@contextlib.contextmanager
def _alone(folder: Path):  # type: ignore[no-untyped-def]
    """One reconciler at a time."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
