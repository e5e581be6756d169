"""wdx1 in plain NumPy and Python: the specification. Slow and clear; the native extension gives the same bytes.

Everything here is a pure function of flat unsigned bits (u8, u16, u32; at most 2^20 of them).
"""

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ..errors import CodecError
from . import rans
from .layout import GAPS, LAYOUTS, NIBBLE, VALUES, Alphabet, Bits, Ints, classes_of, unzigzag, zigzag
from .patch import Patch
from .tables import Mode, Tables

if TYPE_CHECKING:
    from .statistics import Statistics

CLASSES: Final = 3
FLAT: Final = 4
"""the kinds of tile that are entropy coded"""
SAMPLED: Final = 64
"""the encoder looks at every 64th block of 64 elements to find the tile's shift"""
MANY: Final = 2048
"""symbols from which a tile is coded in four lanes"""


# ---------------------------------------------------------------- passes over whole tiles


def compare(before: Bits, after: Bits) -> Patch:
    index = np.flatnonzero(before != after).astype(np.uint32)
    return Patch(index, before[index], after[index])


def compare_and_advance(snapshot: Bits, new: Bits) -> Patch:
    patch = compare(snapshot, new)
    snapshot[patch.index] = patch.new
    return patch


def scatter(target: Bits, index: npt.NDArray[np.uint32], bits: Bits) -> None:
    target[index] = bits


def gather(into: "Statistics", before: Bits, after: Bits) -> None:
    """Add one tile to statistics."""
    layout = LAYOUTS[into.dtype]
    changed = before != after
    into.flat += _histogram(GAPS.token_of(_gaps(np.flatnonzero(changed))), GAPS.size)
    exponents = classes_of(before, layout, 0, layout.exponents)
    alphabet = VALUES[layout.width]
    for e in np.unique(exponents):
        here = exponents == e
        bitmap = changed[here]
        into.seen[e] += len(bitmap)
        into.changed[e] += np.count_nonzero(bitmap)
        into.gaps[e] += _histogram(GAPS.token_of(_gaps(np.flatnonzero(bitmap))), GAPS.size)
        into.holes[e] += _histogram(GAPS.token_of(_gaps(np.flatnonzero(~bitmap))), GAPS.size)
        into.nibbles[e] += _histogram(_nibbles(bitmap), NIBBLE)
        moved = here & changed
        moves = zigzag(after[moved] - before[moved]).astype(np.uint64) - np.uint64(1)
        into.values[e] += _histogram(alphabet.token_of(moves), alphabet.size)


def _histogram(symbols: Ints, size: int) -> Ints:
    return np.bincount(symbols, minlength=size).astype(np.uint64)


# ---------------------------------------------------------------- digest


def _keys(index: Ints) -> tuple[Ints, Ints]:
    """Two u64 arrays of 32-bit keys per position. Both are permutations of the 32-bit numbers that send no position of a
    tile to 0: so any one changed element, and any exchange of two different ones, changes each half of the digest."""
    low = np.uint64(0xFFFFFFFF)
    key = index.astype(np.uint64) ^ np.uint64(0x9E3779B9)
    key = (key ^ key >> np.uint64(16)) * np.uint64(0x85EBCA6B) & low
    key = (key ^ key >> np.uint64(13)) * np.uint64(0xC2B2AE35) & low
    one = key ^ key >> np.uint64(16)
    two = (one ^ one >> np.uint64(15)) * np.uint64(0x2C1B3C6D) & low
    return one, two ^ two >> np.uint64(12)


def digest(bits: Bits) -> bytes:
    """Two u64 sums over the tile: of bits[i] * key(i), modulo 2^64; the first begins at the number of elements, the second
    at their width."""
    one, two = _keys(np.arange(bits.size))
    wide = bits.astype(np.uint64)
    halves = np.array([bits.size, bits.itemsize], np.uint64)
    halves += np.array([(wide * one).sum(dtype=np.uint64), (wide * two).sum(dtype=np.uint64)])
    return halves.astype("<u8").tobytes()


def advance(before: bytes, patch: Patch) -> bytes:
    one, two = _keys(patch.index)
    moved = patch.new.astype(np.uint64) - patch.old.astype(np.uint64)
    halves = np.frombuffer(before, "<u8").astype(np.uint64)
    halves += np.array([(moved * one).sum(dtype=np.uint64), (moved * two).sum(dtype=np.uint64)])
    return halves.astype("<u8").tobytes()


# ---------------------------------------------------------------- encode


