"""Groups -> samples: what was sampled, one array position per token. Nothing is re-tokenized, padded or cut.

Two kinds of fault, two answers. A record that contradicts itself (unequal lengths, versions that run
backwards) is a bug upstream and raises SampleError with the episode's id: the trainer stops. A segment that
lacks what this run asks for (recorded experts under router replay) is left out, by name, and counted; its
episode's reward still counts in its group.

What the audit found is applied here, before credit: a dropped attempt has no reward and no samples, a masked one has a
reward and no samples. A reward that the audit set to 0 is 0 in the verdict already.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twinmill.records.base import Ref
from twinmill.records.episodes import Episode, Finding, FindingAction, Group, Segment, Turn, joined_runs
from twinmill.records.samples import Sample

from .drops import Drop

U16 = npt.NDArray[np.uint16]
OUT = frozenset((FindingAction.DROP, FindingAction.QUARANTINE))
"""actions that take an attempt out of its group"""


class Lost(NamedTuple):
    """Recorded experts that cannot be had."""

    why: str


ExpertLoader = Callable[[Ref], npt.NDArray[np.unsignedinteger] | Lost]
"""fetches a segment's recorded experts [positions, layers, top_k]"""


class MixtureShape(NamedTuple):
    """What recorded experts must fit."""

    layers: int
    """mixture layers"""
    top_k: int
    experts: int


class SampleError(ValueError):
    """A record that contradicts itself. The message names episode, segment and turn."""


class Rejected(NamedTuple):
    """A segment that cannot be trained in this run."""

    episode_id: str
    segment: int
    reason: Drop
    detail: str


class Attempts(NamedTuple):
    """One group as credit sees it. Axis G = attempts, axis S = samples (one per segment that can be trained).

    Example: two attempts, the second with a self-summary: rewards_G [1., 0.], owner_S [0, 1, 1].
    """

    slot: int
    episodes_G: tuple[Episode, ...]
    rewards_G: npt.NDArray[np.float64]
    """NaN = no reward: outside the group's statistics"""
    samples_S: tuple[Sample, ...]
    """advantages still 0"""
    owner_S: tuple[int, ...]
    """samples_S[s] is a segment of episodes_G[owner_S[s]]"""
    rejected: tuple[Rejected, ...] = ()


def assemble(group: Group, experts: ExpertLoader | None = None, mixture: MixtureShape | None = None) -> Attempts:
    """The group's samples and rewards. `experts` fetches a recorded choice; None = no router replay. `mixture`: of the model
    that is trained; None = any.

    Raises SampleError on records that contradict themselves, ValueError on a dropped group.
    """
    if group.drop is not None:
        raise ValueError(f"slot {group.slot} was dropped ({group.drop.value}); it has no samples")
    if not len(group.episodes_G) == len(group.verdicts_G) == group.size:
        raise SampleError(
            f"slot {group.slot}: size {group.size}, but {len(group.episodes_G)} episodes and "
            f"{len(group.verdicts_G)} verdicts"
        )
    if len(group.findings_G) not in (0, group.size):
        raise SampleError(f"slot {group.slot}: size {group.size}, but findings of {len(group.findings_G)} attempts")
    samples: list[Sample] = []
    owners: list[int] = []
    rejected: list[Rejected] = []
    rewards = np.full(group.size, np.nan)
    for attempt, (episode, verdict) in enumerate(zip(group.episodes_G, group.verdicts_G, strict=True)):
        if verdict.episode_id != episode.id:
            raise SampleError(f"slot {group.slot}: verdict of {verdict.episode_id} beside episode {episode.id}")
        _check_versions(episode)
        actions = {finding.action for finding in findings_of(group, attempt)}
        if verdict.reward is not None and episode.error is None and not actions & OUT:
            rewards[attempt] = verdict.reward
        if actions & OUT:
            rejected.append(Rejected(episode.id, 0, Drop.HACK_DROPPED, _named(group, attempt)))
            continue
        if FindingAction.MASK in actions:
            rejected.append(Rejected(episode.id, 0, Drop.HACK_MASKED, _named(group, attempt)))
            continue
        for segment in episode.segments:
            if not any(turn.sampled_ids for turn in segment.turns):
                continue
            sample = _sample(episode.id, segment, experts, mixture)
            if isinstance(sample, Rejected):
                rejected.append(sample)
            else:
                samples.append(sample)
                owners.append(attempt)
    return Attempts(group.slot, group.episodes_G, rewards, tuple(samples), tuple(owners), tuple(rejected))


