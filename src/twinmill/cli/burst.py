"""`twinmill machines calibrate | plan`: what machines cost here, and what a burst of them would take."""

import asyncio
import os
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from twinmill.board.units import size
from twinmill.cli.blocks import ConfigError
from twinmill.env.machine import make_machine
from twinmill.env.machine.pool.calibrate import calibrate as measure
from twinmill.env.machine.pool.scheduler import PoolConfig
from twinmill.env.machine.pool.simulator import simulate
from twinmill.records import wire
from twinmill.records.burst import BurstOutcome, BurstPlan, MachineCosts
from twinmill.records.tasks import MachineSpec

console = Console()
COSTS = Path("machine-costs.json")


def calibrate(out: Path = COSTS, *, machine: str = "native", samples: int = 100) -> None:
    """Measure what machines cost on this host and write it to a file. Takes a minute; let nothing else run meanwhile.

    Args:
        out: the file that `twinmill machines plan --costs` reads
        machine: backend
        samples: machines for each of the costs that one alone has
    """
    if samples < 5:
        raise ConfigError(f"--samples is {samples}; quantiles of fewer than 5 machines say nothing")
    cores = len(os.sched_getaffinity(0))
    costs = asyncio.run(measure(partial(make_machine, machine, MachineSpec()), cores=cores, samples=samples))
    aside = out.with_name(f"{out.name}.part")
    aside.write_bytes(wire.to_json(costs) + b"\n")
    aside.replace(out)
    make_ms, run_ms, end_ms = (_median(quantiles) for quantiles in (costs.make_s, costs.run_s, costs.end_s))
    console.print(
        f"{out}: {costs.cycles_per_s:.0f} machines/s on {costs.cores} cores of {costs.host}; alone, one starts in "
        f"{make_ms:.1f} ms, runs a first command in {run_ms:.1f} and ends in {end_ms:.1f}"
    )


def _median(quantiles: tuple[float, ...]) -> float:
    return quantiles[len(quantiles) // 2] * 1e3


def read_costs(path: Path) -> MachineCosts:
    try:
        return wire.from_json(path.read_bytes(), MachineCosts)
    except FileNotFoundError:
        raise ConfigError(f"no costs in {path}: `twinmill machines calibrate {path}` measures them") from None
    except wire.WireError as error:
        raise ConfigError(
            f"{path} holds no costs ({error}): `twinmill machines calibrate {path}` measures them"
        ) from None


def plan(
    *,
    machines: int = 100_000,
    nodes: int = 120,
    cores: int = 128,
    memory_gb: float = 256.0,
    group: int = 8,
    images: int = 50,
    image_gb: float = 1.0,
    work_s: float = 2.0,
    hold_s: float = 60.0,
    grown_mb: float = 250.0,
    alive: int = 1000,
    within_s: float = 0.0,
    seed: int = 0,
    costs: Path = COSTS,
) -> int:
    """Simulate a burst. Exit code 1 if it does not end within --within-s, or a machine is lost.

    Args:
        machines: of the burst, asked for at once
        group: attempts of one task, which go to one node
        work_s: processor seconds of one machine's commands
        hold_s: mean seconds in which one waits for its model
        grown_mb: memory that its work adds
        alive: most machines alive on one node
        within_s: 0 = no matter how long
    """
    for name, value in {"machines": machines, "nodes": nodes, "cores": cores, "group": group, "images": images}.items():
        if value < 1:
            raise ConfigError(f"--{name} is {value}; a burst needs at least 1")
    burst = BurstPlan(
        machines=machines, group=group, images=images, image_bytes=int(image_gb * 1e9), work_s=work_s, hold_s=hold_s,
        grown_bytes=int(grown_mb * 1e6), nodes=nodes, cores=cores, memory_bytes=int(memory_gb * 1e9),
    )  # fmt: skip
    one = read_costs(costs)
    if (needs := one.idle_bytes + burst.grown_bytes) > burst.memory_bytes:
        raise ConfigError(
            f"one machine needs {size(needs)} and a node has {size(burst.memory_bytes)}: raise --memory-gb"
        )
    outcome = simulate(burst, one, PoolConfig(machines=alive), seed=seed)
    console.print(_table(burst, one, outcome))
    if within_s and outcome.makespan_s > within_s:
        console.print(
            f"[red]{outcome.makespan_s:.0f} s are more than the {within_s:.0f} s allowed; what binds: {outcome.bottleneck}[/]"
        )
        return 1
    return 1 if outcome.lost else 0


def _table(burst: BurstPlan, costs: MachineCosts, outcome: BurstOutcome) -> Table:
    shown = Table(show_header=False, title=f"{burst.machines:,} machines on {burst.nodes} nodes of {burst.cores} cores")
    for name, value in {
        "until the last has ended": f"{outcome.makespan_s:.1f} s",
        "first output, p50 and p99": f"{outcome.p50_s:.1f} and {outcome.p99_s:.1f} s",
        "most alive": f"{outcome.most_alive:,}",
        "what binds": outcome.bottleneck,
        "costs": f"measured on {costs.cores} cores of {costs.host}, {costs.samples} samples",
    }.items():
        shown.add_row(name, value)
    return shown
