"""Machines: time to the first output beside plain bubblewrap in a control group, starts per second, idle ones in 10 GB, and
time to the first answer of a PostgreSQL inside."""

import argparse
import asyncio
import os
import resource
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from _result import finish
from twinmill.env.machine import cells, make_machine
from twinmill.env.machine.base import Machine, MachineRefused
from twinmill.env.machine.bwrap import find_bwrap
from twinmill.env.machine.cgroups import Groups
from twinmill.records.tasks import MachineSpec, Service

SPEC = MachineSpec()
WORD = "ready\n"
GB = 10**9


def baseline_argv() -> list[str]:
    """What anyone would write: every namespace, a read-only /usr, a size-capped tmpfs, entered through its group."""
    argv = [str(find_bwrap().path), "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
    for folder in ("/work", "/tmp"):
        argv += ["--size", str(SPEC.disk_bytes), "--tmpfs", folder]
    return [*argv, "--proc", "/proc", "--dev", "/dev", "--chdir", "/work", "echo", WORD.strip()]


def baseline_s(groups: Groups, argv: list[str]) -> float:
    """One bubblewrap, in a control group made for it, from the request to its output."""
    started = time.perf_counter()
    group = groups.take(SPEC.memory_bytes, SPEC.processes)
    enter = "".join(f"echo 0 > {folder}/cgroup.procs; " for folder in group.folders.values())
    argv = ["sh", "-c", enter + 'exec "$@"', "sh", *argv]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    taken = time.perf_counter() - started
    groups.give(group)
    assert done.stdout == WORD, done.stderr
    return taken


async def ours_s() -> float:
    """One machine with all isolation, from the request to its output."""
    started = time.perf_counter()
    machine = make_machine("native", SPEC)
    await machine.start()
    try:
        result = await machine.exec(["echo", WORD.strip()], timeout_s=30)
        taken = time.perf_counter() - started
    finally:
        await machine.close()
    assert result.stdout == WORD, result
    return taken


async def interleaved(runs: int) -> tuple[list[float], list[float]]:
    """(ours, baseline) in seconds, one of each in turn, so that both see the same host."""
    groups, argv = Groups(), baseline_argv()
    ours, plain = [], []
    await ours_s()  # the forge
    for _ in range(runs):
        ours.append(await ours_s())
        plain.append(await asyncio.to_thread(baseline_s, groups, argv))
    groups.remove()
    return ours, plain


async def starts_per_s(count: int, at_once: int) -> float:
    """`at_once` workers that start a machine, have it say its word, and close it."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await ours_s()

    started = time.perf_counter()
    await asyncio.gather(*[worker() for _ in range(at_once)])
    return count / (time.perf_counter() - started)


async def postgres_s(runs: int) -> list[float]:
    """From the request for a machine until the PostgreSQL inside has answered a query, its table filled. The first one makes
    or reads the image that all others are forks of, and is left out."""
    script = "create table t (id integer primary key); insert into t values (1);"
    spec = MachineSpec(services=(Service(kind="postgresql", script=script),))
    taken = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        machine = make_machine("native", spec)
        try:
            await machine.start()  # returns when the service has answered
            taken.append(time.perf_counter() - started)
        finally:
            await machine.close()
    return taken[1:]


def available_bytes() -> int:
    line = next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


async def alive(count: int) -> tuple[int, float]:
    """(machines, bytes each): up to `count` idle ones at once, each of which has run a command, in at most 10 GB."""
    machines: list[Machine] = []
    before = available_bytes()

    async def one() -> None:
        machine = make_machine("native", SPEC)
        await machine.start()
        machines.append(machine)
        await machine.exec(["echo"], timeout_s=30)

    try:
        while len(machines) < count and before - available_bytes() < 10 * GB and available_bytes() > 2 * GB:
            await asyncio.gather(*[one() for _ in range(min(16, count - len(machines)))])
        await asyncio.sleep(1)
        used = max(1, before - available_bytes())
        answers = await asyncio.gather(
            *[m.exec(["echo", "on"], timeout_s=60) for m in machines[:: max(1, count // 64)]]
        )
        assert all(answer.stdout == "on\n" for answer in answers)
        return len(machines), used / len(machines)
    finally:
        for machine in machines:
            await machine.close()


def permit_descriptors() -> None:
    """Two for each machine on this side."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="machines of each kind, one by one")
    parser.add_argument("--starts", type=int, default=3000, help="machines for the rate")
    parser.add_argument("--at-once", type=int, default=8, help="workers for the rate")
    parser.add_argument("--alive", type=int, default=4000, help="idle machines at once; 0 = leave out")
    parser.add_argument("--postgres", type=int, default=100, help="machines with a PostgreSQL; 0 = leave out")
    parser.add_argument(
        "--extrapolate", action="store_true", help="alive_10gb from the bytes of the ones that were made"
    )
    options = parser.parse_args()
    if shutil.which("sh") is None:
        raise SystemExit("the baseline needs a shell")
    permit_descriptors()
    ours, plain = asyncio.run(interleaved(options.runs))
    rate = asyncio.run(starts_per_s(options.starts, options.at_once))
    percentiles = statistics.quantiles(ours, n=100)
    measured: dict[str, object] = {
        "p50_ms": statistics.median(ours) * 1e3,
        "p99_ms": percentiles[98] * 1e3,
        "baseline_p50_ms": statistics.median(plain) * 1e3,
        "speedup_over_bwrap_cgroup": statistics.median(plain) / statistics.median(ours),
        "starts_per_s": rate,
        "machine_cpu_ms": cells.machine_cpu_s() * 1e3 / (len(ours) + options.starts + 1),
    }
    must = {"p50_ms": "<= 8", "p99_ms": "<= 30", "speedup_over_bwrap_cgroup": ">= 1.5", "starts_per_s": ">= 500"}
    if options.alive:
        count, each = asyncio.run(alive(options.alive))
        measured |= {"alive": count, "alive_bytes_each": each}
        measured["alive_10gb"] = int(10 * GB / each) if options.extrapolate else count
        must["alive_10gb"] = ">= 4000"
    if options.postgres:
        must["pg_p50_ms"] = "<= 120"
        try:
            databases = asyncio.run(postgres_s(options.postgres))
            measured |= {"pg_p50_ms": statistics.median(databases) * 1e3, "pg_most_ms": max(databases) * 1e3}
        except MachineRefused as missing:
            print(f"pg_p50_ms was not measured: {missing}")
    cells.close_all()
    finish("machines", measured, must)


if __name__ == "__main__":
    main()
