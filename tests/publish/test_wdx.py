"""Every tile comes back exactly, from every backend, whatever its bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.publish import wdx
from twinmill.publish.wdx import Kind, Statistics, Tables
from twinmill.publish.wdx.bounds import h0_bits, h1_bits
from twinmill.publish.wdx.native import backend, backends, slow, using

from .wdx_toys import BACKENDS, FAST, SHARES, specials, tile, tiles

KINDS = [{Kind.CLASSES}, {Kind.FLAT}, {Kind.RAW}, {Kind.PLANES}, wdx.ALLOWED, frozenset(Kind)]


def roundtrip(before, after, tables, allow):
    kept = before.copy()
    payload = wdx.encode_tile(before, after, tables, {*allow, Kind.EMPTY})
    patch = wdx.decode_tile(before, payload, tables)
    assert before.tobytes() == kept.tobytes(), "neither side touches the base"
    assert payload[0] in {*allow, Kind.EMPTY}
    assert patch.index.dtype == np.uint32
    assert np.array_equal(patch.index, np.flatnonzero(before != after))
    assert patch.old.tobytes() == before[patch.index].tobytes()
    assert patch.new.tobytes() == after[patch.index].tobytes()
    return payload, patch


@pytest.mark.parametrize("name", BACKENDS)
@settings(deadline=None, max_examples=60)
@given(tiles(), tiles(), st.sampled_from(KINDS))
def test_any_tile_with_any_tables(name, pair, other, allow) -> None:
    """Tables made from something else entirely (of the same dtype when it happens so) must code it all the same."""
    dtype, before, after = pair
    with using(name):
        for source in (pair, other) if other[0] == dtype else (pair,):
            roundtrip(before, after, wdx.fit(source[1], source[2], dtype), allow)
        roundtrip(before, after, Statistics.empty(dtype).tables(), allow)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", sorted(wdx.LAYOUTS))
@pytest.mark.parametrize("share", SHARES)
def test_every_dtype_at_every_density(name, dtype, share) -> None:
    before, after = tile(dtype, 9001, share, seed=7)
    with using(name):
        tables = wdx.fit(before, after, dtype)
        for kind in (Kind.CLASSES, Kind.FLAT):
            roundtrip(before, after, tables, {kind})


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", sorted(wdx.LAYOUTS))
def test_signed_zeros_infinities_and_nan_payloads(name, dtype) -> None:
    values = specials(dtype)
    before, after = (array.reshape(-1).copy() for array in np.meshgrid(values, values))
    assert before.size == values.size**2, "every special value becomes every other"
    sign = before.dtype.type(1 << (8 * before.itemsize - 1))
    with using(name):
        for one, other in ((before, after), (before, before ^ sign), (before, before)):
            for tables in (wdx.fit(one, other, dtype), Statistics.empty(dtype).tables()):
                roundtrip(one, other, tables, {Kind.CLASSES})
                roundtrip(one, other, tables, {Kind.FLAT})


@pytest.mark.skipif(not FAST, reason="the extension is not built")
@settings(deadline=None, max_examples=150)
@given(tiles(), tiles())
def test_every_backend_writes_the_same_bytes(pair, other) -> None:
    dtype, before, after = pair
    source = other if other[0] == dtype else pair
    seen = {}
    for name in BACKENDS:
        with using(name):
            statistics = Statistics.empty(dtype)
            statistics.add(source[1], source[2])
            statistics.add(before[: before.size // 3 + 1], after[: before.size // 3 + 1])
            tables = statistics.tables()
            patch = wdx.compare(before, after)
            seen[name] = [
                tables.to_bytes(),
                statistics.to_bytes(),
                *(wdx.encode_tile(before, after, tables, {kind, Kind.EMPTY}) for kind in (Kind.CLASSES, Kind.FLAT)),
                wdx.digest(before),
                wdx.advance(wdx.digest(before), patch),
            ]
    assert all(found == seen["reference"] for found in seen.values())


@pytest.mark.skipif(not FAST, reason="the extension is not built")
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "U8"])
@pytest.mark.parametrize("share", [0.002, 0.05, 0.6, 0.97])
def test_every_backend_writes_the_same_bytes_of_large_tiles(dtype, share) -> None:
    before, after = tile(dtype, 70_001, share, seed=3)
    after = before + ((after - before) * (np.arange(before.size) % 3000 < 1500)).astype(before.dtype)  # rows that rest
    tables = wdx.fit(before, after, dtype, tile=20_000)
    seen = {}
    for name in BACKENDS:
        with using(name):
            assert wdx.fit(before, after, dtype, tile=20_000) == tables
            seen[name] = [roundtrip(before, after, tables, {kind})[0] for kind in (Kind.CLASSES, Kind.FLAT)]
    assert all(found == seen["reference"] for found in seen.values())


@pytest.mark.parametrize("name", BACKENDS)
def test_the_smallest_allowed_kind_is_taken(name) -> None:
    before, after = tile("BF16", 5000, 0.02, seed=1)
    noise = np.random.default_rng(0).integers(0, 1 << 16, 5000, np.uint16)
    flat = (before & 0xFF00) | np.uint16(7)
    with using(name):
        tables = wdx.fit(before, after, "BF16")
        assert wdx.encode_tile(before, before, tables) == bytes([Kind.EMPTY])
        assert wdx.encode_tile(before, after, tables)[0] == Kind.CLASSES
        assert wdx.encode_tile(before, after, tables, {Kind.FLAT, Kind.RAW})[0] == Kind.FLAT
        both = wdx.encode_tile(before, after, tables, set(Kind))
        assert len(both) == min(len(wdx.encode_tile(before, after, tables, {kind})) for kind in (3, 4))
        assert wdx.encode_tile(before, noise, tables)[0] == Kind.RAW
        assert wdx.encode_tile(before, flat, tables, {Kind.PLANES, Kind.FLAT})[0] == Kind.PLANES
        assert wdx.encode_tile(before, before, tables, {Kind.RAW})[0] == Kind.RAW
        with pytest.raises(ValueError, match="no allowed kind"):
            wdx.encode_tile(before, after, tables, {Kind.EMPTY})


@pytest.mark.parametrize("name", BACKENDS)
def test_compare_and_advance_is_compare_then_apply(name) -> None:
    for dtype in ("BF16", "U8", "F32"):
        for size in (1, 64, 1000, 4097):
            before, after = tile(dtype, size, 0.2, seed=size)
            with using(name):
                snapshot = before.copy()
                patch = wdx.compare_and_advance(snapshot, after)
                assert snapshot.tobytes() == after.tobytes()
                assert patch.old.tobytes() == before[patch.index].tobytes()
                wdx.apply(patch, snapshot)  # once more changes nothing
                assert snapshot.tobytes() == after.tobytes()
                wdx.apply(patch.undo(), snapshot)
                assert snapshot.tobytes() == before.tobytes()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_patch_outside_of_the_target_writes_nothing(name) -> None:
    before, after = tile("BF16", 100, 1.0, seed=2)
    short = before[:99].copy()
    with using(name), pytest.raises(IndexError, match="position 99 of a tile of 99"):
        wdx.apply(wdx.compare(before, after), short)
    assert short.tobytes() == before[:99].tobytes()


def test_a_tile_that_learns_slower_than_the_tables_is_still_small() -> None:
    """A rarely used expert: the same weights, moved by a fraction of what the others move."""
    rng = np.random.default_rng(5)
    master = (rng.standard_normal(1 << 18) * 0.02).astype(np.float32)
    noise = rng.standard_normal(master.size).astype(np.float32)

    def bits(values):
        return (values.view(np.uint32) + np.uint32(0x8000) >> 16).astype(np.uint16)

    before = bits(master)
    hot, cold = bits(master + np.float32(4e-6) * noise), bits(master + np.float32(2.5e-7) * noise)
    tables = wdx.fit(before, hot, "BF16")
    with using(BACKENDS[0]):
        for after, over in ((hot, 1.04), (cold, 1.12)):
            size = 8 * len(wdx.encode_tile(before, after, tables))
            assert size / h1_bits(before, after, "BF16") < over
            assert size / h0_bits(before, after) < 0.9


def test_what_no_tile_may_be() -> None:
    before, after = tile("BF16", 100, 0.1, seed=2)
    tables = wdx.fit(before, after, "BF16")
    for wrong in (before.astype(np.int16), before.reshape(10, 10), before[::2], before[:0], before.astype(np.uint64)):
        with pytest.raises(ValueError):
            wdx.compare(wrong, wrong)
    with pytest.raises(ValueError, match="not the same tile"):
        wdx.compare(before, after[:99].copy())
    with pytest.raises(ValueError, match="not the same tile"):
        wdx.compare(before, before.astype(np.uint32))
    with pytest.raises(ValueError, match="tables for BF16"):
        wdx.encode_tile(before.view(np.uint8), after.view(np.uint8), tables)
    with pytest.raises(ValueError, match="1048577 elements"):
        wdx.compare(np.zeros((1 << 20) + 1, np.uint8), np.zeros((1 << 20) + 1, np.uint8))


def test_the_backend_is_named_and_a_slow_one_says_so() -> None:
    assert backend() == backends()[0]
    assert backends()[-1] == "reference"
    with using("reference"):
        assert wdx.backend() == "reference"
        assert "compiler" in slow()
    if FAST:
        assert slow() == ""
    with pytest.raises(ValueError, match="this machine has"), using("abacus"):
        pass


GOLDEN_TABLES = (
    "01010a71003e329003c3028402d101a80187016c577e523522240f060302003b01f1029908b90183015c412e2117100c08060403020101"
    "0056020012137a7169ae025a534d477f6c5d50c9025d44324022120a0802003601a702e1099401684a34251a120d090705030202010100"
    "560200d80b4c48458f023f3c3936655c544c85016ea7024b724e35242a14090403003301ec01800b76543b2a1e150f0a07050403020101"
    "00570200050a403e3b8602373532305b544e4880016d5d4fc8025b42303c2011090702003201bd01810c5e432f2118110c080604030201"
    "010058030009062b2a2928272625244643403d7167c1025593017a65537d563a282e150a0503002f01a801d60a543b2a1e150f0a070504"
    "030201010041e401001602000905242322222120201f3c3a9c0236655d56508e017967588b01654a364324130a0802002e019501be094b"
    "35251a130d09070503020201010041ae0300160200cf048302222120201f1f1e3a383634625b544e8c017867598e01694d394928160c0a"
    "0301002d018501b708422f2117110c080604030201010042e204001603006702131313131312121224232222413f3c3a6e665f589d0187"
    "0174649f01765740532d190e0b03010029018501b708422f2117110c080604030201010042e2040016030034010a0a0a09090909091212"
    "121223232221413f3c3a6e665f589d0187017464a001765741532e190e0c03010025018501b708422f2117110c080604030201010042e2"
    "04001603009a000505050505050505090909091212121223232221413f3c3a6e665e589d01870174649f01765841532e190e0c03010021"
    "018501b708422f2117110c080604030201010042e204001603000b0b7d1f1d1c1b7776752c2825223bc9022aaf0536261b13160b050302"
    "003301da019a096d4d37271b130e0a0705030202010100409702001602"
)
GOLDEN = {
    Kind.CLASSES: "0325c92a0088e4fe84b973875c3b3b3b60200021084104144e",
    Kind.FLAT: "0417b81a00ed83982e9e2900ececec10003880",
}
GOLDEN_DIGEST = "dab5f5aae21048006686873caa6e4600"


@pytest.mark.parametrize("name", BACKENDS)
def test_the_format_is_what_it_was(name) -> None:
    """Bytes in stores outlive this code: when this fails, the format has changed and needs a new number."""
    before = (np.arange(300, dtype=np.uint32) * 40503 % 65536).astype(np.uint16) & np.uint16(0x83FF) | np.uint16(0x3800)
    after = before.copy()
    after[::29] += np.uint16(1)
    after[7::101] -= np.uint16(700)
    with using(name):
        tables = wdx.fit(before, after, "BF16")
        stored = Tables.from_bytes(tables.to_bytes())
        assert tables.to_bytes().hex() == GOLDEN_TABLES
        for kind, payload in GOLDEN.items():
            assert wdx.encode_tile(before, after, stored, {kind}).hex() == payload
        assert wdx.digest(before).hex() == GOLDEN_DIGEST
