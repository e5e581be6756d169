"""From hops to a version, without touching what is held: the first half of the two-phase apply.

    Draft.take(hop)   fetch an object, verify its BLAKE3, then tile by tile: digest before = that of the bits we build on,
                      decode to a patch of absolute values, digest after = that of the index; next object
    Draft.finish()    every tile's digest makes the model digest of the manifest

A hop either fails as a whole (its manifest, the shape of its objects) or in some tiles: those of a damaged object, those
whose bits were not what they should be. Failed tiles stay as they were before the hop; whoever drives the draft repairs them
another way, or gives it up. Objects are fetched a few ahead, tiles decoded by several threads (the codec lets go of the GIL).
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np

from twinmill.records.weights import Part, WeightVersion

from .container import NOTHING, Opened, read_head, read_part
from .errors import Broken, CodecError
from .manifest import DAMAGE, WeightsLog
from .route import Hop
from .tensors import Array, Bits, unsigned
from .threads import in_order, processors
from .tiles import Grid, gather, scatter, touched
from .wdx import TILE_MAX, Kind, Patch, Statistics, Tables, advance, apply, compare, decode_tile, digest

AHEAD = 4
"""objects that are fetched before their turn"""


class Weights(NamedTuple):
    """A version and its tensors: Hugging Face name -> stored bits. The arrays are read-only, and shared."""

    version: WeightVersion
    grid: Grid
    tensors: dict[str, Array]
    digests: tuple[bytes, ...]
    """of every tile, as its manifest's objects say"""


