"""Small episodes and samples with toy values."""

import numpy as np

from twinmill.records.base import Ref
from twinmill.records.episodes import (
    Episode,
    Finish,
    Group,
    OpenedBy,
    Segment,
    StopReason,
    Turn,
    Usage,
    Verdict,
    VersionRun,
)
from twinmill.records.samples import Sample
from twinmill.records.tasks import ToolCall


def turn(input_ids, sampled_ids, version=0, *, runs=None, logprob=-0.5, calls=0, index=0):
    runs = ((version, len(sampled_ids)),) if runs is None else runs
    return Turn(
        index=index,
        input_ids=list(input_ids),
        sampled_ids=list(sampled_ids),
        logprobs=[logprob] * len(sampled_ids),
        version_runs=tuple(VersionRun(version=v, count=n) for v, n in runs),
        finish=Finish.STOP,
        tool_calls=tuple(ToolCall(name="run") for _ in range(calls)),
    )


def segment(*turns, index=0, experts: Ref | None = None):
    opened = OpenedBy.SUMMARY if index else OpenedBy.TASK
    return Segment(index=index, opened_by=opened, turns=turns, experts=experts)


def episode(name, *segments, **fields):
    return Episode(
        id=name,
        task_id="toy",
        group_id="0",
        attempt=0,
        segments=segments,
        stop=StopReason.FINISHED,
        versions=(0, 0),
        usage=Usage(),
        cluster="a",
        seed=0,
        **fields,
    )


def group(rewards, episodes=None, slot=0):
    if episodes is None:
        episodes = [episode(f"{slot}-{i}-0", segment(turn([1, 2], [3, 4]))) for i in range(len(rewards))]
    verdicts = [Verdict(episode_id=e.id, scores={}, reward=r) for e, r in zip(episodes, rewards, strict=True)]
    return Group(
        slot=slot,
        task_id="toy",
        size=len(episodes),
        episodes_G=tuple(episodes),
        verdicts_G=tuple(verdicts),
    )


def sample(n, *, name="e", prompt=1, advantage=1.0, version=0, experts=None, seed=0):
    """n tokens of which all but `prompt` were sampled."""
    rng = np.random.default_rng(seed)
    mask = np.arange(n) >= prompt
    return Sample(
        episode_id=name,
        segment=0,
        token_ids=rng.integers(0, 50, n),
        mask=mask,
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        advantages=np.where(mask, advantage, 0.0).astype(np.float32),
        versions=np.where(mask, version, -1),
        experts=experts,
    )
