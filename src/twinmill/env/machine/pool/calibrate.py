"""What machines cost on this host, measured: the figures that the simulator calculates with.

One after the other first, for what each stage takes alone; then many at once, for what they share; then the same with
work in each. Nothing of a burst that is to be foreseen is measured.
"""

import asyncio
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from twinmill.env.machine.base import Machine
from twinmill.records.burst import MachineCosts

from .local import memory

QUANTILES = 20
WORK_LOOPS = 200_000
WORK = "n = 0\nfor i in range({loops}): n += i\nprint('here')\n"
"""a command that computes and does nothing else"""
AT_ONCE = 8

Make = Callable[[], Machine]


def work(loops: int) -> tuple[str, ...]:
    return ("python3", "-c", WORK.format(loops=loops))


async def cycle(make: Make, loops: int = 0) -> tuple[float, float, float]:
    """Seconds of make, run, end."""
    clock = time.perf_counter
    began = clock()
    machine = make()
    try:
        await machine.start()
        made = clock()
        result = await machine.exec(work(loops), timeout_s=120)
        ran = clock()
    finally:
        await machine.close()
    if result.stdout != "here\n":
        raise RuntimeError(f"a machine said {result.stdout!r} {result.stderr!r} instead of 'here'")
    return made - began, ran - made, clock() - ran


async def _rate(make: Make, count: int, loops: int) -> float:
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await cycle(make, loops)

    began = time.perf_counter()
    await asyncio.gather(*[worker() for _ in range(AT_ONCE)])
    return count / (time.perf_counter() - began)


async def _idle_bytes(make: Make, count: int) -> int:
    machines: list[Machine] = []
    before = memory()[1]
    try:
        for _ in range(count):
            machine = make()
            machines.append(machine)
            await machine.start()
            await machine.exec(("echo",), timeout_s=60)
        return max(100_000, (before - memory()[1]) // count)
    finally:
        for machine in machines:
            await machine.close()


async def calibrate(make: Make, *, cores: int, samples: int = 100) -> MachineCosts:
    """`make` makes a machine that is not started. Raises what machines raise."""
    await cycle(make)  # the forge
    alone = [await cycle(make) for _ in range(samples)]
    worked = [await cycle(make, WORK_LOOPS) for _ in range(max(5, samples // 5))]
    work_s = max(1e-4, statistics.median(run for _, run, _ in worked) - statistics.median(run for _, run, _ in alone))
    plain = await _rate(make, 4 * samples, 0)
    busy = await _rate(make, max(2 * AT_ONCE, samples), WORK_LOOPS)
    stages = [quantiles([times[i] for times in alone]) for i in range(3)]
    return MachineCosts(
        host=_processor(), cores=cores, make_s=stages[0], run_s=stages[1], end_s=stages[2], work_s=work_s, cycles_per_s=plain,
        work_frac=max(0.1, cores * (1 / busy - 1 / plain) / work_s),
        idle_bytes=await _idle_bytes(make, min(samples, 50)), samples=samples,
    )  # fmt: skip


def quantiles(values: list[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(ordered[round(i * (len(ordered) - 1) / QUANTILES)] for i in range(QUANTILES + 1))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
