"""How much of a model a step changes, and how few bits can say so: from the exponents of its weights alone.

The stored value of a weight in binade e (2^e <= |w| < 2^(e+1)) has neighbours at a distance of one unit, 2^(e-7) in bf16. An
optimizer step moves its fp32 master by u * lr, that is by x = u * lr / unit units. A master lies anywhere between two roundings,
so the stored value moves by k units with probability E[max(0, 1 - |x - k|)]. With u normal, of mean magnitude as measured, that
is a second difference of a Gaussian integral, and the share that changes at all is, with mu = E|x|,

    P(mu) = mu (1 - exp(-1 / (pi mu^2))) + erfc(1 / (mu sqrt(pi)))        about min(1, mu), rounded off where it saturates

Who decodes knows the old weight, hence its binade, so the fewest bits that a change can take are the entropy of k given the
binade, averaged over the binades ("H1"). Against real RL updates of SmolLM2-135M (AdamW; two scales of the weights; lr 1e-6,
3e-6 and 1e-5) both numbers come out within 1.5 %: 0.22 to 8.7 % changed, 7.9 to 5.1 bits per change. docs/LOG.md has the table.

The first step after a 16-bit checkpoint ("cold") is another law: masters sit exactly on stored values, and Adam's first |u| is
|g| / (|g| + eps), nearly 1. So the binade tells almost everything: whole binades change, others do not, at 2 bits per change.

The same holds for what is quantised, with another unit: e4m3 has 3 bits of mantissa, e2m1 has 1, and both have a smallest
exponent relative to their block's scale, below which a weight changes only by passing half of it, or zero (+0 and -0 are two
codes). Against counted changes of synthetic masters: fp8 within 15 %, fp4 within 30 %, at a cold step within 50 %.
"""

from collections.abc import Sequence
from math import ceil, erf, erfc, exp, floor, log2, pi, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_NORMAL = NormalDist()
Floats = npt.NDArray[np.float64]

SATURATED = 50.0
"""mu from which everything changes, and an integer's entropy is that of the Gaussian that it was rounded from"""
COLD_RATIO, COLD_U = 0.06, 0.86
"""eps over the typical gradient at a cold step, and the mean |u| which that gives. Chosen to fit the one measured first step
(SmolLM2, 3.7 % changed, 1.94 bits per change), where the scales of gradients are unknown."""


class Binades(NamedTuple):
    """Which share of the weights lies in which binade."""

    lowest: int
    shares: tuple[float, ...]
    """of [2^(lowest + i), 2^(lowest + i + 1)); sums to 1"""

    @classmethod
    def counted(cls, lowest: int, counts: Sequence[float]) -> "Binades":
        total = sum(counts)
        return cls(lowest, tuple(count / total for count in counts))

    def scaled(self, octaves: float) -> "Binades":
        """Of the weights times 2^octaves. Within a binade, logarithms of weights are taken to be spread evenly."""
        whole = floor(octaves)
        up = octaves - whole
        low, high = (*self.shares, 0.0), (0.0, *self.shares)
        return Binades(self.lowest + whole, tuple((1 - up) * a + up * b for a, b in zip(low, high, strict=True)))

    def octave_at(self, frac: float) -> float:
        """log2 of the magnitude below which `frac` of the weights are."""
        below = 0.0
        for i, share in enumerate(self.shares):
            if below + share >= frac and share:
                return self.lowest + i + (frac - below) / share
            below += share
        return float(self.lowest + len(self.shares))


TRAINED = Binades.counted(
    -18,
    (2.2, 4.4, 8.7, 17.4, 34.6, 68.6, 133, 248, 490, 1006, 2022, 4017, 7912, 14955, 24836, 28586, 14277, 1350, 27, 1),
)
"""SmolLM2-135M, all weights: a Gaussian of mixed scales, whose lower tail halves per binade. Median |w| 0.108."""


def typical(median_w: float) -> Binades:
    """What a trained model looks like whose weights have this median magnitude."""
    return TRAINED.scaled(log2(median_w) - TRAINED.octave_at(0.5))


class Grid(NamedTuple):
    """The values that a stored weight can have: spacing 2^(max(binade, smallest) - mantissa_bits)."""

    mantissa_bits: int
    smallest: int
    """binade of the smallest normal value"""
    block: int = 1
    """weights that share a scale; 1 = there is none"""
    largest: float = 1.0
    """value to which the largest weight of a block is scaled"""
    power_of_two: bool = False
    """scales are rounded up to powers of two, so by half an octave on average"""
    flips: float = 1.0
    """by which factor changes of scales add to what changes, as a block is then quantised anew"""

    def unit(self, binade: int) -> float:
        """Distance of the roundings that a weight of this binade meets. Below half the smallest value there is none, and the
        one at that half belongs to the binades on both sides."""
        below = self.smallest - self.mantissa_bits - 2 - binade
        if below > 0:
            return float("inf")
        return 2.0 ** (max(binade, self.smallest) - self.mantissa_bits - (below == 0))

    def of(self, binades: Binades) -> Binades:
        """The weights in units of their blocks' scales. Within a block they are taken to be normal, so that its largest is a
        known multiple of its median (2.0 sigma of 16 weights, 4.1 of 16384)."""
        if self.block == 1:
            return binades
        top = _NORMAL.inv_cdf((1 + 0.5 ** (1 / self.block)) / 2) / _NORMAL.inv_cdf(0.75)
        return binades.scaled(log2(self.largest / top) - binades.octave_at(0.5) - 0.5 * self.power_of_two)


