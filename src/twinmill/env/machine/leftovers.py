"""What machines left behind, for tests and supervisors: nothing is what it should be."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .cgroups import PREFIX, strays


def leftovers(owner: int | None = None) -> list[str]:
    """What is left of machines: processes and control groups of the process `owner`, or, for None, of all owners that
    are dead. Empty is what it should be."""
    found = [f"process {pid} of {PREFIX}{of}" for pid, of in _marked() if _wanted(of, owner)]
    found += [f"control group {path}" for pid, path in strays() if _wanted(pid, owner)]
    return sorted(found)


def processes(owner: int) -> list[int]:
    """The processes that are left of the machines of `owner`, itself not among them."""
    return sorted({pid for pid, of in _marked() if of == owner and pid != owner})


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
