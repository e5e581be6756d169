"""`twinmill eval`: pass rate of a model folder, or of a version of a run, on tasks of a set."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from twinmill.cli.blocks import ConfigError
from twinmill.cli.places import model_folder
from twinmill.records import wire
from twinmill.rollout.evaluate import EvalConfig, Score, interval, per_task

console = Console()


def evaluate(
    model: str,
    *,
    taskset: str = "tinyrepo:0",
    split: str = "heldout",
    tasks: int = 100,
    attempts: int = 1,
    temperature: tuple[float, ...] = (0.3,),
    machines: int = 8,
    threads: int = 2,
    seed: int = 20_000,
    out: Path | None = None,
) -> None:
    """Play held-out tasks and print pass@1 (and pass@8 from 8 attempts on) with intervals.

    Args:
        model: Hugging Face folder, or RUN@VERSION (e.g. latest@40)
        temperature: of sampling; give several to compare
        out: file for what each attempt earned: JSON, one line for each temperature
    """
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    config = EvalConfig(tasks=tasks, attempts=attempts, split=split, machines=machines, seed=seed)
    columns = ("temperature", "pass@1", "95 % interval", "pass@8", "lost", "seconds")
    table = Table(*columns, title=f"{model} on {taskset} {split}")
    lines = []
    with model_folder(model) as folder:
        for value in temperature:
            started = time.monotonic()
            with Progress(console=console, transient=True) as progress:
                bar = progress.add_task(f"temperature {value}", total=tasks * attempts)

                def on_done(_: float | None, progress: Progress = progress, bar: TaskID = bar) -> None:
                    progress.advance(bar)

                settings = msgspec.structs.replace(config, temperature=value)
                score = asyncio.run(_score(folder, taskset, settings, threads, on_done))
            lines.append(wire.to_json(score) + b"\n")
            low, high = interval([v for v in per_task(score) if v == v])
            lost = sum(r is None for row in score.rewards_T_K for r in row)
            best = f"{score.pass_at(8):.1%}" if attempts >= 8 else "-"
            seconds = f"{time.monotonic() - started:.0f}"
            table.add_row(str(value), f"{score.pass_at(1):.1%}", f"{low:.1%} to {high:.1%}", best, str(lost), seconds)
    console.print(table)
    if out is not None:
        out.write_bytes(b"".join(lines))


async def _score(
    folder: Path, taskset: str, config: EvalConfig, threads: int, on_done: Callable[[float | None], None]
) -> Score:
    """Evaluate a Hugging Face folder on an embedded engine in this process."""
    import torch

    from twinmill.data.render import open_renderer
    from twinmill.data.tasks.base import open_taskset
    from twinmill.engine.embedded import EngineConfig, serving
    from twinmill.env.harness.loop import HarnessConfig
    from twinmill.env.machine import make_machine
    from twinmill.rollout.evaluate import evaluate as play_all
    from twinmill.rollout.play import Player

    torch.set_num_threads(threads)
    async with serving(folder, EngineConfig()) as engine:
        player = Player(
            engine=engine,
            renderer=open_renderer(folder),
            make_machine=lambda spec: make_machine("namespace", spec),
            harness=HarnessConfig(temperature=config.temperature, experts=False),
            cluster="here",
        )
        return await play_all(open_taskset(taskset), player, config, on_done=on_done)
