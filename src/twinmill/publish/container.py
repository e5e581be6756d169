"""One object of a version: a safetensors file with the payloads of a run of tiles.

    tables   U8   what the tile codec shares between tiles, by dtype: u32 length and bytes of each
    index    U8   60 bytes per tile: u64 offset in body, digest before, digest after, digest of the payload (16 bytes
                  each), u32 changed elements
    body     U8   the payloads, one behind the other

Any safetensors tool opens it. A reader of the whole checks the object's BLAKE3 before it parses a byte. A reader of a few
tiles fetches the head (all in front of the body, whose BLAKE3 the manifest has), then each payload by its place, and checks
it against the index. Digests before and after are those of the tile's bits (wdx.digest); before = zeros when the tile stands
on nothing. The digest of a payload is 16 bytes of BLAKE3.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from twinmill.records.base import Ref
from twinmill.records.weights import Part
from twinmill.store.blobs import Blobs, digest_of
from twinmill.store.errors import Corrupt

from .tensors import Array

NOTHING = bytes(16)
"""the digest before of a tile that stands on nothing"""
MOST_HEAD_BYTES = 1 << 28
_ENTRY = np.dtype(
    [("offset", "<u8"), ("before", "u1", 16), ("after", "u1", 16), ("payload", "u1", 16), ("changed", "<u4")]
)


class Coded(NamedTuple):
    """One tile, encoded."""

    before: bytes
    after: bytes
    changed: int
    payload: bytes


class Packed(NamedTuple):
    data: bytes
    head_bytes: int


def pack(all_tables: Sequence[bytes], tiles: Sequence[Coded]) -> Packed:
    """The bytes of an object. Equal tiles give equal bytes."""
    tables = b"".join(len(one).to_bytes(4, "little") + one for one in all_tables)
    index = np.zeros(len(tiles), _ENTRY)
    end = 0
    for entry, tile in zip(index, tiles):
        entry["offset"], entry["changed"] = end, tile.changed
        entry["before"], entry["after"] = _octets(tile.before), _octets(tile.after)
        entry["payload"] = _octets(blake3(tile.payload).digest(length=16))
        end += len(tile.payload)
    header: dict[str, Any] = {"__metadata__": {"format": "twinmill tiles 1"}}
    place = 0
    for name, size in (("tables", len(tables)), ("index", index.nbytes), ("body", end)):
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text + tables + index.tobytes()
    return Packed(head + b"".join(tile.payload for tile in tiles), len(head))


class Opened:
    """An object whose bytes are known to be what was written. `body` None = only its head was fetched."""

    def __init__(self, part: Part, data: bytes | memoryview) -> None:
        """data: the whole object, or its first part.head_bytes. Corrupt when it is no container of so many tiles."""
        self.part = part
        self._key = part.object.key
        view = memoryview(data)
        tables, index = self._parse(view)
        self.tables = self._separate(tables)
        self._index: Array = np.frombuffer(index, _ENTRY)
        self._body = view[part.head_bytes :] if len(view) > part.head_bytes or not self._body_bytes else None
        offsets = self._index["offset"]
        if len(self._index) != part.tiles or bool((np.diff(offsets.astype(np.int64)) < 0).any()):
            raise Corrupt(self._key, f"an index of {len(self._index)} tiles, {part.tiles} are wanted, in order")
        if part.tiles and (int(offsets[0]) != 0 or int(offsets[-1]) > self._body_bytes):
            raise Corrupt(self._key, f"its index points outside of its body of {self._body_bytes} bytes")

    @property
    def is_whole(self) -> bool:
        return self._body is not None

    def digests(self, tile: int) -> tuple[bytes, bytes]:
        """Of the bits of tile number `tile` (of the whole model), before and after."""
        entry = self._index[tile - self.part.first_tile]
        return entry["before"].tobytes(), entry["after"].tobytes()

    def changed(self, tile: int) -> int:
        return int(self._index["changed"][tile - self.part.first_tile])

    def place(self, tile: int) -> tuple[int, int]:
        """(offset, length) of a tile's payload in the object."""
        here = tile - self.part.first_tile
        begin = int(self._index["offset"][here])
        end = int(self._index["offset"][here + 1]) if here + 1 < self.part.tiles else self._body_bytes
        return self.part.head_bytes + begin, end - begin

    def payload(self, tile: int) -> memoryview:
        """The payload of a tile."""
        if self._body is None:
            raise ValueError("only the head of this object was fetched; use `fetch_payload`")
        offset, length = self.place(tile)
        return self._body[offset - self.part.head_bytes :][:length]

    def fetch_payload(self, blobs: Blobs, tile: int) -> memoryview:
        """The payload of one tile alone, from the store; Corrupt when it is not what the index says."""
        offset, length = self.place(tile)
        data = blobs.get_range(self._key, offset, length)
        wanted = self._index["payload"][tile - self.part.first_tile].tobytes()
        if blake3(data).digest(length=16) != wanted:
            raise Corrupt(self._key, f"bytes {offset} to {offset + length}, tile {tile}, are not what was written")
        return memoryview(data)

    def _separate(self, tables: bytes) -> list[bytes]:
        found, at = [], 0
        while at < len(tables):
            end = at + 4 + int.from_bytes(tables[at : at + 4], "little")
            if end > len(tables):
                raise Corrupt(self._key, f"coding tables up to byte {end}, where there are {len(tables)}")
            found.append(tables[at + 4 : end])
            at = end
        return found

    def _parse(self, view: memoryview) -> tuple[bytes, memoryview]:
        """(tables, index), and `_body_bytes`. Nothing is allocated by what the header claims."""
        try:
            length = int.from_bytes(view[:8], "little")
            if not 0 < length <= len(view) - 8:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(bytes(view[8 : 8 + length]))
            end = 0
            ends = []
            for name in ("tables", "index", "body"):
                begin, stop = header[name]["data_offsets"]
                sound = header[name]["dtype"] == "U8" and type(stop) is int and begin == end <= stop
                if not sound or stop > self.part.object.bytes:
                    raise ValueError(f"{name} is {header[name]}")
                end = stop
                ends.append(stop)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Corrupt(self._key, f"no container of tiles: {error}") from error
        tables, index, body = ends
        first = 8 + length
        if first + index != self.part.head_bytes or first + body != self.part.object.bytes:
            raise Corrupt(self._key, f"its head ends at {first + index}, {self.part.head_bytes} is wanted")
        if index == tables or (index - tables) % _ENTRY.itemsize:
            raise Corrupt(self._key, f"an index of {index - tables} bytes; an entry has {_ENTRY.itemsize}")
        self._body_bytes = body - index
        return bytes(view[first : first + tables]), view[first + tables : first + index]


