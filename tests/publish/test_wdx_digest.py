"""The digest follows changes, and sees what XOR, sums and checksums of the wire miss."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.publish import wdx
from twinmill.publish.wdx import reference
from twinmill.publish.wdx.bounds import h0_bits, h1_bits
from twinmill.publish.wdx.native import using

from .wdx_toys import BACKENDS, tile, tiles


@pytest.mark.parametrize("name", BACKENDS)
@settings(deadline=None, max_examples=80)
@given(tiles())
def test_advancing_is_computing_anew(name, pair) -> None:
    _, before, after = pair
    with using(name):
        patch = wdx.compare(before, after)
        assert wdx.advance(wdx.digest(before), patch) == wdx.digest(after)
        assert wdx.advance(wdx.digest(after), patch.undo()) == wdx.digest(before)
    with using("reference"):
        expected = wdx.digest(after)
    with using(name):
        assert wdx.digest(after) == expected
        assert len(expected) == wdx.DIGEST_BYTES
        assert (wdx.digest(before) == expected) == (before.tobytes() == after.tobytes())


@pytest.mark.parametrize("name", BACKENDS)
@settings(deadline=None, max_examples=80)
@given(st.integers(2, 3000), st.integers(0, 2**32), st.sampled_from(["BF16", "U8", "F32"]))
def test_exchanges_are_seen(name, size, seed, dtype) -> None:
    bits, _ = tile(dtype, size, 0.0, seed)
    rng = np.random.default_rng(seed)
    start = rng.integers(0, size, 2)
    pair, turned, blocks = bits.copy(), np.roll(bits, 1), bits.copy()
    pair[start] = pair[start[::-1]]
    half = size // 2
    blocks[:half], blocks[half : 2 * half] = bits[half : 2 * half], bits[:half]
    with using(name):
        for other in (pair, turned, blocks, rng.permutation(bits), bits[::-1].copy()):
            assert (wdx.digest(other) == wdx.digest(bits)) == np.array_equal(other, bits)


def test_length_and_width_are_part_of_it() -> None:
    zeros = {wdx.digest(np.zeros(n, kind)) for n in (1, 2, 64, 65) for kind in (np.uint8, np.uint16, np.uint32)}
    assert len(zeros) == 12


def test_a_patch_twice_or_on_the_wrong_base_is_seen() -> None:
    before, after = tile("BF16", 2000, 0.05, seed=1)
    patch = wdx.compare(before, after)
    once = wdx.advance(wdx.digest(before), patch)
    assert wdx.advance(once, patch) != once
    with pytest.raises(ValueError, match="want 16"):
        wdx.advance(once[:8], patch)


def test_the_keys_of_all_positions_differ_and_none_is_zero() -> None:
    """So that no single change and no single exchange can be missed, in either half."""
    for keys in reference._keys(np.arange(wdx.TILE_MAX)):
        assert keys.min() > 0
        assert keys.max() < 1 << 32
        assert len(np.unique(keys)) == wdx.TILE_MAX


def test_bounds_of_a_fair_coin_and_of_nothing() -> None:
    rng = np.random.default_rng(0)
    before = rng.integers(0, 1 << 16, 1 << 16, np.uint16)
    after = before + rng.integers(0, 2, before.size).astype(np.uint16)
    assert h0_bits(before, after) == pytest.approx(before.size, rel=1e-3)
    assert h1_bits(before, after, "BF16") == pytest.approx(before.size, rel=5e-3)
    assert h0_bits(before, before) == h1_bits(before, before, "BF16") == 0.0
    flipped = before ^ np.uint16(1)  # every one changes, up or down by one unit
    assert h0_bits(before, flipped) == pytest.approx(before.size, rel=1e-3)


def test_the_exponent_tells_where_changes_are() -> None:
    before, _ = tile("BF16", 1 << 16, 0.0, seed=0)
    after = before + ((before >> 7 & 0xFF) < 121).astype(np.uint16)
    assert h1_bits(before, after, "BF16") == 0.0
    assert h0_bits(before, after) > 1000
