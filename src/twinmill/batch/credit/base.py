"""What a credit algorithm is: a group's rewards in, one array of per-token advantages per sample out.

Credit is data: the trainer reads Sample.advantages and never learns which algorithm wrote them.
"""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from twinmill.records.samples import F32, Sample

F64 = npt.NDArray[np.float64]


class Scored(NamedTuple):
    """One group with its final rewards. Axis G = attempts, S = samples.

    Example: rewards_G [1., 0.], samples_S (a, b, c), owner_S (0, 1, 1): b and c are two segments of the
    second attempt.
    """

    rewards_G: F64
    """R_i as composed by `credit()`; NaN = no reward: outside every statistic, its tokens get advantage 0"""
    samples_S: tuple[Sample, ...]
    owner_S: tuple[int, ...]


class Algorithm(Protocol):
    def __call__(self, group: Scored) -> list[F32]:
        """Axis S; entry s has one advantage per token of samples_S[s] and 0 where its mask is off."""
        ...


def spread(group: Scored, advantages_G: F64) -> list[F32]:
    """One number per attempt on every sampled token of its whole chain, self-summaries included.

    Not divided by anything: an attempt that sampled more tokens weighs more, as in Dr. GRPO and Composer 2.
    """
    credited = np.nan_to_num(advantages_G, nan=0.0)
    return [
        np.where(sample.mask, credited[owner], 0.0).astype(np.float32)
        for sample, owner in zip(group.samples_S, group.owner_S, strict=True)
    ]
