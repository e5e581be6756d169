"""Floating-point formats taken apart into integers, divided and rounded: the arithmetic of all quantisers.

Nothing here rounds in floating point. A value is mantissa * 2^exponent with an integer mantissa. A scale is an integer quotient
whose lowest bit remembers that something was left over, rounded once, to nearest, ties to even. An element is never divided at
all: `boundaries` gives, for each code of the target, the smallest source value that rounds to it, and elements are compared with
those as integers. So the bits do not depend on the machine, on flush-to-zero, on the compiler, or on NumPy's version. (A
division in fp32 followed by a cast, as GPU kernels do it, rounds twice and differs from this in a few values per million.)
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import Refused
from ..tensors import Array, Bits

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]


class Format(NamedTuple):
    """A format of sign, exponent and mantissa bits, from the top down. Codes below are magnitudes, without the sign."""

    exponent_bits: int
    mantissa_bits: int
    largest: int
    """code of the largest finite value"""
    infinity: int | None
    nan: int | None
    """code of a NaN; None = there is none"""

    @property
    def bias(self) -> int:
        return (1 << self.exponent_bits - 1) - 1

    @property
    def sign(self) -> int:
        """The bit that holds the sign."""
        return 1 << self.exponent_bits + self.mantissa_bits


BF16 = Format(8, 7, 0x7F7F, 0x7F80, 0x7FC0)
F16 = Format(5, 10, 0x7BFF, 0x7C00, 0x7E00)
F32 = Format(8, 23, 0x7F7FFFFF, 0x7F800000, 0x7FC00000)
E4M3 = Format(4, 3, 0x7E, None, 0x7F)
"""largest 448, smallest 2^-9; no infinity (the "fn" variant, which engines use)"""
E2M1 = Format(2, 1, 0x7, None, None)
"""0, 0.5, 1, 1.5, 2, 3, 4, 6"""
SOURCES = {"BF16": BF16, "F16": F16, "F32": F32}
"""safetensors dtype name -> what can be quantised"""

MANTISSA_BITS = 24
"""of a mantissa as `split` returns it: enough for fp32"""
_SHIFT = 28
"""makes a quotient of at least 24 bits, and no dividend longer than the 53 that `bit_length` takes"""


def source_of(dtype: str) -> Format:
    """The format of a tensor to quantise. Refused when it is none."""
    if dtype not in SOURCES:
        raise Refused(f"dtype {dtype} cannot be quantised; want one of {', '.join(SOURCES)}, or exclude it by the rule")
    return SOURCES[dtype]


def magnitudes(bits: Array, source: Format) -> Bits:
    """Codes without their sign. They order as the values do, with infinity and then NaNs at the top."""
    codes: Bits = bits & bits.dtype.type(source.sign - 1)
    return codes


def is_nan(magnitude: Array, source: Format) -> npt.NDArray[np.bool_]:
    return magnitude > (source.largest if source.infinity is None else source.infinity)


def fields(magnitude: Array, source: Format) -> tuple[Ints, Ints]:
    """(mantissa, exponent): value = mantissa * 2^exponent. What is not finite counts as the largest finite value."""
    codes = np.minimum(np.asarray(magnitude, np.int64), source.largest)
    field, fraction = codes >> source.mantissa_bits, codes & (1 << source.mantissa_bits) - 1
    mantissa = fraction + ((field > 0).astype(np.int64) << source.mantissa_bits)
    return mantissa, np.maximum(field, 1) - (source.bias + source.mantissa_bits)


def split(magnitude: Array, source: Format) -> tuple[Ints, Ints]:
    """`fields`, normalised: the mantissa has exactly MANTISSA_BITS bits, or is 0."""
    mantissa, exponent = fields(magnitude, source)
    shift = MANTISSA_BITS - bit_length(mantissa)
    return mantissa << shift, exponent - shift


def bit_length(integers: Ints) -> Ints:
    """Of integers in [0, 2^53): those are exact as float64, and frexp then only reads the exponent."""
    return np.asarray(np.frexp(integers.astype(np.float64))[1], np.int64)


def quotient(mantissa: Ints, exponent: Ints, by_mantissa: Ints, by_exponent: Ints) -> tuple[Ints, Ints]:
    """Divide numbers of `split` by others (mantissa in [2^23, 2^28)). A remainder is kept as a set lowest bit, which is all
    that rounding to fewer bits needs to know of it."""
    whole, rest = np.divmod(mantissa << _SHIFT, by_mantissa)
    return whole | (rest != 0), exponent - by_exponent - _SHIFT


def _floored(mantissa: Ints, exponent: Ints, target: Format) -> tuple[Ints, Ints, Ints]:
    """mantissa * 2^exponent cut down to a code of `target`; what was cut off, and its unit (0 of 1 = it was exact)."""
    top = exponent + bit_length(mantissa) - 1  # floor(log2(value))
    binade = np.maximum(top, 1 - target.bias)
    drop = binade - target.mantissa_bits - exponent
    kept = np.where(drop > 0, mantissa >> np.clip(drop, 0, 60), mantissa << np.maximum(-drop, 0))
    unit = np.int64(1) << np.clip(drop, 0, 60)
    # a mantissa with its leading bit adds one to the exponent field, hence the - 1; a subnormal has none, and field 0
    code = (binade + target.bias - 1 << target.mantissa_bits) + kept
    return np.where(mantissa == 0, 0, code), mantissa & unit - 1, unit


def rounded(mantissa: Ints, exponent: Ints, target: Format) -> Ints:
    """mantissa * 2^exponent (mantissa < 2^53) as a code of `target`: to nearest, ties to even, saturating; subnormals too."""
    code, rest, unit = _floored(mantissa, exponent, target)
    # codes are consecutive across powers of two, so rounding up is + 1 everywhere
    up = (2 * rest > unit) | ((2 * rest == unit) & (code & 1 == 1))
    return np.asarray(np.minimum(code + up, target.largest))


def boundaries(by_mantissa: Ints, by_exponent: Ints, source: Format, target: Format) -> Ints:
    """[..., codes of `target` but 0]: the smallest magnitude of `source` whose quotient by the divisor rounds to the code, or
    beyond. To nearest, ties to even. by_mantissa in [1, 2^28).

    Infinity is at or above all of them, so it saturates; so is a NaN, which the caller must treat before or after.
    """
    codes = np.arange(target.largest)
    mantissa, exponent = fields(codes, target)
    # code j + 1 begins half a unit above code j; the middle itself rounds to whichever of the two is even
    middle = np.multiply.outer(by_mantissa, 2 * mantissa + 1)
    code, rest, _ = _floored(middle, np.add.outer(by_exponent, exponent - 1), source)
    beyond = (rest != 0) | (codes % 2 == 0)
    assert source.infinity is not None
    return np.asarray(np.minimum(code + beyond, source.infinity))


def compared(bits: Bits, bounds: Array, source: Format, target: Format) -> Codes:
    """Elements [blocks, n] with the boundaries of their block [blocks, few] -> signed codes. A NaN must not be among them."""
    # blocks along the last axis: a comparison then runs over thousands of elements, not over the few of one block
    bits_T, bounds_T = np.ascontiguousarray(bits.T), np.ascontiguousarray(bounds.T.astype(bits.dtype))
    magnitude = magnitudes(bits_T, source)
    codes = np.where(bits_T > magnitude, np.uint8(target.sign), np.uint8(0))
    for bound in bounds_T:
        codes += magnitude >= bound
    return np.ascontiguousarray(codes.T)


def coder(bounds: Ints, source: Format, target: Format) -> Callable[[Bits], Codes]:
    """For elements that share one set of many boundaries: elements (any shape) -> signed codes; a NaN gives the target's."""
    assert target.nan is not None
    if source.sign == 1 << 15:
        ends = np.diff(bounds, prepend=0, append=source.sign)
        table = np.repeat(np.arange(target.largest + 1, dtype=np.uint8), ends)
        table[is_nan(np.arange(source.sign), source)] = target.nan
        both = np.concatenate([table, table | np.uint8(target.sign)])
        return lambda bits: both[bits]
    return partial(_searched, bounds.astype(np.uint32), source, target)


def _searched(bounds: Array, source: Format, target: Format, bits: Bits) -> Codes:
    magnitude = magnitudes(bits, source)
    codes = np.searchsorted(bounds, magnitude, side="right").astype(np.uint8)
    codes[is_nan(magnitude, source)] = target.nan or 0
    return codes | np.where(bits > magnitude, np.uint8(target.sign), np.uint8(0))


def values(codes: Array, source: Format) -> npt.NDArray[np.float64]:
    """What codes (signs included) stand for, exactly. For tests and error bounds; all formats here fit float64."""
    magnitude = magnitudes(codes, source)
    mantissa, exponent = fields(magnitude, source)
    value = np.ldexp(mantissa.astype(np.float64), exponent.astype(np.int32))
    if source.infinity is not None:
        value = np.where(magnitude == source.infinity, np.inf, value)
    value = np.where(is_nan(magnitude, source), np.nan, value)
    return np.where(codes & codes.dtype.type(source.sign), -value, value)
