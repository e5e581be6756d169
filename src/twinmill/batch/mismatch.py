"""Trainer against engine: the same tokens' log-probabilities on both sides, summed up as Mismatch records."""

import numpy as np
import numpy.typing as npt

from twinmill.records.samples import Mismatch


def mismatch(log_ratio: npt.NDArray[np.floating]) -> Mismatch:
    """`log_ratio` = trainer - engine log-probability of each sampled token. Computed in double precision.

    Example: log ratios [0, ln 2]: k1 = -ln(2) / 2, k3 = (1 - ln 2) / 2, max_ratio 2, ess = 9 / (2 * 5).
    """
    d = np.asarray(log_ratio, dtype=np.float64)
    if d.size == 0:
        return Mismatch()
    ratio = np.exp(d)
    return Mismatch(
        tokens=int(d.size),
        k1=float(-d.mean()),
        k3=float((ratio - 1 - d).mean()),
        max_ratio=float(ratio.max()),
        max_abs=float(np.abs(d).max()),
        ess=float(ratio.sum() ** 2 / (d.size * (ratio**2).sum())),
    )


def fresh_and_stale(
    log_ratio: npt.NDArray[np.floating], versions: npt.NDArray[np.int64], version: int
) -> tuple[Mismatch, Mismatch]:
    """Tokens sampled at `version` itself (numerics alone) apart from older ones (numerics and staleness).

    Both arrays have one entry per sampled token.
    """
    if log_ratio.shape != versions.shape:
        raise ValueError(f"{log_ratio.shape} log ratios for {versions.shape} versions")
    fresh = versions == version
    return mismatch(log_ratio[fresh]), mismatch(log_ratio[~fresh])
