"""`twinmill weights log | verify | materialize`: the weights log of a run."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import track

from twinmill.cli.places import open_run
from twinmill.cli.proc.base import open_store
from twinmill.publish import materialize as publish_materialize
from twinmill.publish.manifest import WeightsLog

console = Console()


def log(run: str = "latest", *, root: Path = Path("runs")) -> None:
    """Every version: what it is, how large, what it was trained on.

    Parameters
    ----------
    run: run folder, or "latest"
    """
    from twinmill.board.weights import weights_table

    folder, blocks = open_run(run, root)
    store = WeightsLog(open_store(folder, blocks))
    console.print(weights_table([store.get(n) for n in range(store.newest() + 1)], now=time.time()))


def verify(run: str = "latest", *, root: Path = Path("runs"), first: int = 0, last: int | None = None) -> int:
    """Rebuild every version from the log and check every digest and link. Exit code 1 if one does not hold."""
    folder, blocks = open_run(run, root)
    blobs = open_store(folder, blocks)
    newest = WeightsLog(blobs).newest() if last is None else last
    reports = list(
        track(
            publish_materialize.verify(blobs, first, newest),
            total=newest - first + 1,
            description="verifying",
            console=console,
        )
    )
    bad = [report for report in reports if not report.ok]
    for report in bad:
        console.print(f"[red]version {report.number}[/]: {report.problem}")
    console.print(f"{len(reports) - len(bad)} of {len(reports)} versions hold: objects, digests, lineage")
    return 1 if bad else 0


def materialize(version: int, out: Path, *, run: str = "latest", root: Path = Path("runs")) -> None:
    """Write any version as a full Hugging Face folder."""
    folder, blocks = open_run(run, root)
    made = publish_materialize.materialize(open_store(folder, blocks), version, out)
    console.print(f"version {made.number} of {made.run_id} is in {out} (model digest {made.model_digest[:16]})")
