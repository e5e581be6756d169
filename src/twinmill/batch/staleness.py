"""How old each sampled token is, in versions, when a step trains it; masking of what is too old."""

from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from twinmill.records.samples import Sample


def ages(sample: Sample, version: int) -> npt.NDArray[np.int64]:
    """Age of each sampled token of `sample` at trainer version `version`; one entry per token under the mask.

    Raises ValueError for a token of a version that the trainer has not reached: a lineage was cut and its
    episodes kept.
    """
    age = version - sample.versions[sample.mask]
    if age.size and age.min() < 0:
        raise ValueError(
            f"episode {sample.episode_id}, segment {sample.segment}: a token of version "
            f"{version - age.min()} meets the trainer at version {version}; its episode belongs to another "
            "lineage"
        )
    return age


def histogram(samples: Iterable[Sample], version: int) -> dict[int, int]:
    """Age in versions -> sampled tokens, youngest first."""
    total: Counter[int] = Counter()
    for sample in samples:
        values, counts = np.unique(ages(sample, version), return_counts=True)
        total.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return {age: total[age] for age in sorted(total)}


def mask_old(samples: Iterable[Sample], version: int, age_limit: int | None) -> tuple[list[Sample], int]:
    """The samples with every token older than `age_limit` versions masked, and how many that were. None = no
    limit.

    The token stays in the context of the younger ones; only its own gradient is given up.
    """
    kept: list[Sample] = []
    masked = 0
    for sample in samples:
        old = np.zeros(len(sample.mask), dtype=np.bool_)
        if age_limit is not None:
            old[sample.mask] = ages(sample, version) > age_limit
        masked += int(old.sum())
        kept.append(msgspec.structs.replace(sample, mask=sample.mask & ~old) if old.any() else sample)
    return kept, masked
