"""From two states to the objects of a version: compare tile by tile, make tables of what was seen, encode, pack, send.

    compare   before, after -> Patch, per tile           many threads
    tables    statistics of a sample of the tiles -> coding tables, per dtype
    encode    before, Patch, tables -> payload, per tile  many threads, in order
    send      payloads -> objects of about `object_bytes`, many on their way at once

Equal states and settings give equal objects, byte for byte: so a lost object can be made again.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from twinmill.records.base import Ref
from twinmill.records.weights import Part
from twinmill.store.blobs import Blobs
from twinmill.store.transfer import upload

from .config import PublishConfig
from .container import NOTHING, Coded, make_part, pack
from .draft import Weights, no_tables
from .tensors import WIDTHS, Bits, State, unsigned
from .threads import in_order, processors
from .tiles import Grid, gather
from .wdx import TILE_MAX, Kind, Patch, Statistics, Tables, advance, compare, digest, encode_patch

CODECS: Mapping[str, frozenset[Kind]] = {
    "wdx": frozenset({Kind.EMPTY, Kind.RAW, Kind.PLANES, Kind.CLASSES}),
    "gaps": frozenset({Kind.EMPTY, Kind.RAW, Kind.PLANES, Kind.FLAT}),
    "raw": frozenset({Kind.EMPTY, Kind.RAW}),
}
"""PublishConfig.codec -> how a tile of a delta may be encoded; the smallest is taken"""
_WHOLE = frozenset({Kind.EMPTY, Kind.RAW, Kind.PLANES})
"""how a tile of a full version or an anchor may be"""
SAMPLED = 64
"""tiles of each dtype that the coding tables are made from: one law holds for all of a version"""


class Encoded(NamedTuple):
    parts: tuple[Part, ...]
    digests: tuple[bytes, ...]
    """of every tile after"""
    patches: Mapping[int, Patch]
    """what changed, by tile; of a full version nothing is kept"""

    @property
    def changed(self) -> int:
        return sum(part.changed for part in self.parts)

    @property
    def payload_bytes(self) -> int:
        return sum(part.object.bytes for part in self.parts)


class Encoder:
    """Encodes states of one grid. Objects are stored by content below `prefix`, by `send`, which takes them one by one."""

    def __init__(
        self, grid: Grid, config: PublishConfig, prefix: str, send: Callable[[Iterable[bytes]], Sequence[Ref]]
    ) -> None:
        self._grid = grid
        self._allow = CODECS[config.codec]
        self._object_bytes = config.object_bytes
        self._threads = processors(config.threads)
        self._prefix = prefix
        self._put_all = send
        self._local = threading.local()

    def full(self, state: State) -> Encoded:
        def encode(index: int) -> Coded:
            tile = self._grid.tiles[index]
            after = gather(tile, state, self._room("after", tile.dtype))
            blank = np.zeros(tile.size, after.dtype)
            payload = encode_patch(blank, compare(blank, after), no_tables(tile.dtype), _WHOLE)
            return Coded(NOTHING, digest(after), tile.size, payload)

        return self._send(in_order(encode, range(len(self._grid.tiles)), self._threads), {}, {})

    def delta(self, base: Weights, state: State) -> Encoded:
        """What brings `base` to `state`. Neither is changed."""

        def look(index: int) -> Patch:
            tile = self._grid.tiles[index]
            before = gather(tile, base.tensors, self._room("before", tile.dtype))
            return compare(before, gather(tile, state, self._room("after", tile.dtype)))

        patches = dict(enumerate(in_order(look, range(len(self._grid.tiles)), self._threads)))
        tables = self._tables(base, state, patches)

        def encode(index: int) -> Coded:
            tile, patch = self._grid.tiles[index], patches[index]
            if not len(patch):
                return Coded(base.digests[index], base.digests[index], 0, bytes([Kind.EMPTY]))
            before = gather(tile, base.tensors, self._room("before", tile.dtype))
            coding = tables.get(tile.dtype)
            allow = _WHOLE if coding is None else self._allow
            payload = encode_patch(before, patch, coding or no_tables(tile.dtype), allow)
            return Coded(base.digests[index], advance(base.digests[index], patch), len(patch), payload)

        return self._send(in_order(encode, range(len(patches)), self._threads), tables, patches)

    def _tables(self, base: Weights, state: State, patches: Mapping[int, Patch]) -> dict[str, Tables]:
        """From a sample, evenly spaced among the tiles in which something changed. None for a dtype that goes as it is."""
        changed: dict[str, list[int]] = defaultdict(list)
        for index, patch in patches.items():
            if len(patch):
                changed[self._grid.tiles[index].dtype].append(index)

        def look(index: int) -> Statistics:
            tile, seen = self._grid.tiles[index], Statistics.empty(self._grid.tiles[index].dtype)
            before = gather(tile, base.tensors, self._room("before", tile.dtype))
            seen.add(before, gather(tile, state, self._room("after", tile.dtype)))
            return seen

        tables = {}
        for dtype, indices in sorted(changed.items()):
            total = Statistics.empty(dtype)
            for seen in in_order(look, indices[:: max(1, len(indices) // SAMPLED)], self._threads):
                total.merge(seen)
            made = total.tables()
            if len(made.to_bytes()) < sum(self._grid.tiles[index].size for index in indices) * WIDTHS[dtype]:
                tables[dtype] = made  # else they would cost more than the bits themselves
        return tables

    def _send(self, coded: Iterator[Coded], tables: Mapping[str, Tables], patches: Mapping[int, Patch]) -> Encoded:
        """Pack and send while later tiles are encoded; waits until all are there."""
        frozen = [tables[dtype].to_bytes() for dtype in sorted(tables)]
        digests, parts = list[bytes](), list[Part]()

        def objects() -> Iterator[bytes]:
            for tiles in self._grouped(coded):
                packed = pack(frozen, tiles)
                parts.append(make_part(self._prefix, packed, len(digests), tiles))
                digests.extend(tile.after for tile in tiles)
                yield packed.data

        self._put_all(objects())
        return Encoded(tuple(parts), tuple(digests), patches)

    def _grouped(self, coded: Iterator[Coded]) -> Iterator[list[Coded]]:
        group, size = list[Coded](), 0
        for tile in coded:
            group.append(tile)
            size += len(tile.payload)
            if self._object_bytes and size >= self._object_bytes:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _room(self, name: str, dtype: str) -> Bits:
        """A buffer for one tile, one per thread and name: it stays in the cache."""
        if not hasattr(self._local, name):
            setattr(self._local, name, np.empty(TILE_MAX, np.uint32))
        room: Bits = getattr(self._local, name).view(unsigned(dtype))
        return room


def sender(
    blobs: Blobs, prefix: str, config: PublishConfig, *, again: bool, point: str = "blob.ref"
) -> Callable[[Iterable[bytes]], Sequence[Ref]]:
    """Stores objects, many at once. again: also those that are there already, which heals damaged ones; else what a
    killed publication had sent is not sent twice."""
    return lambda objects: upload(blobs, objects, config.transfer, prefix=prefix, again=again, point=point)
