"""Burst: real create-exec-destroy cycles of machines, and what they leak of descriptors, mounts, groups, processes; and what
the simulator foresees of bursts through the pool that it was not calibrated on, beside what they took."""

import argparse
import asyncio
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sized
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _result import finish
from twinmill.env.machine import cells, make_machine
from twinmill.env.machine.base import Machine
from twinmill.env.machine.cgroups import strays
from twinmill.env.machine.leftovers import leftovers
from twinmill.env.machine.native import SPARE_NETS
from twinmill.env.machine.pool.calibrate import WORK_LOOPS, calibrate, work
from twinmill.env.machine.pool.local import Pool, memory
from twinmill.env.machine.pool.scheduler import PoolConfig
from twinmill.env.machine.pool.simulator import simulate
from twinmill.records.burst import BurstOutcome, BurstPlan, MachineCosts
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
    """Namespaces that a process lives in or holds open; of one that has just ended, none."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for path in (*(f"ns/{kind}" for kind in KINDS), *(f"fd/{name}" for name in descriptors)):
        try:
            target = os.readlink(f"/proc/{pid}/{path}")
        except OSError:
            continue
        if target.partition(":")[0] in KINDS:
            yield target


def inventory() -> dict[str, int]:
    """What this process and its forges hold now. One that has just ended holds nothing, and /proc refuses to say so."""

    def count(things: Callable[[], Sized]) -> int:
        try:
            return len(things())
        except OSError:
            return 0

    pids = family()
    return {
        "fds": sum(count(partial(os.listdir, f"/proc/{pid}/fd")) for pid in pids),
        "mounts": sum(count(lambda pid=pid: Path(f"/proc/{pid}/mountinfo").read_text().splitlines()) for pid in pids),
        "cgroups": sum(owner == os.getpid() for owner, _ in strays()),
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


class Burst(NamedTuple):
    """A real burst through the pool, and how the simulator is told of it."""

    name: str
    machines: int
    alive: int
    """most at once"""
    loops: int
    """of the work in each"""
    hold_s: float
    group: int = 8


BURSTS = (
    Burst("bare", machines=600, alive=48, loops=0, hold_s=0.0),
    Burst("working", machines=200, alive=12, loops=2 * WORK_LOOPS, hold_s=0.0),
    Burst("holding", machines=300, alive=24, loops=WORK_LOOPS // 2, hold_s=0.3),
)
"""none of which is how costs are measured"""


def make(spec: MachineSpec = SPEC) -> Machine:
    return make_machine("native", spec)


async def real(burst: Burst) -> BurstOutcome:
    rng, clock = random.Random(burst.name), time.perf_counter
    config = PoolConfig(machines=burst.alive)
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(make, Path(folder), config)
        began, first = clock(), list[float]()

        async def one(i: int) -> None:
            machine = pool.machine(SPEC, group=str(i // burst.group))
            await machine.start()
            try:
                result = await machine.exec(work(burst.loops), timeout_s=120)
                assert result.stdout == "here\n", result
                first.append(clock() - began)
                await asyncio.sleep(rng.expovariate(1 / burst.hold_s) if burst.hold_s else 0)
            finally:
                await machine.close()

        await asyncio.gather(*[one(i) for i in range(burst.machines)])
        taken = clock() - began
        await pool.close()
    first.sort()
    return BurstOutcome(
        makespan_s=taken, p50_s=first[len(first) // 2], p99_s=first[int(0.99 * len(first))], most_alive=pool.most_alive,
        ended=len(first), tries=len(first),
    )  # fmt: skip


def foreseen(burst: Burst, costs: MachineCosts) -> BurstOutcome:
    work_s = costs.work_s * burst.loops / WORK_LOOPS
    plan = BurstPlan(
        machines=burst.machines, group=burst.group, work_s=work_s, hold_s=burst.hold_s, nodes=1, cores=costs.cores,
        memory_bytes=memory()[0],
    )  # fmt: skip
    return simulate(plan, costs, PoolConfig(machines=burst.alive))


def simulated(scale: float, samples: int) -> dict[str, object]:
    """Costs, the real bursts and what was foreseen of them, and the large one that only a simulator can have."""
    cores = len(os.sched_getaffinity(0))
    measured: dict[str, object] = {}
    errors: dict[str, list[float]] = {"makespan": [], "p99": []}
    costs = asyncio.run(calibrate(make, cores=cores, samples=samples))
    for burst in BURSTS:
        burst = burst._replace(machines=max(burst.group, int(burst.machines * scale)))
        told, was = foreseen(burst, costs), asyncio.run(real(burst))
        for name, a, b in (("makespan", told.makespan_s, was.makespan_s), ("p99", told.p99_s, was.p99_s)):
            errors[name].append(abs(a - b) / b)
            measured |= {f"{burst.name}_{name}_s": b, f"{burst.name}_{name}_foreseen_s": a}
    large = BurstPlan(
        machines=int(FULL * min(1.0, scale)), nodes=120, cores=128, memory_bytes=256 << 30, work_s=2.0, hold_s=60.0,
        images=50, image_bytes=1 << 30, grown_bytes=250 << 20,
    )  # fmt: skip
    began = time.perf_counter()
    outcome = simulate(large, costs, PoolConfig(machines=1000))
    measured |= {
        "sim_machines": large.machines,
        "sim_s": time.perf_counter() - began,
        "sim_makespan_s": outcome.makespan_s,
    }
    measured |= {"makespan_error": max(errors["makespan"]), "p99_error": max(errors["p99"])}
    return measured


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
    parser.add_argument("--cycles", type=int, default=FULL, help="0 = leave out")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the bursts that are foreseen; 0 = leave out")
    parser.add_argument("--samples", type=int, default=100, help="machines behind the measured costs")
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    measured, must = dict[str, object](), dict[str, str]()
    if options.scale:
        measured |= simulated(options.scale, options.samples)
        must |= {"sim_s": "< 30", "makespan_error": "<= 0.25", "p99_error": "<= 0.25"}
    if options.cycles:
        measured |= asyncio.run(run(options.cycles, options.at_once))
        must["leaks"] = "== 0"
    if options.cycles == FULL:
        must["cycles_100k_s"] = "<= 360"
    cells.close_all()
    measured["left_at_the_end"] = len(leftovers(os.getpid())) + len(family()) - 1
    finish("burst", measured, {**must, "left_at_the_end": "== 0"})


if __name__ == "__main__":
    main()
