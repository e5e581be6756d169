"""What a machine may use, and what really binds it on this host."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from .bwrap import INSIDE_UID
from .cgroups import Group

OPEN_FILES = 512


@dataclass(frozen=True)
class Limits:
    """Of one machine, all its processes together."""

    memory_bytes: int
    disk_bytes: int
    processes: int


@cache
def binds_processes() -> bool:
    """RLIMIT_NPROC counts per user namespace, thus per machine, from Linux 5.14 on; before, it counted all machines."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(c for c in minor if c.isdigit()) or 0)) >= (5, 14)


def guest_limits(limits: Limits, group: Group) -> dict[str, Any]:
    """What process 1 is told. It puts the rlimits on itself, so on all commands: they bind, nothing inside is root."""
    rlimits = {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": limits.disk_bytes + (1 << 20),  # above the disk: a full disk says that it is full
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    if binds_processes():
        rlimits["RLIMIT_NPROC"] = limits.processes
    return {
        "memory": limits.memory_bytes,
        "disk": limits.disk_bytes,
        "uid": INSIDE_UID,
        "watch": "memory" not in group.controllers,
        "rlimits": rlimits,
    }


def native_limits(limits: Limits, group: Group) -> tuple[int, int, int, int, int]:
    """The same for launcher/: disk, memory, processes (0 = not by rlimit), open files, whether to watch memory."""
    processes = limits.processes if binds_processes() else 0
    return limits.disk_bytes, limits.memory_bytes, processes, OPEN_FILES, int("memory" not in group.controllers)


def limits_in_force(limits: Limits, group: Group, *, way: str, notes: tuple[str, ...]) -> dict[str, str]:
    """In words, by resource. Without a memory control group, process 1 adds up what is resident every 20 ms: memory
    that no process maps (memfd) escapes it, and what is filled between two looks is an overshoot."""
    mib, held = limits.memory_bytes >> 20, group.controllers
    memory = "by control group" if "memory" in held else "checked every 20 ms by its process 1"
    processes = ["by rlimit"] * binds_processes() + ["by control group"] * ("pids" in held)
    disk = "workspace, /tmp and /dev/shm " + ("each" if way == "alone" else "together")
    native = way == "native"
    return {
        "made by": f"the native launcher, with {', '.join(notes)}" if native else f"bubblewrap, {way}",
        "memory": f"{mib} MiB for the machine {memory}; {mib} MiB of address space for each process",
        "processes": f"{limits.processes} {' and '.join(processes)}" if processes else "not bound: needs Linux 5.14",
        "disk": f"{limits.disk_bytes >> 20} MiB for {disk}, held in memory",
        "time": "a deadline for every command, kept inside and watched from outside",
        "network": "none: a network namespace of its own with a loopback",
        "system calls": "what machines have no use for is denied" if native else "not filtered",
    }