def encode_body(before: Bits, patch: Patch, tables: Tables, kind: int) -> bytes:
    """A tile of kind 3 or 4; `patch` is not empty."""
    writer = _Writer()
    if kind == CLASSES:
        setting = _shift(before, len(patch), tables)
        classes = classes_of(before, tables.layout, tables.first + setting, tables.classes)
        _write_classes(writer, classes, patch, tables)
        rows = classes[patch.index]
        setting += 8
    else:
        setting = _scale(before.size, len(patch), tables)
        writer.count(len(patch))
        writer.tokens(GAPS, tables.position_row(tables.classes), _gaps(patch.index), setting)
        rows = np.full(len(patch), tables.classes, np.uint8)
    moves = zigzag(patch.new - patch.old).astype(np.uint64) - np.uint64(1)
    writer.values(VALUES[tables.layout.width], [tables.value_row(int(row)) for row in rows], moves)
    return writer.payload(kind, setting)


def _write_classes(writer: "_Writer", classes: Ints, patch: Patch, tables: Tables) -> None:
    """The bitmap of each class. Counts of all classes come before the extra bits of the first."""
    changed = np.zeros(classes.size, bool)
    changed[patch.index] = True
    bitmaps = [changed[classes == c] for c in range(tables.classes)]
    events = [np.flatnonzero(bitmap == (mode is not Mode.HOLES)) for bitmap, mode in zip(bitmaps, tables.modes)]
    for mode, event in zip(tables.modes, events):
        if mode is not Mode.NIBBLES:
            writer.count(len(event))
    for c, mode in enumerate(tables.modes):
        if mode is Mode.NIBBLES:
            writer.symbols(tables.position_row(c), _nibbles(bitmaps[c]))
        else:
            writer.tokens(GAPS, tables.position_row(c), _gaps(events[c]), 0)


def _gaps(positions: Ints) -> Ints:
    return (np.diff(positions.astype(np.int64), prepend=-1) - 1).astype(np.uint64)


def _nibbles(bitmap: npt.NDArray[np.bool_]) -> Ints:
    padded = np.append(bitmap, np.zeros(-len(bitmap) % 4, bool)).reshape(-1, 4)
    symbols: Ints = (padded @ np.array([1, 2, 4, 8])).astype(np.uint8)
    return symbols


