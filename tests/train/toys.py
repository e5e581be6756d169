"""A tiny mixture of experts, and groups that are a pure function of their slot."""

import numpy as np
import torch

from twinmill.model import hf
from twinmill.model.config import ModelConfig
from twinmill.model.parity import Parity
from twinmill.model.transformer import Decoder
from twinmill.records.episodes import (
    Attempt,
    Close,
    DropReason,
    Episode,
    Finding,
    FindingAction,
    Finish,
    OpenedBy,
    Segment,
    StopReason,
    Turn,
    Usage,
    Verdict,
    VersionRun,
)

torch.set_num_threads(1)

TINY = ModelConfig(
    family="qwen3_moe",
    vocab=48,
    width=16,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=8,
    experts=4,
    top_k=2,
    expert_intermediate=8,
    qk_norm=True,
    tied=True,
    max_positions=64,
    init_std=0.3,
)


def tiny(seed: int = 0, parity: Parity = Parity.OFF) -> Decoder:
    return hf.init_decoder(TINY, seed, parity)


def toy_episode(slot: int, attempt: int, version: int) -> Episode:
    """Two turns; lengths differ by slot and attempt."""
    rng = np.random.default_rng((slot, attempt))
    turns = []
    for index in range(2):
        n = int(rng.integers(2, 7))
        turns.append(
            Turn(
                index=index,
                input_ids=rng.integers(0, 48, 4).tolist(),
                sampled_ids=rng.integers(0, 48, n).tolist(),
                logprobs=(-rng.uniform(1, 5, n)).tolist(),
                version_runs=(VersionRun(version=version, count=n),),
                finish=Finish.STOP,
            )
        )
    return Episode(
        id=f"{slot}-{attempt}-0",
        task_id=f"toy/{slot}",
        group_id=str(slot),
        attempt=attempt,
        segments=(Segment(index=0, opened_by=OpenedBy.TASK, turns=tuple(turns)),),
        stop=StopReason.FINISHED,
        versions=(version, version),
        usage=Usage(),
        cluster="a",
        seed=slot,
    )


HACK = Finding(episode_id="toy", rule="clock", severity=0.9, evidence="toy", action=FindingAction.KEEP)


def toy_attempt(slot: int, attempt: int, version: int, hacked: bool = False) -> Attempt:
    episode = toy_episode(slot, attempt, version)
    reward = float((slot + attempt) % 3 == 0)
    verdict = Verdict(episode_id=episode.id, scores={}, reward=reward)
    return Attempt(slot=slot, attempt=attempt, episode=episode, verdict=verdict, findings=(HACK,) if hacked else ())


def close_slot(
    log, slot: int, version: int, size: int = 3, drop: DropReason | None = None, lost: int = 0, hacks: int = 0
) -> None:
    """`hacks`: so many of its attempts are flagged, the first ones."""
    entries = () if drop else tuple(log.append("a", toy_attempt(slot, i, version, i < hacks)) for i in range(size))
    log.close(Close(slot=slot, task_id=f"toy/{slot}", entries_G=entries, drop=drop, lost=lost))
