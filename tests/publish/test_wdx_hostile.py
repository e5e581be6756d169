"""Bytes that lie: an error or a patch within the tile, never anything else, and never a touched base."""

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.publish import wdx
from twinmill.publish.wdx import CodecError, Kind, Statistics, Tables
from twinmill.publish.wdx.native import using
from twinmill.publish.wdx.rans import LOW

from .wdx_toys import BACKENDS, FAST, tile, tiles

BEFORE, AFTER = tile("BF16", 5000, 0.03, seed=11)
TABLES = wdx.fit(BEFORE, AFTER, "BF16")


def outcome(name: str, before: np.ndarray, payload: bytes, tables: Tables) -> object:
    """The patch's bytes, or CodecError."""
    kept = before.tobytes()
    with using(name):
        try:
            patch = wdx.decode_tile(before, payload, tables)
        except CodecError:
            return CodecError
        finally:
            assert before.tobytes() == kept
    assert len(patch) == 0 or int(patch.index.max()) < before.size
    assert (np.diff(patch.index.astype(np.int64)) > 0).all()
    assert (patch.old != patch.new).all()
    return patch.index.tobytes(), patch.old.tobytes(), patch.new.tobytes()


@pytest.mark.parametrize("name", BACKENDS)
@settings(deadline=None, max_examples=150)
@given(tiles(300), st.sampled_from([Kind.CLASSES, Kind.FLAT, Kind.PLANES]), st.data())
def test_damaged_payloads(name, pair, kind, data) -> None:
    """Every reader takes the same damaged bytes for the same patch, or refuses them."""
    dtype, before, after = pair
    tables = wdx.fit(before, after, dtype)
    payload = bytearray(wdx.encode_tile(before, after, tables, {kind, Kind.EMPTY}))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = payload[: data.draw(st.integers(0, len(payload)))]
    for damaged in (bytes(payload), bytes(cut), bytes(payload + cut)):
        assert outcome(name, before, damaged, tables) == outcome("reference", before, damaged, tables)


@pytest.mark.parametrize("name", BACKENDS)
@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=60), st.sampled_from([3, 4]), st.integers(1, 200))
def test_random_bytes(name, noise, kind, size) -> None:
    payload = bytes([kind]) + noise
    assert outcome(name, BEFORE[:size], payload, TABLES) == outcome("reference", BEFORE[:size], payload, TABLES)


@pytest.mark.parametrize("name", FAST or BACKENDS)
@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.FLAT])
def test_every_flipped_bit_and_every_cut_of_one_payload(name, kind) -> None:
    before, after = BEFORE[:900].copy(), AFTER[:900].copy()
    payload = wdx.encode_tile(before, after, TABLES, {kind})
    start, end = wdx.digest(before), wdx.digest(after)
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with using(name):
            try:
                patch = wdx.decode_tile(before, bytes(damaged), TABLES)
            except CodecError:
                continue
        assert wdx.advance(start, patch) != end, "what the codec misses the digest sees"
    for length in range(len(payload)):
        assert outcome(name, before, payload[:length], TABLES) is CodecError


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("share", [0.002, 0.03, 0.4, 0.99])
def test_a_wrong_base_is_an_error_or_seen_by_the_digest(name, share) -> None:
    before, after = tile("BF16", 3000, share, seed=4)
    tables = wdx.fit(before, after, "BF16")
    payload = wdx.encode_tile(before, after, tables, {Kind.CLASSES})
    end = wdx.digest(after)
    rng = np.random.default_rng(0)
    for _ in range(40):
        wrong = before.copy()
        wrong[rng.integers(wrong.size)] ^= np.uint16(1 << rng.integers(16))
        with using(name):
            try:
                patch = wdx.decode_tile(wrong, payload, tables)
            except CodecError:
                continue
        assert wdx.advance(wdx.digest(wrong), patch) != end


def states(*states: int) -> bytes:
    return np.array(states, "<u4").tobytes()


