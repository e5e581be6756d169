"""Scales that are powers of two: F8_E8M0, one byte, 2^(code - 127), 255 = NaN (OCP MX specification v1.0)."""

import numpy as np
import numpy.typing as npt

from ..tensors import Array
from .floats import MANTISSA_BITS, Format, Ints, split

E8M0_BIAS = 127
E8M0_NAN = 255


def power_codes(largest: Array, source: Format, target: Format) -> Array:
    """Code of the smallest power of two that scales a block without overflow: largest / scale <= target's largest value.

    largest: codes of the blocks' largest finite magnitudes. 0 (a block of zeros) gives scale 1. The specification's own
    example rounds the power down instead and lets the largest elements saturate; rounding up keeps them, at the price of
    half a bit for blocks that would have saturated little.
    """
    mantissa, exponent = split(largest, source)
    top_mantissa, top_exponent = split(np.array(target.largest), target)
    # both mantissas are normalised, so they compare
    power = exponent - top_exponent + (mantissa > top_mantissa)
    power = np.where(mantissa == 0, 0, np.clip(power, -E8M0_BIAS, E8M0_NAN - 1 - E8M0_BIAS))
    return (power + E8M0_BIAS).astype(np.uint8)


def power_divisor(codes: Array) -> tuple[Ints, Ints]:
    """Scales as mantissas and exponents, to divide by; NaN counts as 2^128."""
    exponent = codes.astype(np.int64) - (E8M0_BIAS + MANTISSA_BITS - 1)
    return np.full(exponent.shape, 1 << MANTISSA_BITS - 1, np.int64), exponent


def power_values(codes: Array) -> npt.NDArray[np.float64]:
    return np.where(codes == E8M0_NAN, np.nan, np.ldexp(1.0, codes.astype(np.int32) - E8M0_BIAS))
