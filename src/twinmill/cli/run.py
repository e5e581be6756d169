"""`twinmill run | midtrain | sft | rl`: start what a recipe describes, show it, and end with a report."""

import datetime
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console

from twinmill import __version__
from twinmill.cli.blocks import ConfigError
from twinmill.launch.lines import LinePrinter
from twinmill.launch.lock import RunLock
from twinmill.launch.outcome import Ending, Notice, Outcome
from twinmill.launch.spec import ProcessSpec, Restart
from twinmill.launch.supervisor import Supervisor
from twinmill.records.runs import RunRecord
from twinmill.store.metrics import MetricsWriter
from twinmill.store.runs import RunFolder

console = Console()
ROOM_BYTES = 2**30
"""free disk that a run wants before it starts"""


def run(
    recipe: Path | None = None, *, resume: str | None = None, root: Path = Path("runs"), set: tuple[str, ...] = ()
) -> int:
    """Run a recipe: mid-training, SFT, RL, evaluation, report; whatever the recipe switches on.

    Args:
        recipe: Python file with a function recipe() that returns a RunConfig
        resume: continue this run folder (or "latest") where it was stopped, instead of starting a recipe
        root: folder of the runs
        set: overrides like rl.window.window=0, repeated
    """
    return _start(recipe, resume, root, set, keep=("midtrain", "sft", "rl"))


def midtrain(recipe: Path, *, root: Path = Path("runs"), set: tuple[str, ...] = ()) -> int:
    """Only the mid-training of a recipe; the model is left in the run folder, models/midtrain."""
    return _start(recipe, None, root, set, keep=("midtrain",))


def sft(recipe: Path, *, root: Path = Path("runs"), set: tuple[str, ...] = ()) -> int:
    """Only the SFT of a recipe (its expert's transcripts included), on the recipe's model."""
    return _start(recipe, None, root, set, keep=("sft",))


def rl(recipe: Path, *, root: Path = Path("runs"), set: tuple[str, ...] = ()) -> int:
    """Only the RL of a recipe, on the recipe's model (--set model=FOLDER for another)."""
    return _start(recipe, None, root, set, keep=("rl",))


def _start(
    recipe: Path | None, resume: str | None, root: Path, overrides: tuple[str, ...], keep: tuple[str, ...]
) -> int:
    if (recipe is None) == (resume is None):
        raise ConfigError("give a recipe to start, or --resume RUN to continue one (and not both)")
    if resume is not None:
        from twinmill.cli.places import open_run

        if overrides:
            raise ConfigError("--set has no effect on a resumed run: its config is fixed; start a new run instead")
        folder, _ = open_run(resume, root)
    else:
        assert recipe is not None
        folder = create(recipe, root, overrides, keep)
    with RunLock(folder.path / "lock") as lock:
        folder.check_room(ROOM_BYTES)
        return supervise(folder, lock)


def create(recipe: Path, root: Path, overrides: tuple[str, ...], keep: tuple[str, ...]) -> RunFolder:
    """Read and check the recipe, and lay out its run folder."""
    from twinmill.cli import config as full  # imports torch: a second, and only here
    from twinmill.cli.checks import switched_off

    config = full.load_recipe(recipe, overrides, off=switched_off(keep))
    config = msgspec.structs.replace(config, model=str(Path(config.model).absolute()))
    data = full.to_json(config)
    from twinmill.store.blobs import digest_of

    now = datetime.datetime.now()
    record = RunRecord(
        run_id=f"{config.name}-{now:%Y%m%d-%H%M%S}", recipe=str(recipe), config_digest=digest_of(data),
        revision=_revision(recipe), seed=config.seed, started=time.time(), twinmill=__version__,
        python=platform.python_version(),
    )  # fmt: skip
    return RunFolder.create(root, record, data)


def _revision(recipe: Path) -> str:
    asked = ["git", "-C", str(recipe.absolute().parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


KEEP_FREED = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""of glibc's allocator, for the trainer: every microbatch takes the same memory as the one before. Given back to the system in
between, it comes again page by page, which took a fifth of the trainer's processor time (docs/LOG.md)"""


def specs(folder: RunFolder) -> tuple[tuple[ProcessSpec, ...], str]:
    """The processes of a run, and the one whose end is the run's end."""
    from twinmill.cli.blocks import Blocks

    blocks = Blocks(folder.config_path)
    again = Restart(attempts=6, within_s=300, backoff_s=0.3)

    hang_s = blocks.get("hang_s", float)

    def role(
        module: str, name: str, *, tier: int, threads: int = 1, patience: int = 1, env: dict[str, str] | None = None
    ) -> ProcessSpec:
        argv = (sys.executable, "-m", f"twinmill.cli.proc.{module}", str(folder.path), name)
        beat_s = patience * hang_s
        return ProcessSpec(
            name=name, argv=argv, restart=again, tier=tier, cpu_threads=threads, beat_s=beat_s, grace_s=5, env=env or {}
        )

    threads = blocks.get("trainer_threads", int)
    found = [role("trainer", "trainer", tier=0, threads=threads, patience=4, env=KEEP_FREED)]
    if blocks.has("experts"):
        found.append(role("expert", "expert", tier=0))
    if blocks.has("rl"):
        for i, cluster in enumerate(blocks.get("clusters", list)):
            threads = blocks.get(f"clusters.{i}.threads", int)
            found.append(role("engine", f"engine/{cluster['name']}", tier=1, threads=threads))
            found.append(role("rollout", f"rollout/{cluster['name']}", tier=2))
    main = "trainer"
    if blocks.has("evaluation"):
        found.append(role("evaluator", "evaluator", tier=2, patience=2))
        main = "evaluator"
    return tuple(found), main


def supervise(folder: RunFolder, lock: RunLock) -> int:
    """Start all, show what happens, end with the report. Returns the exit code."""
    from twinmill.board.live import Board
    from twinmill.board.report import write_report
    from twinmill.board.summary import table
    from twinmill.env.machine import cgroups

    processes, main = specs(folder)
    started, title = time.time(), folder.path.name
    metrics = MetricsWriter(folder.metrics_path("supervisor"))
    printer = LinePrinter(console, tuple(spec.name for spec in processes))

    def on_notice(notice: Notice) -> None:
        """What went wrong is shown at once and kept; that all goes well is only kept in the logs."""
        if notice.level != "info":
            printer.notice(notice)
            text = f"{notice.name}: {notice.text}" if notice.name else notice.text
            metrics.write("event", level=notice.level, what=notice.what.value, text=text)

    board = Board(folder.metrics, title=title, console=console)
    with board:
        outcome = Supervisor(
            processes, main=main, log_dir=folder.path / "logs", environment=os.environ, on_line=printer.line,
            on_notice=on_notice, on_tick=board.tick, keep_fds=(lock.fd,),
        ).run()  # fmt: skip
    cgroups.sweep(list(cgroups.places()))  # of processes that were killed and had no successor to do it
    page, picture = write_report(board.view, folder.path, title=title, record=folder.record)
    console.print(table(board.view, title=title))
    console.print(f"{time.time() - started:.0f} s; report {page}, picture {picture.name}", soft_wrap=True)
    return _end(outcome, folder, printer)


def _end(outcome: Outcome, folder: RunFolder, printer: LinePrinter) -> int:
    if outcome.ending is not Ending.DONE:
        printer.outcome(outcome)
        console.print(f"resume with: twinmill run --resume {folder.path}", soft_wrap=True)
    return outcome.code
