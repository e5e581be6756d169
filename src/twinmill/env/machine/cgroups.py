"""Control groups for machines, where this process may make them: memory and pids, v1 or v2.

Groups are made once and used again by the next machine (making and removing one costs more than a machine's start).
They are named twinmill-<pid>-<n>; what a process that was killed left behind is removed by the next one to start.
Where no group can be made, machines live under rlimits and process 1's own watch over memory (see limits.py).
"""

import contextlib
import os
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PREFIX = "twinmill-"
_FILES = {
    ("cgroup", "memory"): ("memory.limit_in_bytes", "memory.oom_control"),
    ("cgroup", "pids"): ("pids.max", ""),
    ("cgroup2", "memory"): ("memory.max", "memory.events"),
    ("cgroup2", "pids"): ("pids.max", ""),
}
"""(file system type, controller) -> (file that takes the limit, file that counts kills for want of memory)"""


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
        wanted = ("memory", "pids") if kind == "cgroup2" else tuple({"memory", "pids"} & set(options.split(",")))
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
    """Where groups can be made, each controller once; empty = nowhere. In v2 a group with processes has no children
    with controllers, so that the parent of our own (a delegated slice) is tried as well."""
    try:
        own = _own_folders(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    except (OSError, ValueError):
        return ()
    found: list[Place] = []
    for kind, folder, wanted in own:
        missing = tuple(c for c in wanted if all(c not in p.controllers for p in found))
        for base in (folder, folder.parent) if kind == "cgroup2" else (folder,):
            if missing and (place := _usable(kind, base, missing)):
                found.append(place)
                break
    sweep(found)
    return tuple(found)


@dataclass
class Group:
    """The groups of one machine, one folder per place."""

    folders: dict[Place, Path]
    kills: int = 0
    """kills for want of memory that earlier users of the group had"""
    limits: tuple[int, int] = (0, 0)
    """what is set now"""

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(c for place in self.folders for c in place.controllers)

    def limit(self, memory_bytes: int, processes: int) -> None:
        self.kills = self._count()
        if self.limits == (memory_bytes, processes):
            return
        for place, folder in self.folders.items():
            for controller, value in (("memory", memory_bytes), ("pids", processes)):
                if controller in place.controllers:
                    (folder / _FILES[place.kind, controller][0]).write_text(str(value))
            with contextlib.suppress(OSError):
                (folder / "memory.swap.max").write_text("0")
        self.limits = (memory_bytes, processes)

    def attach(self, pid: int) -> None:
        for folder in self.folders.values():
            (folder / "cgroup.procs").write_text(str(pid))

    def _count(self) -> int:
        for place, folder in self.folders.items():
            if "memory" in place.controllers:
                text = (folder / _FILES[place.kind, "memory"][1]).read_text()
                return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))
        return 0

    def killed_for_memory(self) -> bool:
        """Whether the kernel killed anything in it for want of memory since limit()."""
        return self._count() > self.kills

    def remove(self) -> None:
        """A group whose last process has just ended is busy for a moment."""
        for folder in self.folders.values():
            for _ in range(100):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
                else:
                    break


@dataclass
class Groups:
    """The groups of this process: taken by a machine, given back by close()."""

    free: list[Group] = field(default_factory=list)
    made: list[Group] = field(default_factory=list)

    def take(self, memory_bytes: int, processes: int) -> Group:
        """A group with these limits; one without controllers where none can be made."""
        group = self.free.pop() if self.free else self._make()
        group.limit(memory_bytes, processes)
        return group

    def give(self, group: Group) -> None:
        self.free.append(group)

    def _make(self) -> Group:
        folders = {place: place.folder / f"{PREFIX}{os.getpid()}-{len(self.made)}" for place in places()}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        self.made.append(Group(folders))
        return self.made[-1]

    def remove(self) -> None:
        """When all their machines have ended."""
        for group in self.made:
            group.remove()
        self.made.clear()
        self.free.clear()


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