def findings_of(group: Group, attempt: int) -> tuple[Finding, ...]:
    return group.findings_G[attempt] if group.findings_G else ()


def _named(group: Group, attempt: int) -> str:
    return "; ".join(f"{finding.rule}: {finding.evidence}" for finding in findings_of(group, attempt))


def _sample(
    episode_id: str, segment: Segment, experts: ExpertLoader | None, mixture: MixtureShape | None
) -> Sample | Rejected:
    for turn in segment.turns:
        _check_turn(episode_id, segment.index, turn)
    turns = segment.turns
    token_ids = np.array([i for turn in turns for i in (*turn.input_ids, *turn.sampled_ids)], dtype=np.int64)
    mask = np.array(
        [m for turn in turns for m in (*[False] * len(turn.input_ids), *[True] * len(turn.sampled_ids))],
        dtype=np.bool_,
    )
    if mask[0]:
        raise SampleError(f"episode {episode_id}, segment {segment.index}: its first token was sampled from no context")
    logprobs = np.zeros(len(token_ids), dtype=np.float32)
    logprobs[mask] = [x for turn in turns for x in turn.logprobs]
    versions = np.full(len(token_ids), -1, dtype=np.int64)
    runs = joined_runs(run for turn in turns for run in turn.version_runs)
    versions[mask] = [run.version for run in runs for _ in range(run.count)]
    if not np.isfinite(logprobs).all():
        raise SampleError(f"episode {episode_id}, segment {segment.index}: a log-probability is not finite")
    chosen: U16 | None = None
    if experts is not None:
        found = _experts(episode_id, segment, len(token_ids), experts, mixture)
        if isinstance(found, Rejected):
            return found
        chosen = found
    return Sample(
        episode_id=episode_id,
        segment=segment.index,
        token_ids=token_ids,
        mask=mask,
        logprobs=logprobs,
        advantages=np.zeros(len(token_ids), dtype=np.float32),
        versions=versions,
        experts=chosen,
        version_runs=runs,
    )


def _experts(
    episode_id: str, segment: Segment, n: int, load: ExpertLoader, mixture: MixtureShape | None
) -> U16 | Rejected:
    """[n - 1, layers, top_k]: every position that was fed to the model. The last sampled token never was."""

    def rejected(reason: Drop, detail: str) -> Rejected:
        return Rejected(episode_id, segment.index, reason, detail)

    if segment.experts is None:
        return rejected(Drop.NO_EXPERTS, "no experts were recorded")
    array = load(segment.experts)
    if isinstance(array, Lost):
        return rejected(Drop.NO_EXPERTS, f"{segment.experts.key}: {array.why}")
    if array.ndim != 3 or array.shape[0] != n - 1:
        detail = f"experts of shape {array.shape} do not cover the {n - 1} positions of {n} tokens"
        return rejected(Drop.MISALIGNED_EXPERTS, detail)
    if mixture is not None and (array.shape[1:] != mixture[:2] or int(array.max(initial=0)) >= mixture.experts):
        chosen = f"{array.shape[2]} experts up to number {int(array.max(initial=0))} in {array.shape[1]} layers"
        detail = f"{chosen} were recorded; the model has {mixture.top_k} of {mixture.experts} in {mixture.layers}"
        return rejected(Drop.MISALIGNED_EXPERTS, detail)
    return np.ascontiguousarray(array, dtype=np.uint16)


def _check_turn(episode_id: str, segment: int, turn: Turn) -> None:
    sampled = len(turn.sampled_ids)
    stamped = sum(run.count for run in turn.version_runs)
    if not sampled == len(turn.logprobs) == stamped:
        raise SampleError(
            f"episode {episode_id}, segment {segment}, turn {turn.index}: {sampled} sampled ids, "
            f"{len(turn.logprobs)} logprobs, {stamped} tokens with a version; the three must be equal"
        )


def _check_versions(episode: Episode) -> None:
    """Versions never decrease within an episode (summaries included), and every sampled token has one."""
    last = 0
    for segment in episode.segments:
        for run in (run for turn in segment.turns for run in turn.version_runs):
            if run.version < last or run.count < 0:
                raise SampleError(
                    f"episode {episode.id}, segment {segment.index}: {run.count} tokens of version "
                    f"{run.version} after version {last}; versions never decrease within an episode"
                )
            last = run.version
