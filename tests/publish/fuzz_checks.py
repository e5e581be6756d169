"""What a fuzzer calls with any bytes: everything that parses bytes of the weights log. Payloads, tables, containers, frames.

What must hold of any bytes: they are refused with CodecError or Corrupt, or read as something possible; the native extension and
the NumPy reference (whose branches guide the fuzzer, as native code is not instrumented) read the same; the base is not touched.
The first byte of an input picks the parser, the second what it is read against.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import structs

from twinmill.publish import wdx
from twinmill.publish.container import Coded, Opened, make_part, pack
from twinmill.publish.wdx import CodecError, Kind, Tables
from twinmill.publish.wdx.native import backends, using
from twinmill.records.weights import Part
from twinmill.store.errors import Corrupt
from twinmill.store.frame import seal, unseal

from .wdx_toys import tile

DTYPES = ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "U8")
PAIRS = [tile(dtype, 150 + 40 * i, share, seed=i) for i, dtype in enumerate(DTYPES) for share in (0.01, 0.2)]
TABLES = [wdx.fit(*pair, DTYPES[i // 2]) for i, pair in enumerate(PAIRS)]


def payload(which: int, data: bytes) -> None:
    """Against one of the bases, as a tile of any kind."""
    (before, _), tables = PAIRS[which % len(PAIRS)], TABLES[which % len(PAIRS)]
    kept, found = before.tobytes(), []
    for name in dict.fromkeys((backends()[0], backends()[-1])):
        with using(name):
            try:
                patch = wdx.decode_tile(before, data, tables)
            except CodecError:
                found.append(None)
                continue
            finally:
                assert before.tobytes() == kept, "the base was touched"
        assert not len(patch) or int(patch.index.max()) < before.size
        assert (np.diff(patch.index.astype(np.int64)) > 0).all() and (patch.old != patch.new).all()
        found.append((patch.index.tobytes(), patch.old.tobytes(), patch.new.tobytes()))
    assert all(one == found[0] for one in found), "two readers read two things"


def tables(which: int, data: bytes) -> None:
    """What is taken for tables must code and decode."""
    try:
        read = Tables.from_bytes(data)
    except CodecError:
        return
    before, after = tile(read.dtype, 60, 0.2, seed=which)
    for kind in (Kind.CLASSES, Kind.FLAT):
        patch = wdx.decode_tile(before, wdx.encode_tile(before, after, read, {kind}), read)
        assert patch.new.tobytes() == after[before != after].tobytes()


def container(which: int, data: bytes) -> None:
    """Bytes whose outer digests are right, as an object of a manifest that knows their length."""
    _, part = objects()
    head = min(part.head_bytes, len(data)) if which % 2 else part.head_bytes
    for claimed in (part, _claimed(part, len(data), head)):
        try:
            opened = Opened(claimed, data)
        except Corrupt:
            continue
        for number in range(claimed.first_tile, claimed.first_tile + claimed.tiles):
            opened.digests(number)
            if opened.is_whole:
                assert len(opened.payload(number)) <= len(data)
        for each in opened.tables:
            tables(which, each)


def objects() -> tuple[bytes, Part]:
    """A sound object of two tiles."""
    tiles = []
    for before, after in PAIRS[:2]:
        coded = wdx.encode_tile(before, after, TABLES[0])
        tiles.append(Coded(wdx.digest(before), wdx.digest(after), int((before != after).sum()), coded))
    packed = pack([TABLES[0].to_bytes()], tiles)
    return packed.data, make_part("objects", packed, 3, tiles)


def _claimed(part: Part, size: int, head: int) -> Part:
    return structs.replace(part, object=structs.replace(part.object, bytes=size), head_bytes=head)


def frame(which: int, data: bytes) -> None:
    try:
        unseal("key", data)
    except Corrupt:
        return
    assert data in SEALED, "nobody guesses a checksum"


SEALED = (seal("key", b"short"), seal("key", bytes(500)))
PARSERS: Sequence[Callable[[int, bytes], None]] = (payload, tables, container, frame)


def check(data: bytes) -> None:
    """One input. Raises AssertionError, or whatever else should not come out."""
    if len(data) >= 2:
        PARSERS[data[0] % len(PARSERS)](data[1], data[2:])


def seeds() -> list[bytes]:
    """Sound bytes for each parser, from which the fuzzer goes on."""
    found = []
    for which, ((before, after), table) in enumerate(zip(PAIRS, TABLES)):
        kinds = (Kind.CLASSES, Kind.FLAT, Kind.PLANES, Kind.RAW)
        found += [bytes([0, which]) + wdx.encode_tile(before, after, table, {kind}) for kind in kinds]
        found.append(bytes([1, which]) + table.to_bytes())
    return [*found, bytes([2, 0]) + objects()[0], *(bytes([3, 0]) + sealed for sealed in SEALED)]