class Draft:
    """A version in the making: patches on what is held, or new arrays where it begins from nothing."""

    def __init__(
        self,
        log: WeightsLog,
        grid: Grid,
        held: Weights | None,
        *,
        tiles: Collection[int] | None = None,
        threads: int = 1,
    ) -> None:
        """tiles: the only ones to fetch and decode; None = all. Digests are followed for all of them in any case."""
        self.grid = grid
        self.held = held
        self.number = None if held is None else held.version.number
        self.digests: list[bytes] = [NOTHING] * len(grid.tiles) if held is None else list(held.digests)
        self.failed: dict[int, str] = {}
        """tiles that are not what they should be by now, and why"""
        self._failed_at: dict[int, Hop] = {}
        self._unknown: set[int] = set()
        """tiles whose digest the last hop did not say, as its object is damaged"""
        self._lost: set[str] = set()
        """names of hops with damaged objects"""
        self.fetched_bytes = 0
        self._log = log
        self._tiles = None if tiles is None else frozenset(tiles)
        self._threads = processors(threads)
        self._new: dict[str, Array] | None = grid.blank() if held is None else None
        self._patches: dict[int, Patch] = {}
        self._copies: dict[int, Bits] = {}
        self._scratch = threading.local()

    @property
    def begins_new(self) -> bool:
        return self._new is not None

    @property
    def culprit(self) -> Hop | None:
        """Where the first of the failed tiles failed; None = none did."""
        return self._failed_at[min(self.failed)] if self.failed else None

    @property
    def lost_objects(self) -> bool:
        """Did it fail because bytes are damaged or gone? Else they are sound, and do not fit what is held."""
        return self.culprit is not None and self.culprit.name in self._lost

    def take(self, hop: Hop) -> None:
        """Apply a hop. One of DAMAGE when it fails as a whole: then this draft is of no more use."""
        version = self._log.get(hop.end)
        if self._log.grid(version) is not self.grid:
            raise Broken(hop.end, f"is cut into other tiles than version {self.number}")
        if hop.start != self.number:
            raise Broken(hop.end, f"{hop.name} starts from version {hop.start}, but version {self.number} is held")
        if sum(part.tiles for part in hop.parts) != len(self.grid.tiles):
            raise Broken(hop.end, f"{hop.name} has {sum(p.tiles for p in hop.parts)} of {len(self.grid.tiles)} tiles")
        for part, opened in zip(hop.parts, in_order(self._fetch, hop.parts, AHEAD)):
            tiles = range(part.first_tile, part.first_tile + part.tiles)
            if isinstance(opened, str):
                self._lost.add(hop.name)
                self._unknown.update(tiles)
                wrong = dict.fromkeys(tiles, opened)
            else:
                decode = partial(self._decode, hop, opened, _tables(hop, opened))
                wrong = {tile: why for tile, why in zip(tiles, in_order(decode, tiles, self._threads)) if why}
            self._fail(hop, wrong)
        self.number = version.number

    def repair(self, tile: int, hops: Sequence[Hop], opened: Sequence[Opened]) -> tuple[Hop, str] | None:
        """Build one tile anew, from nothing, along `hops`; `opened` are the objects it is in, at least their heads.

        None = it is sound now; else the hop that could not be taken, and why.
        """
        at, bits = NOTHING, np.zeros(self.grid.tiles[tile].size, unsigned(self.grid.tiles[tile].dtype))
        for hop, part in zip(hops, opened):
            before, after = part.digests(tile)
            if before != at:
                return hop, f"{hop.name} was made on other bits"
            if self._wanted(tile):
                try:
                    payload = part.fetch_payload(self._log.blobs, tile)
                    patch = _decoded(bits, payload, self.grid.tiles[tile].dtype, _tables(hop, part))
                except (*DAMAGE, CodecError) as error:
                    return hop, str(error)
                self.fetched_bytes += len(payload)
                apply(patch, bits)
            at = after
        if (self._wanted(tile) and digest(bits) != at) or (tile not in self._unknown and at != self.digests[tile]):
            return hops[-1], "it leads to other bits than the version's own manifest says"
        if self._wanted(tile):
            self._put(tile, compare(self._base(tile), bits), final=True)
        self.digests[tile] = at
        self._unknown.discard(tile)
        self._mended(tile)
        return None

    def finish(self) -> None:
        """Broken unless all tiles are there and make the version."""
        version = self._log.get(self.number) if self.number is not None else None
        if version is None or self.failed:
            raise Broken(self.number or 0, self.first_failure() if self.failed else "nothing was taken")
        if self.grid.model_digest(self.digests) != version.model_digest:
            raise Broken(version.number, "the digests of its tiles do not make its model digest")

    def patches(self) -> dict[int, Patch]:
        """Tile -> all that differs from what is held. Only for a draft that began there."""
        changed = dict(self._patches)
        for tile, bits in self._copies.items():
            changed[tile] = compare(self._base(tile), bits)
        return {tile: patch for tile, patch in changed.items() if len(patch)}

    def tensors(self) -> dict[str, Array]:
        """All tensors: new arrays where something changed, else those that are held."""
        if self._new is not None:
            tensors = dict(self._new)
        else:
            assert self.held is not None
            tensors = with_patches(self.grid, self.held.tensors, self.patches())
        for array in tensors.values():
            array.flags.writeable = False
        return tensors

    def weights(self) -> Weights:
        assert self.number is not None
        return Weights(self._log.get(self.number), self.grid, self.tensors(), tuple(self.digests))

    def mark_wrong(self, wrong: Mapping[int, str]) -> None:
        """Tiles whose held bits are known to be bad, and why: to be repaired."""
        self.failed.update(wrong)

    def _fail(self, hop: Hop, wrong: Mapping[int, str]) -> None:
        for tile, why in wrong.items():
            self.failed.setdefault(tile, why)
            self._failed_at.setdefault(tile, hop)

    def _mended(self, tile: int) -> None:
        self.failed.pop(tile, None)
        self._failed_at.pop(tile, None)

    def first_failure(self) -> str:
        tile, why = min(self.failed.items())
        return f"{self.grid.describe(tile)}: {why}"

    def _wanted(self, tile: int) -> bool:
        return self._tiles is None or tile in self._tiles

    def _fetch(self, part: Part) -> Opened | str:
        """The whole object, or, for a rank that needs few of its tiles, its head. Or what is wrong with it."""
        wanted = sum(map(self._wanted, range(part.first_tile, part.first_tile + part.tiles)))
        whole = wanted == part.tiles
        self.fetched_bytes += part.object.bytes if whole else part.head_bytes
        try:
            return (read_part if whole else read_head)(self._log.blobs, part)
        except DAMAGE as error:
            return str(error)

    def _decode(self, hop: Hop, opened: Opened, tables: dict[str, Tables], tile: int) -> str:
        """Decode one tile. Returns what is wrong, "" = nothing; then the tile is as it was before."""
        before, after = opened.digests(tile)
        known, self.digests[tile] = self.digests[tile], after
        self._unknown.discard(tile)
        if not self._wanted(tile):
            self._mended(tile)  # of a tile that others need, the digest is all that is followed
            return ""
        if tile in self.failed:
            return self.failed[tile]  # it goes on being wrong until it is repaired
        if before != known:
            return f"{hop.name} was made on other bits than those of version {hop.start}"
        try:
            bits = self._bits(tile)
            payload = opened.payload(tile) if opened.is_whole else opened.fetch_payload(self._log.blobs, tile)
            patch = _decoded(bits, payload, self.grid.tiles[tile].dtype, tables)
        except (*DAMAGE, CodecError) as error:
            return str(error)
        if advance(digest(bits) if hop.start is None else before, patch) != after:
            return f"its bits after decoding are not those of version {hop.end}: the base or the payload is damaged"
        self._put(tile, patch)
        return ""

    def _base(self, tile: int) -> Bits:
        """What the draft began with."""
        return gather(self.grid.tiles[tile], self._new if self.held is None else self.held.tensors)  # type: ignore[arg-type]

    def _bits(self, tile: int) -> Bits:
        """A tile as it is by now."""
        if self._new is not None:
            return gather(self.grid.tiles[tile], self._new, self._buffer(tile))
        if tile in self._patches:
            self._copies[tile] = _patched(self._base(tile), self._patches.pop(tile))
        if tile in self._copies:
            return self._copies[tile]
        assert self.held is not None
        return gather(self.grid.tiles[tile], self.held.tensors, self._buffer(tile))

    def _put(self, tile: int, patch: Patch, final: bool = False) -> None:
        if self._new is not None:
            scatter(self.grid.tiles[tile], patch.index, patch.new, self._new)
        elif final:
            self._copies.pop(tile, None)
            self._patches[tile] = patch
        elif tile in self._copies:
            apply(patch, self._copies[tile])
        else:
            self._patches[tile] = patch

    def _buffer(self, tile: int) -> Bits:
        """Room for one tile, one per thread: it stays in the cache."""
        if not hasattr(self._scratch, "room"):
            self._scratch.room = np.empty(TILE_MAX, np.uint32)
        room: Bits = self._scratch.room.view(unsigned(self.grid.tiles[tile].dtype))
        return room


