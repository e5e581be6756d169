"""`twinmill episodes list | show | replay`: read the episodes log of a run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from twinmill.board.episodes import episode_table, episode_text
from twinmill.cli.blocks import Blocks, ConfigError
from twinmill.cli.places import open_run
from twinmill.cli.proc.base import open_store
from twinmill.data.render import open_renderer
from twinmill.records.episodes import Attempt, Episode, Segment
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.ledger import EpisodesLog

if TYPE_CHECKING:
    from twinmill.engine.embedded.replay import TurnReplay

console = Console()


def list_(
    run: str = "latest", *, root: Path = Path("runs"), store: str | None = None, slot: int | None = None, count: int = 40,
    failed: bool = False,
) -> None:  # fmt: skip
    """The last attempts of a run, over all clusters.

    Args:
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

    Args:
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
    found = _attempts(log, episode_id, place)
    renderer = open_renderer(model)
    for attempt in found:
        console.print(episode_text(attempt, renderer.decode, full=full, tokens=tokens))


def replay_(episode_id: str, *, run: str = "latest", root: Path = Path("runs"), threads: int = 1) -> int:
    """Compute an episode again from its version list and its seed. Exit code 1 if a bit comes out otherwise."""
    import torch

    torch.set_num_threads(threads)
    folder, blocks = open_run(run, root)
    blobs = open_store(folder, blocks)
    attempt = _attempts(EpisodesLog(blobs), episode_id, str(folder.path))[-1]
    turns = list(_replayed(blobs, blocks, attempt.episode))
    if not turns:
        raise ConfigError(f"episode {episode_id} has no turn: nothing was sampled in it, so there is nothing to replay")
    console.print(_table(turns))
    different = [turn for turn in turns if turn.difference is not None]
    tokens, routed = sum(turn.tokens for turn in turns), sum(turn.routed for turn in turns)
    versions = ", ".join(str(v) for v in sorted({v for turn in turns for v in turn.versions}))
    experts = f", the experts of {routed} positions" if routed else ""
    if not different:
        console.print(f"the same bits: {tokens} tokens and log-probabilities{experts}, from versions {versions}")
        return 0
    console.print(
        f"{len(different)} of {len(turns)} turns come out otherwise, the first in turn {different[0].turn}. The same weights "
        "give other bits on a processor of another kind, in another backend (engine.backend), in parity below strict, "
        "and in code of another revision than run.json names."
    )
    return 1


def _replayed(blobs: Blobs, blocks: Blocks, episode: Episode) -> "list[TurnReplay]":
    from twinmill.batch.samples import Lost
    from twinmill.engine.embedded import EngineConfig
    from twinmill.engine.embedded.replay import Replayer
    from twinmill.env.harness.loop import HarnessConfig
    from twinmill.model.config import from_hf
    from twinmill.publish.chain import rebuild
    from twinmill.publish.manifest import WeightsLog
    from twinmill.records.engines import Sampling
    from twinmill.train.recorded import expert_loader

    log = WeightsLog(blobs)
    config = log.get(0).config
    if config is None:
        raise ConfigError(f"version 0 in {blobs.url} carries no config.json: it says not what model this is")
    load = expert_loader(blobs)
    held = {}

    def bits_of(version: int):  # type: ignore[no-untyped-def]
        if version not in held:
            held[version] = rebuild(log, version, held.get(max((v for v in held if v < version), default=-1)))
        return held[version].tensors

    replayer = Replayer(from_hf(json.loads(blobs.get_ref(config))), blocks.get("engine", EngineConfig), bits_of)
    sampling = Sampling(temperature=blocks.get("harness", HarnessConfig).temperature)

    def experts(segment: Segment):  # type: ignore[no-untyped-def]
        if segment.experts is None:
            return None
        found = load(segment.experts)
        if isinstance(found, Lost):
            raise ConfigError(
                f"episode {episode.id}: its recorded experts ({segment.experts.key}) are lost: {found.why}"
            )
        return found

    return list(replayer.episode(episode, sampling, experts))


def _table(turns: "Sequence[TurnReplay]") -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("segment", "turn", "tokens", "versions", "first difference"):
        table.add_column(name, justify="right" if name in ("segment", "turn", "tokens") else "left")
    for turn in turns:
        found = turn.difference
        place = "-" if found is None else f"{found.what} at position {found.position} (version {found.version}"
        if found is not None:
            place += ")" if found.token < 0 else f", token {found.token} of the turn)"
            place += f": recorded {found.recorded}, replayed {found.replayed}"
        versions = ", ".join(map(str, turn.versions))
        style = "" if found is None else "yellow"
        table.add_row(str(turn.segment), str(turn.turn), str(turn.tokens), versions, place, style=style)
    return table


def _attempts(log: EpisodesLog, episode_id: str, place: str) -> list[Attempt]:
    found = [a for lane in log.lanes() for _, a in log.tail(lane) if a.episode.id == episode_id]
    if not found:
        raise ConfigError(f"no episode {episode_id!r} in {place}; `twinmill episodes list` shows what there is")
    return found


def _log(run: str, root: Path) -> EpisodesLog:
    folder, blocks = open_run(run, root)
    return EpisodesLog(open_store(folder, blocks))
