"""`twinmill episodes list | show`: read the episodes log of a run."""

from pathlib import Path

from rich.console import Console

from twinmill.board.episodes import episode_table, episode_text
from twinmill.cli.blocks import ConfigError
from twinmill.cli.places import open_run
from twinmill.cli.proc.base import open_store
from twinmill.data.render import open_renderer
from twinmill.store.blobs import open_blobs
from twinmill.store.ledger import EpisodesLog

console = Console()


def list_(
    run: str = "latest", *, root: Path = Path("runs"), store: str | None = None, slot: int | None = None, count: int = 40,
    failed: bool = False,
) -> None:  # fmt: skip
    """The last attempts of a run, over all clusters.

    Parameters
    ----------
    run: run folder, or "latest"
    store: folder or URL of a log that belongs to no run, as `twinmill serve` keeps one
    slot: only this slot's attempts
    failed: only those that scored below 1
    """
    log = _log(run, root) if store is None else EpisodesLog(open_blobs(store))
    found = [attempt for lane in log.lanes() for _, attempt in log.tail(lane)]
    found = [a for a in found if slot is None or a.slot == slot]
    found = [a for a in found if not failed or (a.verdict.reward is not None and a.verdict.reward < 1)]
    found.sort(key=lambda a: (a.slot, a.attempt))
    console.print(episode_table(found[-count:]))
    console.print(f"{len(found)} attempts; show one with: twinmill episodes show ID")


def show_(
    episode_id: str, *, run: str = "latest", root: Path = Path("runs"), store: str | None = None, model: str | None = None,
    full: bool = False, tokens: bool = False,
) -> None:  # fmt: skip
    """One episode, turn by turn; --tokens shows every sampled token with its log-probability.

    Parameters
    ----------
    store: folder or URL of a log that belongs to no run, as `twinmill serve` keeps one; with --model
    model: folder whose tokenizer wrote the episode; the run's own by default
    """
    if store is None:
        folder, blocks = open_run(run, root)
        log, place = EpisodesLog(open_store(folder, blocks)), str(folder.path)
        model = model or blocks.get("model", str)
    elif model is None:
        raise ConfigError("--store belongs to no run: give --model FOLDER, whose tokenizer reads the ids")
    else:
        log, place = EpisodesLog(open_blobs(store)), store
    found = [a for lane in log.lanes() for _, a in log.tail(lane) if a.episode.id == episode_id]
    if not found:
        raise ConfigError(f"no episode {episode_id!r} in {place}; `twinmill episodes list` shows what there is")
    renderer = open_renderer(model)
    for attempt in found:
        console.print(episode_text(attempt, renderer.decode, full=full, tokens=tokens))


def _log(run: str, root: Path) -> EpisodesLog:
    folder, blocks = open_run(run, root)
    return EpisodesLog(open_store(folder, blocks))