BF16_GRID = Grid(7, -126)


class Change(NamedTuple):
    """What one step does."""

    density: float
    """share of the elements whose stored bits change"""
    bits_per_param: float
    """the fewest that can say what changed and how, given the old weights"""

    @property
    def bits_per_change(self) -> float:
        return self.bits_per_param / self.density if self.density else 0.0


def predict(binades: Binades, grid: Grid, lr: float, mean_u: float, *, cold: bool = False) -> Change:
    """One optimizer step on weights of this distribution. mean_u: mean |step| / lr; a cold step has its own."""
    inside = grid.of(binades)
    # what a scale divides, it divides everywhere: weights, units and steps
    step = lr * 2.0 ** (inside.octave_at(0.5) - binades.octave_at(0.5))
    density = bits = 0.0
    for binade, share in enumerate(inside.shares, inside.lowest):
        unit = grid.unit(binade)
        if not cold:
            moved, entropy = _warm(mean_u * step / unit)
        elif grid.block == 1:
            moved, entropy = _cold(step / unit)
        else:  # values of the 16-bit checkpoint lie anywhere between two of the quantised ones
            before = 2.0 ** (binade - BF16_GRID.mantissa_bits)
            moved, entropy = _warm(_cold_distance(step / before) * before / unit)
        if grid.block > 1:  # 0 and -0 differ, too
            crossed = _crossing(COLD_U * step if cold else mean_u * step, 1.44 * 2.0**binade)
            moved, entropy = moved + crossed * (1 - moved), entropy + _entropy(crossed, np.array([crossed])) - crossed
        density, bits = density + share * moved, bits + share * entropy
    flips = 1.0 if cold else grid.flips  # a cold step is too small for the large weights that scales are made of
    return Change(min(density * flips, 1.0), bits * flips)


def _crossing(mean_step: float, distance: float) -> float:
    """Chance that a step passes zero from `distance` away."""
    return 0.5 * erfc(distance / (mean_step * sqrt(pi)))


def merged(first: Change, share: float, second: Change) -> Change:
    """Of a model of which `share` changes like `second`, the rest like `first`."""
    return Change(*((1 - share) * a + share * b for a, b in zip(first, second, strict=True)))


def rare_use(use: float) -> float:
    """By which factor mean |u| under Adam falls when only `use` of the steps bring a gradient, as to a rarely routed expert.

    A gradient that comes rarely is large against sqrt(v), but its momentum fades within 1 / (1 - 0.9) steps. Within 4 % of a
    simulation for all use in [0.01, 1].
    """
    return 1 / sqrt(1 + (1 - use) / (19 * use))


def _warm(mu: float) -> tuple[float, float]:
    """(share that moves, entropy of the move in bits) for normal steps of mean magnitude `mu` units."""
    if mu <= 0:
        return 0.0, 0.0
    sigma = mu * sqrt(pi / 2)
    if mu > SATURATED:
        return 1.0, 0.5 * log2(2 * pi * exp(1) * sigma**2)
    moved = mu * (1 - exp(-1 / (pi * mu * mu))) + erfc(1 / (mu * sqrt(pi)))
    # E[(|x| - t)+]; its second difference is the chance of a move by t units, either way
    beyond = np.array([_beyond(t / sigma) * sigma for t in range(ceil(12 * sigma) + 4)])
    return moved, _entropy(moved, beyond[2:] - 2 * beyond[1:-1] + beyond[:-2])


def _beyond(z: float) -> float:
    return sqrt(2 / pi) * exp(-z * z / 2) - z * erfc(z / sqrt(2))


def _cold(largest: float) -> tuple[float, float]:
    """The same for masters that sit on stored values and steps of `largest` * |g| / (|g| + eps) units, g normal."""
    below = _cold_below(largest)
    if not below:
        return 0.0, 0.0
    return 1 - below[0], _entropy(1 - below[0], np.diff([*below, 1.0]))


def _cold_distance(largest: float) -> float:
    """Mean number of units moved."""
    return sum(1 - chance for chance in _cold_below(largest))


def _cold_below(largest: float) -> list[float]:
    """Chance of moving by at most 0, 1, 2, ... units."""
    edges = [(k + 0.5) / largest for k in range(min(floor(largest + 0.5), 4000))]
    return [erf(COLD_RATIO * u / (1 - u) / sqrt(2)) if u < 1 else 1.0 for u in edges]


def _entropy(moved: float, by_distance: Floats) -> float:
    """Bits: whether, how far, and which way (one bit, as both are as likely)."""
    chances = np.append(by_distance, 1 - moved)
    chances = chances[chances > 0]
    return float(-(chances * np.log2(chances)).sum()) + moved
