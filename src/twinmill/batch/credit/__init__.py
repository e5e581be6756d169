"""Credit: from a group's rewards to per-token advantages. One algorithm per file, behind `base.Algorithm`.

R_i = the verdict's reward (task and auxiliary parts) - length penalty - price of poor tool calls - beta * KL; then the
algorithm.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from twinmill.batch.samples import Attempts
from twinmill.records.samples import Sample

from .base import F64, Algorithm, Scored
from .group_mean import group_mean
from .kl_in_reward import kl_k1
from .leave_one_out import leave_one_out
from .length_penalty import LengthPenalty, length_penalty

ALGORITHMS: Mapping[str, Algorithm] = {"group_mean": group_mean, "leave_one_out": leave_one_out}


class Credit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    algorithm: str = "group_mean"
    """how rewards become advantages: group_mean or leave_one_out"""
    kl: float = 0.0
    """beta, reward lost per nat of KL(engine || reference) of a whole episode; 0 = no reference is scored"""
    length: LengthPenalty | None = None
    """None = length costs nothing"""
    tool_error: float = 0.0
    """reward lost per tool call that was the model's own mistake; 0 = mistakes cost nothing"""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm is {self.algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
        if self.kl < 0 or self.tool_error < 0:
            raise ValueError(f"kl is {self.kl}, tool_error {self.tool_error}; both must be at least 0")


class Credited(NamedTuple):
    samples_S: list[Sample]
    """with advantages"""
    rewards_G: F64
    """R_i as the algorithm saw it; NaN = no reward"""
    varied: bool
    """whether the graders' rewards differed: without variance a group teaches nothing"""


def credit(attempts: Attempts, config: Credit) -> Credited:
    """Advantages for one group. Raises ValueError when config.kl is above 0 and a sample has no reference."""
    rewards_G = attempts.rewards_G.copy()
    if config.length is not None:
        rewards_G -= [length_penalty(episode, config.length) for episode in attempts.episodes_G]
    rewards_G -= [config.tool_error * episode.usage.tool_errors for episode in attempts.episodes_G]
    if config.kl > 0:
        rewards_G -= config.kl * kl_k1(attempts.samples_S, attempts.owner_S, len(rewards_G))
    scored = Scored(rewards_G, attempts.samples_S, attempts.owner_S)
    advantages_S = ALGORITHMS[config.algorithm](scored)
    samples_S = [
        msgspec.structs.replace(sample, advantages=advantages)
        for sample, advantages in zip(attempts.samples_S, advantages_S, strict=True)
    ]
    graded = attempts.rewards_G[~np.isnan(attempts.rewards_G)]
    return Credited(samples_S, rewards_G, bool(graded.size and (graded != graded[0]).any()))