def make_part(prefix: str, packed: Packed, first_tile: int, tiles: Sequence[Coded]) -> Part:
    """How a manifest names an object, which is stored by content below `prefix`."""
    digest = digest_of(packed.data)
    return Part(
        object=Ref(key=f"{prefix}/{digest}", digest=digest, bytes=len(packed.data)),
        first_tile=first_tile,
        tiles=len(tiles),
        changed=sum(tile.changed for tile in tiles),
        head_bytes=packed.head_bytes,
        head_digest=digest_of(memoryview(packed.data)[: packed.head_bytes]),
    )


def read_part(blobs: Blobs, part: Part) -> Opened:
    """Fetch and verify a whole object."""
    return Opened(part, blobs.get_ref(part.object))


def read_head(blobs: Blobs, part: Part) -> Opened:
    """Fetch and verify only what lies in front of the payloads."""
    if not 0 < part.head_bytes <= min(part.object.bytes, MOST_HEAD_BYTES):
        raise Corrupt(part.object.key, f"a head of {part.head_bytes} bytes in an object of {part.object.bytes}")
    data = blobs.get_range(part.object.key, 0, part.head_bytes)
    if digest_of(data) != part.head_digest:
        raise Corrupt(part.object.key, "its head is not what was written")
    return Opened(part, data)


def _octets(digest: bytes) -> Array:
    return np.frombuffer(digest, np.uint8)
