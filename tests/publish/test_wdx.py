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
    steps = [bits(master + np.float32(4e-6 / slower) * noise) for slower in (1, 4, 16, 64)]
    tables = wdx.fit(before, steps[0], "BF16")
    for after, over in zip(steps, (1.03, 1.05, 1.07, 1.1)):
        size = 8 * len(wdx.encode_tile(before, after, tables))
        assert size / h1_bits(before, after, "BF16") < over
        assert size / h0_bits(before, after) < 0.75


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
    "01010c7400901ffc01dd01c201aa01950183017365a5017f624b663c241514070201003801fd01d40a7e593f2d2016100b080604030201"
    "0100570200070b4e4b4845423f3c3a6c635a5391017ac9025684015d412e371b0d070501003201e101bc09704f38281c140e0a07050402"
    "0201010040e401001602002e062c2b2a29282726254744a4023e73685e5694017a64527b5338262b14090403002f01c801b50864473223"
    "19120c09060403020201010040ae0300160200120586022323222121201f3d3a3836665e57508e017967588b016549354323120a080200"
    "2e01b101be07593f2c1f16100b080604030201010041e20400160200890214141414131313132525242344413f3c7269615aa001880174"
    "639c0172533c4c28150b0903002a01b101be07593f2c1f16100b080604030201010041e2040016020044010a0a0a0a0a0a0a0a13131313"
    "2524242344413f3c7269615aa101880174639c0172533c4c28150b0903002601b101be07593f2c1f16100b080604030201010041e20400"
    "160200a20005050505050505050a0a0a0a131313132524242344413f3c7269615aa001880174639d0172533c4c28150b0903002201b101"
    "be07593f2c1f16100b080604030201010041e2040016020051000303030303030303050505050a0a0a0a131313132524242344413f3c72"
    "69615a9c01880174639d0172533c4c28150b0903001e01b101be07593f2c1f16100b080604030201010041e20400160200290001010101"
    "0101010103030303050505050a0a0a0a131313132524242344413f3c7269615a9f01880174639d0172533d4c28150b0903001a01b101be"
    "07593f2c1f16100b080604030201010041e20400160200140000080101010103030303050505050a0a0a0a131313132524242344413f3c"
    "7269615a9e01880174639d0172533d4c28150b0903001606b101be07593f2c1f16100b080604030201010041e204001602000a00000c01"
    "01010103030303050505050a0a0a0a131313132524242344413f3c7269615a9e01880174639d0172533d4c28150b0903001206b101be07"
    "593f2c1f16100b080604030201010041e20400160200050000100101010103030303050505050a0a0a0a131313132524242344413f3c72"
    "69615a9e01880174639d0172533d4c28150b0903000e06b101be07593f2c1f16100b080604030201010041e204001602000b0b7d1f1d1c"
    "1b7776752c2825223bc9022aaf0536261b13160b050302003301da019a096d4d37271b130e0a0705030202010100409702001602"
)
GOLDEN = {
    Kind.CLASSES: "0340b006007c6cc04377cc8368339e767676c040000001084208246a",
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
