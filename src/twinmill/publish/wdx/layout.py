"""What wdx1 knows of a dtype, its limits, and its two alphabets. The bytes: docs/FORMATS.md, section wdx1."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Bits: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Ints: TypeAlias = npt.NDArray[Any]

TILE_MAX: Final = 1 << 20
"""elements of the largest tile"""
PROB_BITS: Final = 11
"""frequencies of every table sum to 1 << PROB_BITS"""
CLASSES_MAX: Final = 16


class Layout(NamedTuple):
    """Where the exponent of a dtype lies."""

    code: int
    """the dtype's number in serialised tables"""
    width: int
    """bytes per element"""
    shift: int
    """place of the exponent's lowest bit"""
    exponents: int
    """number of exponent values; 1 = the dtype has none, so that every element is of class 0"""


LAYOUTS: Final[Mapping[str, Layout]] = {
    "BF16": Layout(1, 2, 7, 256),
    "F16": Layout(2, 2, 10, 32),
    "F32": Layout(3, 4, 23, 256),
    "F8_E4M3": Layout(4, 1, 3, 16),
    "F8_E5M2": Layout(5, 1, 2, 32),
    "F8_E8M0": Layout(6, 1, 0, 1),
    "U8": Layout(7, 1, 0, 1),
    "I8": Layout(8, 1, 0, 1),
    "BOOL": Layout(9, 1, 0, 1),
    "U16": Layout(10, 2, 0, 1),
    "I16": Layout(11, 2, 0, 1),
    "U32": Layout(12, 4, 0, 1),
    "I32": Layout(13, 4, 0, 1),
}
DTYPE_OF_CODE: Final[Mapping[int, str]] = {layout.code: name for name, layout in LAYOUTS.items()}


class Alphabet:
    """Tokens for numbers below 2^raw_bits: small ones have a token each, larger ones share four tokens per octave and
    name the place within it by extra bits. The last token is the escape: the whole number as extra bits."""

    def __init__(self, direct_bits: int, raw_bits: int) -> None:
        self.direct_bits = direct_bits
        self.raw_bits = raw_bits
        octaves = np.repeat(np.arange(direct_bits, raw_bits), 4)
        quarter = np.arange(len(octaves)) % 4 + 4
        direct = np.arange(1 << direct_bits)
        self.base: Ints = np.concatenate([direct, quarter << (octaves - 2), [0]]).astype(np.uint64)
        """token -> smallest number it stands for"""
        self.extra_bits: Ints = np.concatenate([0 * direct, octaves - 2, [raw_bits]]).astype(np.uint8)
        """token -> how many extra bits follow, to be added to base"""
        self.size = len(self.base)
        self.escape = self.size - 1

    def token_of(self, numbers: Ints) -> Ints:
        """u8 tokens of u64 numbers, none of them the escape."""
        octave = np.frexp(numbers.astype(np.float64))[1] - 1
        quarter = numbers.astype(np.int64) >> np.maximum(octave - 2, 0) & 3
        far = (1 << self.direct_bits) + 4 * (octave - self.direct_bits) + quarter
        tokens: Ints = np.where(numbers < 1 << self.direct_bits, numbers, far).astype(np.uint8)
        return tokens


GAPS: Final = Alphabet(3, 20)
"""gaps: how many elements (of the class) lie between one event and the one before it"""
VALUES: Final[Mapping[int, Alphabet]] = {width: Alphabet(6, 8 * width) for width in (1, 2, 4)}
"""width -> how a changed element moved: zigzag(new - old) - 1"""
NIBBLE: Final = 16
"""symbols of the bitmap alphabet: four elements, the first in the lowest bit"""


def classes_of(bits: Bits, layout: Layout, first: int, classes: int) -> Ints:
    """u8[n]: clamp(exponent - first, 0, classes - 1); `first` may be negative."""
    exponent = (bits >> bits.dtype.type(layout.shift)).astype(np.int64) & (layout.exponents - 1)
    found: Ints = np.clip(exponent - first, 0, classes - 1).astype(np.uint8)
    return found


def zigzag(difference: Bits) -> Bits:
    """0, -1, 1, -2 -> 0, 1, 2, 3; exact modulo 2^bits."""
    top = difference.dtype.type(difference.itemsize * 8 - 1)
    return (difference << difference.dtype.type(1)) ^ (np.zeros_like(difference) - (difference >> top))


def unzigzag(folded: Bits) -> Bits:
    one = folded.dtype.type(1)
    return (folded >> one) ^ (np.zeros_like(folded) - (folded & one))
