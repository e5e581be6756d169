"""From what changed to coding tables. Only writers come here: what is computed with floats ends as integers in the file."""

from dataclasses import dataclass, fields
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from ..errors import CodecError
from . import native
from .layout import GAPS, LAYOUTS, NIBBLE, TILE_MAX, VALUES, Alphabet, Bits, Ints
from .tables import Mode, Tables, normalised

CLASSES: Final = 12
"""measured, size over the h1 bound at 0.3 %, 1.9 % and 12 % changed and on a cold first step: 8 classes 1.064, 1.031, 1.015,
1.039; 10 classes 1.044, 1.019, 1.009, 1.026; 12 classes 1.036, 1.015, 1.009, 1.024. With 12, some are left for tiles that learn
up to 64 times slower than the others, which then stay within 1.07"""
_NIBBLES_FROM, _HOLES_FROM = 0.2, 0.8
"""shares of changed elements at which another way to write a bitmap needs fewer symbols"""
_PRIOR_EVENTS: Final = 8.0
"""how many observed events a guess weighs as much as: it speaks only where little was seen"""
_PRIOR_ELEMENTS: Final = 32.0
_NEARLY: Final = 1.006

Counts = npt.NDArray[np.uint64]


@dataclass(eq=False)
class Statistics:
    """What the tables are made from, per exponent of the old bits. Sums, so any number of processes can gather and merge.

    Ranks are within the exponent: element j of exponent e is the j-th of its tile that has this exponent.
    """

    dtype: str
    seen: Counts
    """[exponents] elements"""
    changed: Counts
    """[exponents] elements that changed"""
    gaps: Counts
    """[exponents, gap tokens] gaps between changed elements, in ranks"""
    holes: Counts
    """[exponents, gap tokens] gaps between unchanged elements, in ranks"""
    nibbles: Counts
    """[exponents, 16] four neighbouring ranks; the last of a tile are filled up with unchanged ones"""
    values: Counts
    """[exponents, value tokens] how changed elements moved"""
    flat: Counts
    """[gap tokens] gaps between changed elements, in positions"""

    @classmethod
    def empty(cls, dtype: str) -> "Statistics":
        layout = LAYOUTS[dtype]

        def zeros(*symbols: int) -> Counts:
            return np.zeros((layout.exponents, *symbols), np.uint64)

        gaps, holes, nibbles = zeros(GAPS.size), zeros(GAPS.size), zeros(NIBBLE)
        values = zeros(VALUES[layout.width].size)
        return cls(dtype, zeros(), zeros(), gaps, holes, nibbles, values, np.zeros(GAPS.size, np.uint64))

    def add(self, before: Bits, after: Bits) -> None:
        """One tile."""
        native.engine().gather(self, before, after)

    def merge(self, other: "Statistics") -> None:
        if other.dtype != self.dtype:
            raise ValueError(f"statistics of {other.dtype} cannot be added to those of {self.dtype}")
        for mine, theirs in zip(self._arrays(), other._arrays()):
            mine += theirs

    def to_bytes(self) -> bytes:
        """For another process of the same publication; not a format of the store."""
        body = b"".join(array.astype("<u8").tobytes() for array in self._arrays())
        return bytes([LAYOUTS[self.dtype].code]) + zstandard.ZstdCompressor(level=1).compress(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Statistics":
        names = {layout.code: name for name, layout in LAYOUTS.items()}
        if not data or data[0] not in names:
            raise CodecError("statistics of an unknown dtype")
        out = cls.empty(names[data[0]])
        want = sum(array.nbytes for array in out._arrays())
        try:
            body = zstandard.ZstdDecompressor().decompress(data[1:], max_output_size=want)
        except zstandard.ZstdError as error:
            raise CodecError(f"statistics are no zstd frame: {error}") from error
        if len(body) != want:
            raise CodecError(f"statistics of {len(body)} bytes, {want} are wanted")
        numbers = np.frombuffer(body, "<u8")
        at = 0
        for array in out._arrays():
            array[...] = numbers[at : at + array.size].reshape(array.shape)
            at += array.size
        return out

    def _arrays(self) -> list[Counts]:
        return [getattr(self, field.name) for field in fields(self) if field.name != "dtype"]

    def tables(self, classes: int = CLASSES) -> Tables:
        """Coding tables that suit what was seen, and can code anything else."""
        layout = LAYOUTS[self.dtype]
        classes = min(classes, layout.exponents)
        first = _best_first(self, classes) if classes > 1 else 0
        alphabet = VALUES[layout.width]
        chance, moves = 1.0, _falling(alphabet)  # of the row before; class c + 1 changes about half as often as class c
        rows = []
        for c in range(classes):
            low = first + c if c else 0
            which = slice(low, first + c + 1 if c < classes - 1 else layout.exponents)
            chance = _chance(self.changed[which].sum(), self.seen[which].sum(), chance / 2)
            moves = _shares(self.values[which].sum(axis=0), moves)
            rows.append(_class_row(self, which, chance, moves))
        chance = _chance(self.changed.sum(), self.seen.sum(), 0.01)
        gaps = _shares(self.flat, _geometric(chance))
        rows.append(_Row(Mode.GAPS, chance, gaps, _shares(self.values.sum(axis=0), _falling(alphabet))))
        return Tables(
            self.dtype,
            first,
            tuple(row.mode for row in rows[:-1]),
            np.array([min(round(row.chance * 65536), 65535) for row in rows], np.uint16),
            np.array([row.frequencies() for row in rows], np.uint16),
            np.array([normalised(row.moves, escape=True) for row in rows], np.uint16),
        )


def fit(
    before: Bits, after: Bits, dtype: str, *, classes: int = CLASSES, tile: int = TILE_MAX, every: int = 1
) -> Tables:
    """Tables from one pair of flat arrays, cut into tiles; every `every`-th tile is looked at."""
    statistics = Statistics.empty(dtype)
    for start in range(0, before.size, tile * every):
        statistics.add(before[start : start + tile], after[start : start + tile])
    return statistics.tables(classes)


class _Row(NamedTuple):
    mode: Mode
    chance: float
    positions: Ints
    """shares of the symbols that write the bitmap"""
    moves: Ints
    """shares of the value tokens"""

    def frequencies(self) -> Ints:
        out = np.zeros(GAPS.size, np.uint16)
        out[: len(self.positions)] = normalised(self.positions, escape=self.mode is not Mode.NIBBLES)
        return out


def _class_row(seen: Statistics, which: slice, chance: float, moves: Ints) -> _Row:
    """`which` exponents make up the class."""
    if chance < _NIBBLES_FROM:
        mode, measured, guess = Mode.GAPS, seen.gaps, _geometric(chance)
    elif chance > _HOLES_FROM:
        mode, measured, guess = Mode.HOLES, seen.holes, _geometric(1 - chance)
    else:
        ones = np.array([symbol.bit_count() for symbol in range(NIBBLE)])
        mode, measured, guess = Mode.NIBBLES, seen.nibbles, chance**ones * (1 - chance) ** (4 - ones)
    # ranks of several exponents run through each other, so only a class of one has measured gaps
    alone = _alone(seen.seen[which])
    return _Row(mode, chance, _shares(measured[which].sum(axis=0), guess) if alone else guess, moves)


def _alone(seen: Counts) -> bool:
    return bool(seen.max(initial=0) >= 0.95 * seen.sum())


def _chance(changed: int, seen: int, guess: float) -> float:
    """Share of changed elements, neither 0 nor 1."""
    share = (float(changed) + _PRIOR_ELEMENTS * guess) / (float(seen) + _PRIOR_ELEMENTS)
    return min(max(share, 1e-7), 1 - 1e-6)


def _shares(counts: Counts, guess: Ints) -> Ints:
    """Probabilities from counts; the guess (probabilities) speaks where little was counted."""
    weights = counts + _PRIOR_EVENTS * guess
    return np.asarray(weights / weights.sum())


def _geometric(chance: float) -> Ints:
    """Probability of each gap token where every element changes with this chance; the escape gets the rest."""
    stay = np.log1p(-chance)
    reach = np.exp(stay * np.append(GAPS.base[:-1].astype(np.float64), 1 << GAPS.raw_bits))
    return np.append(reach[:-1] - reach[1:], reach[-1])


def _falling(alphabet: Alphabet) -> Ints:
    """How values spread where nothing was seen: half as often with every further unit in the last place."""
    guess = 0.5 ** (np.arange(alphabet.size) / 2)
    return np.asarray(guess / guess.sum())


def _best_first(seen: Statistics, classes: int) -> int:
    """The highest exponent of class 0 that makes positions and values nearly as small as they can be. High, so that there
    are classes left for tiles that learn slower than what was seen."""
    n, k, moves = (array.astype(np.float64) for array in (seen.seen, seen.changed, seen.values))
    one = _cost(n, k, moves)
    below = _cost(n.cumsum(), k.cumsum(), moves.cumsum(axis=0))
    above = _cost(n[::-1].cumsum(), k[::-1].cumsum(), moves[::-1].cumsum(axis=0))[::-1]
    inner = np.append(0.0, one.cumsum())
    last = len(n) - 1
    tops = np.minimum(np.arange(len(n)) + classes - 1, last)
    costs = below + inner[tops] - inner[np.minimum(np.arange(len(n)) + 1, tops)]
    costs += np.where(tops > np.arange(len(n)), above[tops], 0.0)
    return int(np.flatnonzero(costs <= costs.min() * _NEARLY)[-1])


def _cost(seen: Ints, changed: Ints, moves: Ints) -> Ints:
    """Bits for the positions and values of classes with these counts."""

    def plogp(x: Ints) -> Ints:
        return x * np.log2(np.maximum(x, 1.0))

    return np.asarray(plogp(seen) - plogp(seen - changed) - plogp(moves).sum(axis=-1))
