"""RL: the closed slots of a step as microbatches, and what the step's report says about them.

groups -> samples -> (reference log-probabilities) -> credit -> ages, age limit -> packing
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from twinmill.batch.alarm import by_rule, hacked_G
from twinmill.batch.credit import Credit, credit
from twinmill.batch.drops import SLOT_DROPS, Drop, count
from twinmill.batch.pack import Packing, pack
from twinmill.batch.samples import Attempts, ExpertLoader, MixtureShape, Rejected, assemble
from twinmill.batch.staleness import histogram, mask_old
from twinmill.records.episodes import Group
from twinmill.records.samples import Microbatch, Sample

Scorer = Callable[[Sequence[Sample]], Sequence[Sample]]
"""adds ref_logprobs to samples (train.reference)"""


class Preparation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How groups become microbatches."""

    credit: Credit = Credit()
    """how rewards become advantages"""
    packing: Packing = Packing()
    """how samples share microbatches"""
    replay: bool = True
    """samples without recorded experts are rejected, and the trainer routes as the engine did; off for dense models"""
    tokens_per_episode: float = 64.0
    """the loss denominator is the step's graded episodes times this constant: about the tokens of a usual episode"""

    def __post_init__(self) -> None:
        if self.tokens_per_episode <= 0:
            raise ValueError(f"tokens_per_episode is {self.tokens_per_episode}; it must be above 0")


class Prepared(NamedTuple):
    microbatches: list[Microbatch]
    rejected: tuple[Rejected, ...]
    facts: dict
    """fields of StepReport: samples, reward, groups, varied_frac, staleness, dropped, attempts, hacked, hacked_frac"""


def prepare(
    groups: Sequence[Group],
    version: int,
    config: Preparation,
    load_experts: ExpertLoader,
    age_limit: int | None = None,
    score: Scorer | None = None,
    mixture: MixtureShape | None = None,
) -> Prepared:
    """`version` = of the trainer's weights now; `age_limit` as in batch.window; `score` is for credit.kl above 0;
    `mixture` = what recorded experts must fit."""
    whole = [group for group in groups if group.drop is None]
    attempts = [assemble(group, load_experts if config.replay else None, mixture) for group in whole]
    if config.credit.kl > 0:
        if score is None:
            raise ValueError("credit.kl is above 0, but no reference model was given to score with")
        attempts = [a._replace(samples_S=tuple(score(a.samples_S))) for a in attempts]
    credited = [credit(a, config.credit) for a in attempts]
    samples = [sample for c in credited for sample in c.samples_S]
    young, too_old = mask_old(samples, version, age_limit)
    graded = [reward for a in attempts for reward in a.rewards_G[~np.isnan(a.rewards_G)]]
    packed = pack(young, config.packing, max(len(graded), 1) * config.tokens_per_episode)
    rejected = tuple(r for a in attempts for r in a.rejected)
    hacked = [flag for group in whole for flag in hacked_G(group)]
    facts = {
        "attempts": len(hacked),
        "hacked": by_rule(whole),
        "hacked_frac": sum(hacked) / max(len(hacked), 1),
        "samples": len(samples),
        "reward": float(np.mean(graded)) if graded else None,
        "groups": len(whole),
        "varied_frac": sum(c.varied for c in credited) / max(len(whole), 1),
        "staleness": histogram(samples, version),
        "dropped": count(
            (SLOT_DROPS[group.drop] for group in groups if group.drop is not None),
            (r.reason for r in rejected),
            {Drop.NO_REWARD: _ungraded(attempts), Drop.NO_ADVANTAGE: packed.idle, Drop.TOO_OLD: too_old},
        ),
    }
    return Prepared(packed.microbatches, rejected, facts)


def _ungraded(attempts: Sequence[Attempts]) -> int:
    """Attempts without a reward, apart from those that the audit has dropped."""
    dropped = sum(rejected.reason is Drop.HACK_DROPPED for a in attempts for rejected in a.rejected)
    return sum(int(np.isnan(a.rewards_G).sum()) for a in attempts) - dropped
