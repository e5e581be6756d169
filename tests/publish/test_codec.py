import struct
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.publish.codec import CODECS, CodecError, Gaps
from twinmill.publish.tensors import bits_of

WIDTHS = [np.uint8, np.uint16, np.uint32, np.uint64]


@st.composite
def changes(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """(before, after): any bits, any share of them changed, steps small and large."""
    dtype = draw(st.sampled_from(WIDTHS))
    size = draw(st.integers(0, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    before = rng.integers(0, np.iinfo(dtype).max, size, dtype, endpoint=True)
    after = before.copy()
    touched = rng.random(size) < draw(st.sampled_from([0.0, 0.01, 0.3, 1.0]))
    small = rng.integers(-3, 4, size).astype(dtype)
    large = rng.integers(0, np.iinfo(dtype).max, size, dtype, endpoint=True)
    after[touched] += np.where(rng.random(size) < 0.7, small, large)[touched]
    return before, after


@settings(deadline=None)
@given(changes())
def test_every_codec_is_exact(pair: tuple[np.ndarray, np.ndarray]) -> None:
    before, after = pair
    kept = before.copy()
    for name in ("raw", "gaps"):
        decoded = CODECS[name].decode(before, CODECS[name].encode(before, after))
        assert decoded.dtype == after.dtype
        assert np.array_equal(decoded, after), name
    assert np.array_equal(before, kept), "decoding never touches the base"
    assert np.array_equal(CODECS["same"].decode(before, CODECS["same"].encode(before, before)), before)


SPECIALS = {
    np.float32: [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 3.4e38],
    np.float64: [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 5e-324],
}


@pytest.mark.parametrize("kind", SPECIALS)
def test_zeros_infinities_and_nan_payloads_survive(kind: Any) -> None:
    values = np.array(SPECIALS[kind], kind)
    bits = bits_of(values).copy()
    bits[4] |= 0x1234  # a NaN with a payload
    for before in (np.zeros_like(bits), np.roll(bits, 1), ~bits):
        assert np.array_equal(CODECS["gaps"].decode(before, CODECS["gaps"].encode(before, bits)), bits)


def test_gaps_of_every_width() -> None:
    for size, width in ((200, 1), (60_000, 2), (70_000, 4)):
        before = np.zeros(size, np.uint16)
        after = before.copy()
        after[-1] = 9
        payload = Gaps().encode(before, after)
        assert payload[0] == width
        assert np.array_equal(Gaps().decode(before, payload), after)


def test_a_small_change_is_small() -> None:
    """What RL does: one weight in a hundred moves, mostly by one unit in the last place."""
    rng = np.random.default_rng(0)
    before = rng.integers(0, 1 << 16, 1 << 18, np.uint16)
    after = before.copy()
    where = rng.choice(before.size, before.size // 75, replace=False)
    after[where] += rng.choice(np.array([1, 65535, 2], np.uint16), len(where), p=[0.475, 0.475, 0.05])
    payload = Gaps().encode(before, after)
    assert before.nbytes / len(payload) > 95
    assert len(payload) * 8 / len(where) < 12.5


def _forged(width: int, count: int, body: bytes) -> bytes:
    return struct.pack("<BQ", width, count) + zstandard.ZstdCompressor().compress(body)


BASE = np.arange(100, dtype=np.uint16)
LIES = {
    "head cut": b"\x01",
    "gap width 3": _forged(3, 1, b"\0" * 5),
    "more changes than elements": _forged(1, 101, b"\0" * 303),
    "an absurd number of changes": struct.pack("<BQ", 1, 1 << 62) + zstandard.ZstdCompressor().compress(b""),
    "body too short": _forged(1, 4, b"\0" * 11),
    "body too long": _forged(1, 4, b"\0" * 13),
    "position behind the end": _forged(1, 1, b"\x64\x01\0"),
    "gaps that add up behind the end": _forged(1, 2, b"\x40\x40\x01\x01\0\0"),
    "a gap that wraps": _forged(8, 1, b"\xff" * 8 + b"\x01\0"),
    "no zstd": struct.pack("<BQ", 1, 1) + b"not a frame",
    "frame cut": _forged(1, 90, bytes(range(90)) * 3)[:-4],
    "bytes behind the frame": _forged(1, 1, b"\0\x01\0") + b"more",
    "size not stated": struct.pack("<BQ", 1, 1)
    + zstandard.ZstdCompressor(write_content_size=False).compress(b"\0\1\0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_payloads_that_lie_are_refused(lie: str) -> None:
    kept = BASE.copy()
    with pytest.raises(CodecError):
        Gaps().decode(BASE, LIES[lie])
    assert np.array_equal(BASE, kept)


def test_a_frame_that_would_fill_the_memory_is_refused_unread() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    assert len(bomb) < 1 << 14
    with pytest.raises(CodecError, match="claims 67108864 bytes, 3 are wanted"):
        Gaps().decode(BASE, struct.pack("<BQ", 1, 1) + bomb)


@settings(deadline=None, max_examples=300)
@given(changes(), st.data())
def test_damaged_payloads_give_an_error_or_bits_never_anything_else(
    pair: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    """What an error misses here, the digests of object and tensor see."""
    before, after = pair
    payload = bytearray(Gaps().encode(before, after))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    for damaged in (bytes(payload), cut):
        kept = before.copy()
        try:
            decoded = Gaps().decode(before, damaged)
        except CodecError:
            continue
        finally:
            assert np.array_equal(before, kept)
        assert (decoded.dtype, decoded.shape) == (before.dtype, before.shape)


def test_raw_and_same_check_their_lengths() -> None:
    with pytest.raises(CodecError, match="199 bytes for a tensor of 200"):
        CODECS["raw"].decode(BASE, bytes(199))
    with pytest.raises(CodecError, match="1 bytes where none"):
        CODECS["same"].decode(BASE, b"x")
    with pytest.raises(ValueError, match="two different"):
        CODECS["same"].encode(BASE, BASE + np.uint16(1))


def test_raw_bits_at_an_odd_place_are_aligned() -> None:
    data = memoryview(b"x" + BASE.tobytes())[1:]
    decoded = CODECS["raw"].decode(BASE, data)
    assert decoded.flags.aligned
    assert np.array_equal(decoded, BASE)
