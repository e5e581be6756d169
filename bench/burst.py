"""Burst: real create-exec-destroy cycles of machines, and what they leak of descriptors, mounts, groups, processes."""

import argparse
import asyncio
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from _result import finish
from twinmill.env.machine import cells, make_machine
from twinmill.env.machine.leftovers import leftovers
from twinmill.env.machine.native import SPARE_NETS
from twinmill.records.tasks import MachineSpec

SPEC = MachineSpec()
KINDS = ("mnt", "pid", "net", "ipc", "uts", "cgroup", "user")
FULL = 100_000
SETTLE_S = 20.0


async def cycle() -> None:
    machine = make_machine("native", SPEC)
    await machine.start()
    try:
        result = await machine.exec(["echo", "here"], timeout_s=60)
    finally:
        await machine.close()
    assert result.stdout == "here\n", result


async def cycles(count: int, at_once: int) -> float:
    """Seconds for `count` of them, `at_once` at a time."""
    left, done, started = iter(range(count)), 0, time.perf_counter()

    async def worker() -> None:
        nonlocal done
        for _ in left:
            await cycle()
            done += 1
            if done % 10_000 == 0:
                print(f"{done} cycles in {time.perf_counter() - started:.0f} s", flush=True)

    await asyncio.gather(*[worker() for _ in range(at_once)])
    return time.perf_counter() - started


def family() -> set[int]:
    """This process and everything below it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return found


def held(pid: int) -> Iterator[str]:
    """Namespaces that a process lives in or holds open."""
    for path in (*(f"ns/{kind}" for kind in KINDS), *(f"fd/{name}" for name in os.listdir(f"/proc/{pid}/fd"))):
        try:
            target = os.readlink(f"/proc/{pid}/{path}")
        except OSError:
            continue
        if target.partition(":")[0] in KINDS:
            yield target


def inventory() -> dict[str, int]:
    """What this process and its forges hold now."""
    pids = family()
    return {
        "fds": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "mounts": sum(len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()) for pid in pids),
        "cgroups": sum(owner == os.getpid() for owner, _ in cells.strays()),
        "pids": len(pids),
        "namespaces": len({space for pid in pids for space in held(pid)}),
    }


async def settled(before: dict[str, int]) -> dict[str, int]:
    """What is held more than before, when nothing changes any more. The pool of network namespaces may have grown to
    its bound: each of these is one descriptor and one namespace."""
    pooled, deadline = 4 * SPARE_NETS, time.monotonic() + SETTLE_S
    while True:
        now = inventory()
        more = {key: max(0, now[key] - before[key]) for key in now}
        more |= {key: max(0, more[key] - pooled) for key in ("fds", "namespaces")}
        if not any(more.values()) or time.monotonic() > deadline:
            return more
        await asyncio.sleep(0.2)
        await cycle()  # groups that were busy when their machine ended are removed with the next one's start


async def run(count: int, at_once: int) -> dict[str, object]:
    await cycles(4 * at_once, at_once)
    await asyncio.sleep(1)  # the forge fills its pool
    before = inventory()
    seconds = await cycles(count, at_once)
    more = await settled(before)
    measured: dict[str, object] = {"cycles": count, "seconds": seconds, "cycles_per_s": count / seconds}
    measured |= {f"leaked_{key}": value for key, value in more.items()}
    measured["leaks"] = sum(more.values())
    if count == FULL:
        measured["cycles_100k_s"] = seconds
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=FULL)
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    measured = asyncio.run(run(options.cycles, options.at_once))
    cells.close_all()
    measured["left_at_the_end"] = len(leftovers(os.getpid())) + len(family()) - 1
    must = {"leaks": "== 0", "left_at_the_end": "== 0"}
    if options.cycles == FULL:
        must["cycles_100k_s"] = "<= 360"
    finish("burst", measured, must)


if __name__ == "__main__":
    main()
