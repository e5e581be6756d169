"""`twinmill episodes list | show`: read the episodes log of a run."""

from pathlib import Path

from rich.console import Console

from twinmill.board.episodes import episode_table, episode_text
from twinmill.cli.blocks import ConfigError
from twinmill.cli.places import open_run
from twinmill.cli.proc.base import open_store
from twinmill.data.render import open_renderer
from twinmill.store.ledger import EpisodesLog

console = Console()


def list_(
    run: str = "latest", *, root: Path = Path("runs"), slot: int | None = None, count: int = 40, failed: bool = False
) -> None:
    """The last attempts of a run, over all clusters.

    Parameters
    ----------
    run: run folder, or "latest"
    slot: only this slot's attempts
    failed: only those that scored below 1
    """
    log = _log(run, root)
    found = [attempt for lane in log.lanes() for _, attempt in log.tail(lane)]
    found = [a for a in found if slot is None or a.slot == slot]
    found = [a for a in found if not failed or (a.verdict.reward is not None and a.verdict.reward < 1)]
    found.sort(key=lambda a: (a.slot, a.attempt))
    console.print(episode_table(found[-count:]))
    console.print(f"{len(found)} attempts; show one with: twinmill episodes show ID")


def show_(
    episode_id: str, *, run: str = "latest", root: Path = Path("runs"), full: bool = False, tokens: bool = False
) -> None:
    """One episode, turn by turn; --tokens shows every sampled token with its log-probability."""
    folder, blocks = open_run(run, root)
    log = EpisodesLog(open_store(folder, blocks))
    found = [a for lane in log.lanes() for _, a in log.tail(lane) if a.episode.id == episode_id]
    if not found:
        raise ConfigError(f"no episode {episode_id!r} in {folder.path}; `twinmill episodes list` shows what there is")
    renderer = open_renderer(blocks.get("model", str))
    for attempt in found:
        console.print(episode_text(attempt, renderer.decode, full=full, tokens=tokens))


def _log(run: str, root: Path) -> EpisodesLog:
    folder, blocks = open_run(run, root)
    return EpisodesLog(open_store(folder, blocks))