def _shift(before: Bits, changes: int, tables: Tables) -> int:
    """How many exponents this tile's classes lie above those of the tables: a tile that learns half as fast behaves as one
    that is a binade larger. The one of -8..7 whose expected number of changes comes nearest to the true one."""
    if tables.layout.exponents == 1:
        return 0
    sample = before[np.arange(before.size) // 64 % SAMPLED == 0]
    wanted = (changes << 16) * sample.size

    def missed(shift: int) -> tuple[int, int, int]:
        classes = classes_of(sample, tables.layout, tables.first + shift, tables.classes)
        expected = int(tables.chances[classes].sum(dtype=np.uint64)) * before.size
        return abs(expected - wanted), abs(shift), shift

    return min(missed(shift) for shift in range(-8, 8))[2]


def _scale(size: int, changes: int, tables: Tables) -> int:
    """log2 of how much larger this tile's gaps are than those of the tables, 0..15, as near as it comes."""
    expected = size * int(tables.chances[-1])
    return min((abs(expected - (changes << (16 + scale))), scale) for scale in range(16))[1]


class _Writer:
    """Collects what a tile consists of, in the order of decoding."""

    def __init__(self) -> None:
        self._steps: list[tuple[list[rans.Row], Ints]] = []
        self._counts: list[int] = []
        self._extra: list[tuple[Ints, Ints]] = []

    def count(self, number: int) -> None:
        self._counts.append(number)

    def symbols(self, row: rans.Row, symbols: Ints) -> None:
        self._steps.append(([row] * len(symbols), symbols))

    def tokens(self, alphabet: Alphabet, row: rans.Row, numbers: Ints, scale: int) -> None:
        self._tokens(alphabet, [row] * len(numbers), numbers, scale)

    def values(self, alphabet: Alphabet, rows: list[rans.Row], numbers: Ints) -> None:
        self._tokens(alphabet, rows, numbers, 0)

    def _tokens(self, alphabet: Alphabet, rows: list[rans.Row], numbers: Ints, scale: int) -> None:
        """The `scale` lowest bits of each number go into the extra bits as they are."""
        tokens = alphabet.token_of(numbers >> np.uint64(scale))
        known = np.array([row.frequency[token] > 0 for row, token in zip(rows, tokens)], bool)
        tokens = np.where(known, tokens, alphabet.escape).astype(np.uint8)
        self._steps.append((rows, tokens))
        self._extra.append(
            (
                numbers - (alphabet.base[tokens] << np.uint64(scale)),
                alphabet.extra_bits[tokens].astype(np.int64) + scale,
            )
        )

    def payload(self, kind: int, setting: int) -> bytes:
        many = sum(len(symbols) for _, symbols in self._steps) >= MANY
        lanes = rans.LANES if many else 1
        head: list[tuple[int, int]] = [(int(many), 1), (setting, 4)]
        for count in self._counts:
            length = count.bit_length()
            head += [(length, 5), (count & ~(1 << length >> 1), max(length - 1, 0))]
        steps = [
            (row, int(symbol), i % lanes)
            for rows, symbols in self._steps
            for i, (row, symbol) in enumerate(zip(rows, symbols))
        ]
        numbers, lengths = zip(*head)
        return (
            bytes([kind])
            + rans.encode(steps, lanes)
            + rans.pack_bits([(np.array(numbers), np.array(lengths)), *self._extra])
        )


# ---------------------------------------------------------------- decode


def decode_body(before: Bits, payload: bytes, tables: Tables) -> Patch:
    """CodecError unless `payload` is what encode_body can have written for a tile of this size, to the last bit."""
    kind = payload[0]
    bits = rans.BitReader(payload[1:])
    lanes = rans.LANES if bits.one(1) else 1
    setting = bits.one(4)
    coder = rans.Decoder(payload, 1, lanes)
    if kind == CLASSES:
        classes = classes_of(before, tables.layout, tables.first + setting - 8, tables.classes)
        index = _read_classes(coder, bits, classes, tables)
        rows = classes[index]
    else:
        count = _read_count(bits, before.size)
        index = _read_positions(coder, bits, tables.position_row(tables.classes), count, before.size, setting)
        rows = np.full(len(index), tables.classes, np.uint8)
    if not len(index):
        raise CodecError("a tile of changes without a change")
    alphabet = VALUES[tables.layout.width]
    tokens = coder.take([tables.value_row(int(row)) for row in rows])
    moves = alphabet.base[tokens] + bits.take(alphabet.extra_bits[tokens]) + np.uint64(1)
    if moves.max() >= 1 << 8 * before.itemsize:
        raise CodecError("a change that changes nothing")
    if coder.finish() + bits.finish() != len(payload):
        raise CodecError("bytes between the words and the bits, or one taken twice")
    old = before[index]
    return Patch(index, old, old + unzigzag(moves.astype(before.dtype)))


def _read_count(bits: rans.BitReader, most: int) -> int:
    length = bits.one(5)
    count = bits.one(length - 1) | 1 << (length - 1) if length else 0
    if count > most:
        raise CodecError(f"{count} changes among {most} elements")
    return count


def _read_classes(coder: rans.Decoder, bits: rans.BitReader, classes: Ints, tables: Tables) -> npt.NDArray[np.uint32]:
    sizes = np.bincount(classes, minlength=tables.classes).tolist()
    counts = [0 if m is Mode.NIBBLES else _read_count(bits, size) for m, size in zip(tables.modes, sizes)]
    changed = np.zeros(classes.size, bool)
    for c, mode in enumerate(tables.modes):
        row = tables.position_row(c)
        bitmap = np.full(sizes[c], mode is Mode.HOLES)
        if mode is Mode.NIBBLES:
            symbols = coder.take([row] * (-(-sizes[c] // 4)))
            spread = (symbols[:, None] >> np.arange(4, dtype=np.uint8) & 1).astype(bool).reshape(-1)
            if spread[sizes[c] :].any():
                raise CodecError("a change behind the end of a class")
            bitmap = spread[: sizes[c]]
        else:
            bitmap[_read_positions(coder, bits, row, counts[c], sizes[c], 0)] ^= True
        changed[classes == c] = bitmap
    return np.flatnonzero(changed).astype(np.uint32)


def _read_positions(
    coder: rans.Decoder, bits: rans.BitReader, row: rans.Row, count: int, size: int, scale: int
) -> npt.NDArray[np.uint32]:
    tokens = coder.take([row] * count)
    extra = bits.take(GAPS.extra_bits[tokens].astype(np.int64) + scale)
    gaps = (GAPS.base[tokens] << np.uint64(scale)) + extra
    positions = np.cumsum(gaps + np.uint64(1)) - np.uint64(1)  # at most 2^20 gaps below 2^36: no wrap
    if count and int(positions[-1]) >= size:
        raise CodecError(f"a change at {int(positions[-1])} among {size} elements")
    return positions.astype(np.uint32)