LIES = {
    "nothing": b"",
    "an unknown kind": b"\x07",
    "an empty tile with bytes": b"\x00\x00",
    "a raw tile too short": b"\x01" + bytes(9999),
    "a raw tile too long": b"\x01" + bytes(10001),
    "planes that are no frame": b"\x02rubbish",
    "planes of another size": b"\x02" + zstandard.ZstdCompressor().compress(bytes(9998)),
    "planes that would fill the memory": b"\x02" + zstandard.ZstdCompressor().compress(bytes(64 << 20)),
    "planes with bytes behind": b"\x02" + zstandard.ZstdCompressor().compress(bytes(10000)) + b"x",
    "planes without a stated size": b"\x02" + zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10000)),
    "no state": b"\x04",
    "no change": b"\x04" + states(LOW) + b"\x00\x00",
    "five thousand and one changes": b"\x04" + states(LOW) + ((5001 - 4096) << 10 | 13 << 5).to_bytes(4, "big"),
    "two thousand million changes": b"\x04" + states(LOW) + (31 << 5 | (1 << 40) - (1 << 10)).to_bytes(5, "big"),
    "more changes than words": b"\x04" + states(LOW) + (900 << 10 | 10 << 5).to_bytes(4, "big"),
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("lie", LIES)
def test_payloads_that_lie_are_refused(name, lie) -> None:
    assert outcome(name, BEFORE, LIES[lie], TABLES) is CodecError


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_damaged_tables(data) -> None:
    """Refused, or tables that code and decode."""
    whole = bytearray(data.draw(st.sampled_from([TABLES, Statistics.empty("F8_E4M3").tables(), wdx.fit(
        BEFORE.view(np.uint8), AFTER.view(np.uint8), "U8")])).to_bytes())  # fmt: skip
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))])
    try:
        tables = Tables.from_bytes(damaged)
    except CodecError:
        return
    before, after = tile(tables.dtype, 200, 0.2, seed=1)
    for kind in (Kind.CLASSES, Kind.FLAT):
        patch = wdx.decode_tile(before, wdx.encode_tile(before, after, tables, {kind}), tables)
        assert patch.new.tobytes() == after[before != after].tobytes()


def test_every_cut_and_every_tail_of_tables_is_refused() -> None:
    whole = TABLES.to_bytes()
    assert Tables.from_bytes(whole) == TABLES
    assert Tables.from_bytes(memoryview(whole)).to_bytes() == whole
    for length in range(len(whole)):
        with pytest.raises(CodecError):
            Tables.from_bytes(whole[:length])
    with pytest.raises(CodecError, match="1 bytes behind"):
        Tables.from_bytes(whole + b"\0")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"\x02\x01\x0c\x70", "form 2"),
        (b"\x01\xff\x0c\x70", "dtype number 255"),
        (b"\x01\x01\x00\x70", "0 classes"),
        (b"\x01\x01\x11\x70", "17 classes"),
        (b"\x01\x04\x0c\x70", "from exponent 112 for F8_E4M3"),
        (b"\x01\x07\x02\x00", "2 classes from exponent 0 for U8"),
        (b"\x01\x01\x0c\x70\x03", "mode 3"),
        (b"\x01\x01\x0c\x70\x00\0\0\xff\x0f", "a frequency of 2047"),
        (b"\x01\x01\x0c\x70\x00\0\0\x80\x10", "a frequency of 2048"),
        (b"\x01\x01\x0c\x70\x00\0\0\x00\x4e", "0, 78 times"),
        (b"\x01\x01\x0c\x70\x00\0\0\x00\x00", "0, 0 times"),
    ],
)
def test_tables_that_lie_are_refused(head: bytes, why: str) -> None:
    rest = TABLES.to_bytes()[len(head) :] if why != "a frequency of 2047" else b"\x00\x4c"
    with pytest.raises(CodecError, match=why if why != "a frequency of 2047" else "sum to 2047"):
        Tables.from_bytes(head + rest)


def test_statistics_travel_and_merge() -> None:
    """Many processes gather, one makes the tables: the same as if one had gathered all."""
    whole, parts = Statistics.empty("BF16"), Statistics.empty("BF16")
    for start in range(0, 5000, 1000):
        part = Statistics.empty("BF16")
        for statistics in (whole, part):
            statistics.add(BEFORE[start : start + 1000], AFTER[start : start + 1000])
        parts.merge(Statistics.from_bytes(part.to_bytes()))
    assert parts.tables() == whole.tables()
    assert int(parts.seen.sum()) == 5000
    assert (
        int(parts.changed.sum())
        == int(parts.flat.sum())
        == int(parts.values.sum())
        == np.count_nonzero(BEFORE != AFTER)
    )
    with pytest.raises(ValueError, match="F16 cannot be added"):
        parts.merge(Statistics.empty("F16"))
    for lie in (b"", b"\xff", b"\x01rubbish", part.to_bytes()[:-3], part.to_bytes()[:1] + zstandard.compress(b"x")):
        with pytest.raises(CodecError):
            Statistics.from_bytes(lie)
