"""The tile grid: which elements of which tensors are coded, verified, fetched and repaired together.

A pure function of the tensor table and a GridSpec, both of which every manifest names, so that all readers cut alike.
Matrices are cut so that each rank of every tensor-parallel degree that divides `spec.tp`, and of every expert-parallel
degree, owns whole tiles: decoding needs the old bits of a whole tile, so a rank can follow the log with its own alone.

    table + spec -> blocks (one owner each) -> pieces of at most `largest` elements -> tiles

A tile is a list of pieces of one dtype and one owner, flattened one behind the other. A piece of `smallest` elements or
more is a tile by itself; smaller ones share. Tiles are numbered owner by owner, so that a rank's tiles lie side by side
in an object.

Not covered: matrices of 64-bit elements, and fused projections on disk (qkv_proj, gate_up_proj of a dense model), whose
ranks own several ranges of rows: every rank gets all of them, unless a rule in the spec says otherwise.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from twinmill.records import wire
from twinmill.records.weights import GridRule, GridSpec, Layout, TensorSpec, TensorTable

from .errors import Refused
from .tensors import WIDTHS, Array, Bits, State, bits_of, unsigned
from .wdx import TILE_MAX, digest, write

MOST_TP = 4096
RULES: Sequence[GridRule] = (
    GridRule(pattern=r"\.experts\.(\d+)\.", layout=Layout.EXPERT),
    GridRule(pattern=r"\.experts\.\w+$", layout=Layout.STACKED),
    GridRule(pattern=r"\b(q_proj|q_b_proj|kv_b_proj|gate_proj|up_proj)\.\w+$", layout=Layout.COLUMN),
    GridRule(pattern=r"\b(embed_tokens|lm_head)\.\w+$", layout=Layout.COLUMN),
    GridRule(pattern=r"\b(k_proj|v_proj)\.\w+$", layout=Layout.KV),
    GridRule(pattern=r"\b(o_proj|down_proj)\.(?!bias)\w+$", layout=Layout.ROW),
)
"""Names of Hugging Face's Llama, Qwen3, Qwen3-MoE and DeepSeek-V3. What none finds is replicated."""


class Owner(NamedTuple):
    """Who needs a tile. `first`, `last`: a range of tensor-parallel ranks at degree spec.tp, or of experts."""

    layout: Layout
    first: int
    last: int


class Piece(NamedTuple):
    """A rectangle of one tensor, seen as a matrix of its first axis by all others. `start`: its place in the tile."""

    name: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    start: int

    @property
    def size(self) -> int:
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])


class Tile(NamedTuple):
    owner: Owner
    dtype: str
    """of its elements; tensors of 64 bits are pairs of U32, low half first"""
    pieces: tuple[Piece, ...]
    size: int
    """elements"""


class _Block(NamedTuple):
    owner: Owner
    rows: tuple[int, int]
    columns: tuple[int, int]


class Grid:
    """All tiles of a model. Two grids of equal tables and specs are equal."""

    def __init__(self, table: TensorTable, spec: GridSpec) -> None:
        """Refused when the table or the spec cannot be."""
        _check(table, spec)
        self.table = table
        self.spec = spec
        self.dtypes = {tensor.name: tensor.dtype for tensor in table.tensors}
        self.shapes = {tensor.name: tensor.shape for tensor in table.tensors}
        self.tiles = tuple(_tiles(table, spec))
        self.elements = sum(tile.size for tile in self.tiles)
        self.bytes = sum(prod(tensor.shape) * WIDTHS[tensor.dtype] for tensor in table.tensors)

    @cached_property
    def _identity(self) -> bytes:
        return blake3(wire.pack(self.table) + wire.pack(self.spec)).digest()

    def model_digest(self, digests: Sequence[bytes]) -> str:
        """One digest over the digests of all tiles, and over what the tiles are."""
        if len(digests) != len(self.tiles):
            raise ValueError(f"{len(digests)} digests for {len(self.tiles)} tiles")
        return blake3(self._identity + b"".join(digests)).hexdigest()

    def describe(self, tile: int) -> str:
        """A tile in words."""
        names = list(dict.fromkeys(piece.name for piece in self.tiles[tile].pieces))
        return f"tile {tile} ({', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''})"

    def blank(self) -> dict[str, Array]:
        """A state of zeros. Its memory is taken when it is written."""
        return {name: np.zeros(self.shapes[name], unsigned(dtype)) for name, dtype in self.dtypes.items()}

    def experts(self) -> int:
        """How many experts a layer has; 0 = the model is dense."""
        return max((tile.owner.last for tile in self.tiles if tile.owner.layout is Layout.EXPERT), default=0)


