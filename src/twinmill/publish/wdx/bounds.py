"""How small a change could be: plug-in entropies in bits, the yardsticks h0 and h1 for every codec.

h0: positions as coin flips with the tensor's share of changed elements, differences by their histogram.
h1: the same, with a coin and a histogram for each exponent of the old bits. Both count no tables.
"""

import numpy as np

from .layout import LAYOUTS, Bits, Ints


def h0_bits(before: Bits, after: Bits) -> float:
    """Bits for one tensor (flat arrays, any size)."""
    changed = before != after
    return _coin(len(changed), int(np.count_nonzero(changed))) + _histogram((after - before)[changed])


def h1_bits(before: Bits, after: Bits, dtype: str) -> float:
    """Bits for one tensor whose old bits the reader holds."""
    layout = LAYOUTS[dtype]
    changed = before != after
    exponents = (before >> before.dtype.type(layout.shift)).astype(np.int64) & (layout.exponents - 1)
    seen = np.bincount(exponents, minlength=layout.exponents)
    moved = exponents[changed]
    hits = np.bincount(moved, minlength=layout.exponents)
    moves = (after - before)[changed]
    positions = sum(_coin(int(n), int(k)) for n, k in zip(seen, hits))
    return positions + sum(_histogram(moves[moved == e]) for e in np.flatnonzero(hits))


def _coin(flips: int, heads: int) -> float:
    return _plogp(np.array([flips])) - _plogp(np.array([heads, flips - heads]))


def _histogram(values: Bits) -> float:
    counts = np.unique(values, return_counts=True)[1]
    return _plogp(np.array([len(values)])) - _plogp(counts)


def _plogp(counts: Ints) -> float:
    counts = counts[counts > 0].astype(np.float64)
    return float((counts * np.log2(counts)).sum())