def with_patches(grid: Grid, tensors: Mapping[str, Array], patches: Mapping[int, Patch]) -> dict[str, Array]:
    """Copies of the tensors that the patches write to, beside the others themselves."""
    after = dict(tensors)
    for tile, patch in patches.items():
        for name in touched(grid.tiles[tile], patch.index):
            if after[name] is tensors[name]:
                after[name] = tensors[name].copy()
        scatter(grid.tiles[tile], patch.index, patch.new, after)
    return after


def _patched(bits: Bits, patch: Patch) -> Bits:
    copy = bits.copy()
    apply(patch, copy)
    return copy


@cache
def no_tables(dtype: str) -> Tables:
    """Stands in for tables where an object has none for this dtype: its tiles hold their bits as they are."""
    return Statistics.empty(dtype).tables()


def _decoded(bits: Bits, payload: memoryview, dtype: str, tables: Mapping[str, Tables]) -> Patch:
    """decode_tile, or CodecError where the tables that the payload needs are not there."""
    if dtype not in tables and len(payload) and payload[0] in (Kind.CLASSES, Kind.FLAT):
        raise CodecError(f"an entropy coded tile of {dtype}, without tables for it")
    return decode_tile(bits, payload, tables.get(dtype) or no_tables(dtype))


def _tables(hop: Hop, opened: Opened) -> dict[str, Tables]:
    """The coding tables of an object, by dtype."""
    try:
        return {tables.dtype: tables for tables in map(_parsed, opened.tables)}
    except CodecError as error:
        raise Broken(hop.end, f"its coding tables are damaged: {error}") from error


@lru_cache(maxsize=32)
def _parsed(tables: bytes) -> Tables:
    """All objects of a version hold the same tables, and parsing them takes as long as decoding some tiles."""
    return Tables.from_bytes(tables)
