"""What machines left behind: nothing is what it should be. And its end, for those who start after a kill."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from .base import MachineStartError
from .cgroups import PREFIX, strays

END_S = 10.0
"""deadline for the end of what a dead process left"""


def leftovers(owner: int | None = None) -> list[str]:
    """What is left of machines: processes and control groups of the process `owner`, or, for None, of all owners that
    are dead. Empty is what it should be."""
    found = [f"process {pid} of {PREFIX}{of}" for pid, of in _marked() if _wanted(of, owner)]
    found += [f"control group {path}" for pid, path in strays() if _wanted(pid, owner)]
    return sorted(found)


def processes(owner: int) -> list[int]:
    """The processes that are left of the machines of `owner`, itself not among them."""
    return sorted({pid for pid, of in _marked() if of == owner and pid != owner})


def end(owner: int) -> None:
    """Kill what is left of the machines of the dead process `owner`, and remove their control groups. They end by themselves
    with it (nest.py); this makes sure of it, and waits. Raises MachineStartError when they do not."""
    deadline = time.monotonic() + END_S
    while (left := processes(owner)) or not _without_groups(owner):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            what = "; ".join(leftovers(owner)[:5])
            raise MachineStartError(f"what the dead process {owner} left does not end within {END_S:g} s: {what}")
        time.sleep(0.02)


def _without_groups(owner: int) -> bool:
    """Remove its control groups; False = one is still busy."""
    left = False
    for pid, folder in strays():
        if pid == owner:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left = True
    return not left


def _marked() -> Iterator[tuple[int, int]]:
    """(process, its owner) of every living process that carries a mark (nest.py) in its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            for word in words:
                pid = word.removeprefix(PREFIX)
                if word.startswith(PREFIX) and pid.isdigit() and alive:
                    yield int(folder.name), int(pid)


def _wanted(pid: int, owner: int | None) -> bool:
    return pid == owner if owner is not None else not Path(f"/proc/{pid}").exists()
