"""Tiles of every kind that a codec may meet, and the machine's backends."""

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from twinmill.publish.wdx.layout import LAYOUTS
from twinmill.publish.wdx.native import backends

BACKENDS = backends()
FAST = BACKENDS[:-1]
"""native paths; empty without the extension"""
Array = npt.NDArray
DTYPE_OF_WIDTH = {1: np.uint8, 2: np.uint16, 4: np.uint32}
SHARES = (0.0, 0.001, 0.013, 0.1, 0.3, 0.5, 0.9, 0.99, 1.0)


def unsigned(dtype: str) -> type:
    return DTYPE_OF_WIDTH[LAYOUTS[dtype].width]


def tile(
    dtype: str, size: int, share: float, seed: int, small: float = 0.8, spread: str = "weights"
) -> tuple[Array, Array]:
    """(before, after): `share` of the elements differ, `small` of these by a few units in the last place.

    spread: weights = exponents as of trained weights; any = any bits at all; same = one value everywhere.
    """
    rng = np.random.default_rng(seed)
    kind = unsigned(dtype)
    top = np.iinfo(kind).max
    if spread == "same":
        before = np.full(size, rng.integers(0, top, endpoint=True), kind)
    else:
        before = rng.integers(0, top, size, kind, endpoint=True)
    layout = LAYOUTS[dtype]
    if spread == "weights" and layout.exponents > 1:
        exponent = np.maximum(layout.exponents // 2 - 2 - rng.geometric(0.5, size), 0).astype(kind)
        field = kind((layout.exponents - 1) << layout.shift)
        before = (before & ~field) | exponent << kind(layout.shift)
    after = before.copy()
    moved = rng.random(size) < share
    steps = rng.choice(np.array([1, -1, 2, -2, 3, -5]), size).astype(kind)
    leaps = rng.integers(1, top, size, kind, endpoint=True)
    after[moved] += np.where(rng.random(size) < small, steps, leaps)[moved]
    return before, after


@st.composite
def tiles(draw: st.DrawFn, most: int = 700) -> tuple[str, Array, Array]:
    """(dtype, before, after)"""
    dtype = draw(st.sampled_from(sorted(LAYOUTS)))
    size = draw(st.one_of(st.sampled_from([1, 2, 3, 63, 64, 65, 128, 255, 256, 257]), st.integers(1, most)))
    share = draw(st.sampled_from(SHARES))
    spread = draw(st.sampled_from(["weights", "any", "same"]))
    before, after = tile(
        dtype, size, share, draw(st.integers(0, 2**32)), draw(st.sampled_from([0.0, 0.8, 1.0])), spread
    )
    return dtype, before, after


def specials(dtype: str) -> Array:
    """Zeros of both signs, infinities, NaNs with payloads, the least and the largest, in every dtype's bits."""
    layout = LAYOUTS[dtype]
    kind = unsigned(dtype)
    sign = 1 << (8 * layout.width - 1)
    exponent = (layout.exponents - 1) << layout.shift
    mantissa = (1 << layout.shift) - 1
    positive = [
        0,
        1,
        mantissa,
        exponent,
        exponent | 1,
        exponent | mantissa,
        exponent | mantissa >> 1,
        1 << layout.shift,
    ]
    return np.array([value | s for value in positive for s in (0, sign)], np.uint64).astype(kind)
