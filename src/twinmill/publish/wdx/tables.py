"""The coding tables of one version and dtype: integers, written into the version's object, never recomputed by a reader."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import CodecError
from .layout import CLASSES_MAX, DTYPE_OF_CODE, GAPS, LAYOUTS, NIBBLE, PROB_BITS, VALUES, Ints, Layout
from .rans import Row

_HEAD: Final = struct.Struct("<BBBB")
_FORMAT: Final = 1
_WHOLE: Final = 1 << PROB_BITS


class Mode(IntEnum):
    """How the bitmap of a class is written."""

    GAPS = 0
    """the changed elements, as gaps: few change"""
    NIBBLES = 1
    """four elements per symbol"""
    HOLES = 2
    """the unchanged elements, as gaps: nearly all change"""


@dataclass(frozen=True, eq=False)
class Tables:
    """Rows 0 .. classes-1 belong to the classes, the last row to codec 4, which knows no classes.

    Every row of frequencies sums to 2^11, has no symbol with all of it, and can code everything: its escape (gaps, values) or
    all its symbols (nibbles) are above 0.
    """

    dtype: str
    first: int
    """e0: exponents up to this one are class 0"""
    modes: tuple[Mode, ...]
    """of each class"""
    chances: npt.NDArray[np.uint16]
    """[classes + 1] share of changed elements, in 1/65536"""
    positions: npt.NDArray[np.uint16]
    """[classes + 1, gap tokens] frequencies; of mode NIBBLES only the first 16 columns are used"""
    values: npt.NDArray[np.uint16]
    """[classes + 1, value tokens] frequencies"""

    @property
    def classes(self) -> int:
        return len(self.modes)

    @cached_property
    def layout(self) -> Layout:
        return LAYOUTS[self.dtype]

    def position_row(self, row: int) -> Row:
        """For the reference coder."""
        return self._rows[row][0]

    def value_row(self, row: int) -> Row:
        return self._rows[row][1]

    @cached_property
    def _rows(self) -> list[tuple[Row, Row]]:
        return [(Row(gaps), Row(moves)) for gaps, moves in zip(self.positions, self.values)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tables) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def to_bytes(self) -> bytes:
        """About 1 kB. The same tables give the same bytes."""
        out = bytearray(_HEAD.pack(_FORMAT, self.layout.code, self.classes, self.first))
        for row, mode in enumerate((*self.modes, Mode.GAPS)):
            out += struct.pack("<BH", mode, int(self.chances[row]))
            _write_row(out, self.positions[row, : _symbols(mode)])
            _write_row(out, self.values[row])
        return bytes(out)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> "Tables":
        """CodecError unless `data` is what to_bytes writes, to the last byte."""
        reader = _Reader(bytes(data))
        form, code, classes, first = _HEAD.unpack(reader.take(_HEAD.size))
        if form != _FORMAT or code not in DTYPE_OF_CODE:
            raise CodecError(f"tables of form {form} for dtype number {code}; this reader knows form {_FORMAT}")
        layout = LAYOUTS[DTYPE_OF_CODE[code]]
        if not 1 <= classes <= CLASSES_MAX or first >= layout.exponents or (layout.exponents == 1 and classes > 1):
            raise CodecError(f"tables of {classes} classes from exponent {first} for {DTYPE_OF_CODE[code]}")
        chances = np.zeros(classes + 1, np.uint16)
        positions = np.zeros((classes + 1, GAPS.size), np.uint16)
        values = np.zeros((classes + 1, VALUES[layout.width].size), np.uint16)
        modes = []
        for row in range(classes + 1):
            number, chances[row] = struct.unpack("<BH", reader.take(3))
            if number not in (0,) if row == classes else number > max(Mode):
                raise CodecError(f"tables with mode {number} in row {row}")
            modes.append(Mode(number))
            symbols = _symbols(modes[-1])
            reader.row(positions[row, :symbols], escape=modes[-1] is not Mode.NIBBLES)
            reader.row(values[row], escape=True)
        if reader.at != len(reader.data):
            raise CodecError(f"{len(reader.data) - reader.at} bytes behind the tables")
        return cls(DTYPE_OF_CODE[code], first, tuple(modes[:-1]), chances, positions, values)


def _symbols(mode: Mode) -> int:
    return NIBBLE if mode is Mode.NIBBLES else GAPS.size


def _write_row(out: bytearray, row: npt.NDArray[Any]) -> None:
    """Each frequency as a varint; a run of zeros as a 0 and the varint of its length."""
    at = 0
    while at < len(row):
        value = int(row[at])
        run = 1
        if value == 0:
            while at + run < len(row) and row[at + run] == 0:
                run += 1
        for number in (value,) if value else (0, run):
            while number >= 0x80:
                out.append(number & 0x7F | 0x80)
                number >>= 7
            out.append(number)
        at += run


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if len(self.data) - self.at < count:
            raise CodecError(f"tables end at byte {len(self.data)}, more is wanted")
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        """At most two bytes: no number in a table needs more than 14 bits."""
        low = self.take(1)[0]
        return low if low < 0x80 else low & 0x7F | self.take(1)[0] << 7

    def row(self, row: npt.NDArray[np.uint16], escape: bool) -> None:
        """Fill `row` with frequencies that a coder can work with."""
        at = total = 0
        while at < len(row):
            frequency = self.varint()
            run = 1 if frequency else self.varint()
            if not 0 < run <= len(row) - at or frequency >= _WHOLE:
                raise CodecError(f"tables with a frequency of {frequency}, {run} times, at symbol {at} of {len(row)}")
            row[at : at + run] = frequency
            total += frequency
            at += run
        if total != _WHOLE or not (row[-1:] if escape else row).all():
            raise CodecError(f"frequencies that sum to {total}, want {_WHOLE} and a code for everything")


def normalised(weights: Ints, escape: bool) -> Ints:
    """u16 frequencies that sum to 2^11, at least two of them above 0, in the proportions of `weights`.

    With `escape`, the last symbol is the escape: it takes the weight of all that come out below one part in 2^11, and is
    never 0. Without, every symbol is at least 1. Only writers call this: it computes with floats.
    """
    weights = weights.astype(np.float64)
    share = weights / max(weights.sum(), 1e-300) * _WHOLE
    if escape:
        kept = share[:-1] >= 0.75
        rest = share[:-1][~kept].sum() + share[-1]
        out = np.append(np.where(kept, np.maximum(np.rint(share[:-1]), 1), 0), max(np.rint(rest), 1))
        if not kept.any():
            out[:] = 0
            out[0], out[-1] = 1, _WHOLE - 1
    else:
        out = np.maximum(np.rint(share), 1)
    while (over := int(out.sum()) - _WHOLE) != 0:  # the largest can bear it best
        largest = int(out.argmax())
        out[largest] -= over if over < 0 else min(over, max(1, int(out[largest]) // 2))
    if out.max() == _WHOLE:
        raise AssertionError("a row needs two symbols")
    return out.astype(np.uint16)
