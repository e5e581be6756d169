"""Control groups for machines, where this process may make them: memory, pids and the freezer, v1 or v2.

Every machine has a group of its own, named twinmill-<pid>-<n>, made for it and removed with it (0.4 ms together: they
are not kept for the next one, whose counts would not begin at 0). What a process that was killed left behind is removed
by the next one to start. Where no group can be made, machines live under rlimits and process 1's own watch over memory
(see limits.py).
"""

import contextlib
import os
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PREFIX = "twinmill-"
CONTROLLERS = ("memory", "pids", "freezer")
_FILES = {
    ("cgroup", "memory"): ("memory.limit_in_bytes", "memory.oom_control"),
    ("cgroup", "pids"): ("pids.max", ""),
    ("cgroup", "freezer"): ("freezer.state", ""),
    ("cgroup2", "memory"): ("memory.max", "memory.events"),
    ("cgroup2", "pids"): ("pids.max", ""),
    ("cgroup2", "freezer"): ("cgroup.freeze", ""),
}
"""(file system type, controller) -> (file that takes the limit, file that counts kills for want of memory)"""
_FREEZE = {"cgroup": ("THAWED", "FROZEN"), "cgroup2": ("0", "1")}


@dataclass(frozen=True)
class Place:
    """A folder in which this process can make groups for `controllers`."""

    kind: str
    """cgroup | cgroup2"""
    folder: Path
    controllers: tuple[str, ...]


def _own_folders(mounts: str, own: str) -> list[tuple[str, Path, tuple[str, ...]]]:
    """(type, folder of our own group, controllers) from the texts of mountinfo and /proc/self/cgroup."""
    paths = dict(line.split(":", 2)[1:] for line in own.splitlines())  # "memory" or "" (v2) -> path
    found = []
    for line in mounts.splitlines():
        left, right = line.split(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split()[:3]
        if kind not in ("cgroup", "cgroup2"):
            continue
        wanted = tuple(c for c in CONTROLLERS if kind == "cgroup2" or c in options.split(","))
        key = "" if kind == "cgroup2" else next((k for k in paths if set(wanted) & set(k.split(","))), "")
        if wanted and key in paths:
            path = paths[key].removeprefix(root.rstrip("/")).lstrip("/")
            found.append((kind, Path(point) / path, wanted))
    return found


def _usable(kind: str, folder: Path, wanted: tuple[str, ...]) -> Place | None:
    """Try it: the only answer that counts."""
    trial = folder / f"{PREFIX}{os.getpid()}-trial"
    try:
        trial.mkdir()
    except OSError:
        return None
    try:
        got = tuple(c for c in wanted if os.access(trial / _FILES[kind, c][0], os.W_OK))
        movable = os.access(folder / "cgroup.procs", os.W_OK)
        return Place(kind, folder, got) if got and movable else None
    finally:
        trial.rmdir()


@cache
def places() -> tuple[Place, ...]:
    """Where groups can be made, each controller once; empty = nowhere. v2 comes first: what it freezes can be killed. In
    v2 a group with processes has no children with controllers, so that the parent of our own (a delegated slice) is
    tried as well."""
    try:
        own = _own_folders(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    except (OSError, ValueError):
        return ()
    found: list[Place] = []
    for kind, folder, wanted in sorted(own, key=lambda row: row[0], reverse=True):
        missing = tuple(c for c in wanted if all(c not in p.controllers for p in found))
        bases = (folder, folder.parent) if kind == "cgroup2" else (folder,)
        tried = [place for base in bases if missing and (place := _usable(kind, base, missing))]
        if tried:
            found.append(max(tried, key=lambda place: len(place.controllers)))
    sweep(found)
    return tuple(found)


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


@dataclass
class Group:
    """The groups of one machine, one folder per place."""

    folders: dict[Place, Path]

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(c for place in self.folders for c in place.controllers)

    def make(self, memory_bytes: int, processes: int) -> None:
        for place, folder in self.folders.items():
            folder.mkdir()
            for controller, value in (("memory", memory_bytes), ("pids", processes)):
                if controller in place.controllers:
                    _write(folder / _FILES[place.kind, controller][0], str(value))
            if place.kind == "cgroup2" and "memory" in place.controllers:
                with contextlib.suppress(OSError):
                    _write(folder / "memory.swap.max", "0")

    def entrances(self) -> list[int]:
        """Descriptors through which a process enters the groups by writing "0"; the caller closes them."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY) for folder in self.folders.values()]

    def attach(self, pid: int) -> None:
        for folder in self.folders.values():
            _write(folder / "cgroup.procs", str(pid))

    def freeze(self, frozen: bool) -> None:
        """Stop or continue every process of the machine; nobody inside notices but by the clock."""
        for place, folder in self.folders.items():
            if "freezer" in place.controllers:
                _write(folder / _FILES[place.kind, "freezer"][0], _FREEZE[place.kind][frozen])

    def killed_for_memory(self) -> bool:
        """Whether the kernel killed anything in it for want of memory."""
        for place, folder in self.folders.items():
            if "memory" in place.controllers:
                text = (folder / _FILES[place.kind, "memory"][1]).read_text()
                return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0)) > 0
        return False

    def remove(self) -> bool:
        """Whether nothing is left of it. A group whose last process has just ended is busy for a moment."""
        for folder in self.folders.values():
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


@dataclass
class Groups:
    """The groups of this process: taken by a machine, given back by close()."""

    made: int = 0
    held: list[Group] = field(default_factory=list)
    ended: list[Group] = field(default_factory=list)
    """given back, but busy when it was tried to remove them"""

    def take(self, memory_bytes: int, processes: int) -> Group:
        """A group with these limits; one without controllers where none can be made. Raises OSError."""
        self.ended = [group for group in self.ended if not group.remove()]
        group = Group({place: place.folder / f"{PREFIX}{os.getpid()}-{self.made}" for place in places()})
        self.made += 1
        self.held.append(group)
        group.make(memory_bytes, processes)
        return group

    def give(self, group: Group) -> None:
        self.held.remove(group)
        if not group.remove():
            self.ended.append(group)

    def remove(self, patience_s: float = 2.0) -> None:
        """All of them, when all their machines have ended."""
        left, deadline = [*self.held, *self.ended], time.monotonic() + patience_s
        while (left := [group for group in left if not group.remove()]) and time.monotonic() < deadline:
            time.sleep(0.005)
        self.held.clear()
        self.ended = left


def strays(among: tuple[Place, ...] | list[Place] | None = None) -> list[tuple[int, Path]]:
    """(owner's pid, folder) of every group that twinmill made and did not remove."""
    found = []
    for place in places() if among is None else among:
        for folder in place.folder.glob(f"{PREFIX}*-*"):
            found.append((int(folder.name.split("-")[1]), folder))
    return found


def sweep(among: list[Place]) -> None:
    """Remove empty groups whose owner is gone."""
    for owner, folder in strays(among):
        if not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