class Shard(NamedTuple):
    """What one rank of an engine holds. `kv_heads`: where fewer than `tp`, ranks share them; 0 = they divide by tp."""

    tp: int = 1
    tp_rank: int = 0
    ep: int = 1
    ep_rank: int = 0
    kv_heads: int = 0


def owned(grid: Grid, shard: Shard) -> tuple[int, ...]:
    """The tiles that a rank needs. Refused for a degree that this grid was not cut for."""
    experts = grid.experts()
    if grid.spec.tp % shard.tp or not 0 <= shard.tp_rank < shard.tp or not 0 <= shard.ep_rank < shard.ep:
        raise Refused(f"rank {shard} does not fit tiles cut for tp {grid.spec.tp}: want a tp that divides it")
    if experts % shard.ep:
        raise Refused(f"{experts} experts cannot be shared evenly by {shard.ep} ranks")
    rank = (shard.tp_rank * grid.spec.tp // shard.tp, (shard.tp_rank + 1) * grid.spec.tp // shard.tp)
    heads = shard.kv_heads if 0 < shard.kv_heads < shard.tp else shard.tp
    head = shard.tp_rank * heads // shard.tp
    wanted: Mapping[Layout, tuple[int, int]] = {
        Layout.COLUMN: rank,
        Layout.KV: (head * grid.spec.tp // heads, (head + 1) * grid.spec.tp // heads),
        Layout.EXPERT: (shard.ep_rank * experts // shard.ep, (shard.ep_rank + 1) * experts // shard.ep),
        Layout.REPLICATED: (0, 1),
    }
    return tuple(
        index
        for index, tile in enumerate(grid.tiles)
        if tile.owner.first < wanted[tile.owner.layout][1] and wanted[tile.owner.layout][0] < tile.owner.last
    )


def gather(tile: Tile, state: State, out: Bits | None = None) -> Bits:
    """The tile's elements, flat: a view of the state's memory where they lie side by side, else a copy (in `out`)."""
    if len(tile.pieces) == 1:
        view = _view(tile.pieces[0], state)
        if view.flags.c_contiguous:
            return view.reshape(-1)
    flat: Bits = np.empty(tile.size, unsigned(tile.dtype)) if out is None else out[: tile.size]
    for piece in tile.pieces:
        view = _view(piece, state)
        flat[piece.start : piece.start + piece.size].reshape(view.shape)[...] = view
    return flat


def fill(tile: Tile, bits: Bits, state: State) -> None:
    """Write all of a tile's elements into the state."""
    for piece in tile.pieces:
        view = _view(piece, state)
        view[...] = bits[piece.start : piece.start + piece.size].reshape(view.shape)


def scatter(tile: Tile, index: Array, bits: Bits, state: State) -> None:
    """Write bits[i] to the tile's element index[i]. `index` ascends. Doing it twice is doing it once."""
    for piece, part in _parts(tile, index):
        target, stride = _flat(piece, state)
        where = index[part].astype(np.uint32, copy=False) - np.uint32(piece.start)
        width, begin = piece.columns[1] - piece.columns[0], piece.rows[0] * stride + piece.columns[0]
        if width == stride:
            write(target[begin : begin + piece.size], where, bits[part])
        else:  # its memory may be longer than any tile, for which the codec's own loop is not made
            rows = where // np.uint32(width)
            target[rows.astype(np.intp) * (stride - width) + where + begin] = bits[part]


def touched(tile: Tile, index: Array) -> Iterator[str]:
    """Names of the tensors that a patch writes to."""
    return (piece.name for piece, _ in _parts(tile, index))


def _parts(tile: Tile, index: Array) -> Iterator[tuple[Piece, slice]]:
    """The pieces that some of `index` fall into, and which."""
    ends = np.searchsorted(index, [piece.start + piece.size for piece in tile.pieces])
    begin = 0
    for piece, end in zip(tile.pieces, ends.tolist()):
        if end > begin:
            yield piece, slice(begin, end)
        begin = end


def _matrix(shape: tuple[int, ...], dtype: str) -> tuple[int, int]:
    """Rows and columns of a tensor's tile elements."""
    return (shape[0] if shape else 1), prod(shape[1:]) * max(1, WIDTHS[dtype] // 4)


def _view(piece: Piece, state: State) -> Bits:
    flat, columns = _flat(piece, state)
    return flat.reshape(-1, columns)[slice(*piece.rows), slice(*piece.columns)]


def _flat(piece: Piece, state: State) -> tuple[Bits, int]:
    """A tensor's memory as tile elements, and how many of them are a row."""
    array = state[piece.name]
    if not array.flags.c_contiguous:
        raise ValueError(f"tensor {piece.name!r} is not contiguous; pass its np.ascontiguousarray")
    flat = bits_of(array)
    if flat.itemsize > 4:
        flat = flat.view(np.uint32)
    return flat, flat.size // (array.shape[0] if array.shape else 1)


def digests(grid: Grid, state: State) -> list[bytes]:
    """The digest of every tile."""
    scratch = np.empty(TILE_MAX, np.uint32)
    return [digest(gather(tile, state, scratch.view(unsigned(tile.dtype)))) for tile in grid.tiles]


def tiled_digest(state: State, dtypes: Mapping[str, str], spec: GridSpec) -> str:
    """The model digest that a version of this state has, cut by `spec`."""
    grid = Grid(table_of(state, dtypes), spec)
    return grid.model_digest(digests(grid, state))


def table_of(state: State, dtypes: Mapping[str, str]) -> TensorTable:
    """The table that a log of such states has: by name."""
    specs = (TensorSpec(name=name, dtype=dtypes[name], shape=tuple(state[name].shape)) for name in sorted(state))
    return TensorTable(tensors=tuple(specs))


# ---- cutting


def _coded(dtype: str) -> str:
    return dtype if WIDTHS[dtype] <= 4 else "U32"


def _check(table: TensorTable, spec: GridSpec) -> None:
    if not 0 < spec.tp <= MOST_TP or not 0 < spec.smallest <= spec.largest <= TILE_MAX:
        raise Refused(f"{spec}: want 0 < tp <= {MOST_TP} and 0 < smallest <= largest <= {TILE_MAX}")
    names = [tensor.name for tensor in table.tensors]
    if len(set(names)) < len(names):
        raise Refused("a tensor table names a tensor twice")
    for tensor in table.tensors:
        if tensor.dtype not in WIDTHS or min(tensor.shape, default=0) < 0:
            raise Refused(f"tensor {tensor.name!r}: no such dtype or shape as {tensor.dtype} {tensor.shape}")


def _tiles(table: TensorTable, spec: GridSpec) -> list[Tile]:
    rules = [(re.compile(rule.pattern), rule.layout) for rule in (*spec.rules, *RULES)]
    shared: dict[tuple[Owner, str], list[Piece]] = {}
    tiles: list[Tile] = []

    def close(owner: Owner, dtype: str) -> None:
        pieces = shared.pop((owner, dtype))
        tiles.append(Tile(owner, dtype, tuple(pieces), pieces[-1].start + pieces[-1].size))

    for tensor in table.tensors:
        for block in _blocks(tensor, rules, spec):
            for rows, columns in _chunks(block, spec.largest):
                piece, key = Piece(tensor.name, rows, columns, 0), (block.owner, _coded(tensor.dtype))
                if piece.size >= spec.smallest:
                    tiles.append(Tile(*key, (piece,), piece.size))
                    continue
                filled = shared[key][-1].start + shared[key][-1].size if key in shared else 0
                if filled + piece.size > spec.largest:
                    close(*key)
                    filled = 0
                shared.setdefault(key, []).append(piece._replace(start=filled))
    for key in list(shared):
        close(*key)
    order = {layout: place for place, layout in enumerate(Layout)}
    return sorted(tiles, key=lambda tile: (order[tile.owner.layout], tile.owner.first, tile.owner.last))


def _blocks(tensor: TensorSpec, rules: Sequence[tuple[re.Pattern[str], Layout]], spec: GridSpec) -> Iterator[_Block]:
    rows, columns = _matrix(tensor.shape, tensor.dtype)
    if not rows * columns:
        return
    for pattern, layout in rules if WIDTHS[tensor.dtype] <= 4 else ():
        if found := pattern.search(tensor.name):
            expert = int(found[1]) if layout is Layout.EXPERT else 0
            yield from _CUTS[layout](rows, columns, spec.tp, expert)
            return
    yield from _replicated(rows, columns, spec.tp, 0)


def _by_rows(layout: Layout) -> Callable[[int, int, int, int], Iterator[_Block]]:
    def cut(rows: int, columns: int, tp: int, expert: int) -> Iterator[_Block]:
        for owner, block in _even(layout, rows, tp):
            yield _Block(owner, block, (0, columns))

    return cut


def _by_columns(rows: int, columns: int, tp: int, expert: int) -> Iterator[_Block]:
    for owner, block in _even(Layout.COLUMN, columns, tp):
        yield _Block(owner, (0, rows), block)


def _even(layout: Layout, length: int, tp: int) -> Iterator[tuple[Owner, tuple[int, int]]]:
    """As many equal blocks as `tp` and the length allow, so that every degree that divides both owns whole ones."""
    blocks = gcd(length, tp)
    if blocks == 1 < tp:
        yield Owner(Layout.REPLICATED, 0, 1), (0, length)
        return
    step = tp // blocks
    for block in range(blocks):
        place = (block * length // blocks, (block + 1) * length // blocks)
        yield Owner(layout, block * step, (block + 1) * step), place


def _of_expert(rows: int, columns: int, tp: int, expert: int) -> Iterator[_Block]:
    yield _Block(Owner(Layout.EXPERT, expert, expert + 1), (0, rows), (0, columns))


def _stacked(rows: int, columns: int, tp: int, expert: int) -> Iterator[_Block]:
    for row in range(rows):
        yield _Block(Owner(Layout.EXPERT, row, row + 1), (row, row + 1), (0, columns))


def _replicated(rows: int, columns: int, tp: int, expert: int) -> Iterator[_Block]:
    yield _Block(Owner(Layout.REPLICATED, 0, 1), (0, rows), (0, columns))


_CUTS: Mapping[Layout, Callable[[int, int, int, int], Iterator[_Block]]] = {
    Layout.COLUMN: _by_rows(Layout.COLUMN),
    Layout.KV: _by_rows(Layout.KV),
    Layout.ROW: _by_columns,
    Layout.EXPERT: _of_expert,
    Layout.STACKED: _stacked,
    Layout.REPLICATED: _replicated,
}


def _chunks(block: _Block, largest: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """(rows, columns) of nearly equal parts of a block, none above `largest` elements."""
    across = -(-(block.columns[1] - block.columns[0]) // largest)
    for columns in _split(block.columns, across):
        height = max(1, largest // (columns[1] - columns[0]))
        for rows in _split(block.rows, -(-(block.rows[1] - block.rows[0]) // height)):
            yield rows, columns


def _split(extent: tuple[int, int], parts: int) -> Iterator[tuple[int, int]]:
    first, length = extent[0], extent[1] - extent[0]
    for part in range(parts):
        yield first + part * length // parts, first + (part + 1) * length // parts
