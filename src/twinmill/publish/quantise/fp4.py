"""nvfp4 and mxfp4: e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), two to a byte, in blocks along the last axis.

    nvfp4/1   X           U8       [..., columns / 2]; the element of even index is the low half
              X_scale     F8_E4M3  [..., columns / 16]; value = e2m1 * scale * scale_2
              X_scale_2   F32      one per tensor
              scale_2 = (largest |x| of the tensor) / (6 * 448), nearest even, at least 2^-126
              scale   = (largest |x| of the block) / (6 * scale_2), nearest even, from 2^-9 to 448
    mxfp4/1   X           U8       as above
              X_scale     F8_E8M0  [..., columns / 32]; value = e2m1 * scale
              scale = the smallest power of two with (largest |x| of the block) / scale <= 6

The names are those of NVIDIA ModelOpt's checkpoints, which store packed halves as U8, too (safetensors' own F4 counts elements
of half a byte, which an array of bits cannot).

Elements: x / (product of its scales) as an exact fraction, rounded once to nearest even, saturating at +-6; -0 and what rounds
to it keep their sign; infinities saturate. e2m1 has no NaN: a block that holds one has a scale of NaN and elements of 0, so it
cannot pass for sound. Neither counts for the scales.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..tensors import Array, Bits
from .base import Part
from .floats import (
    E2M1,
    E4M3,
    F32,
    Format,
    boundaries,
    compared,
    fields,
    is_nan,
    magnitudes,
    quotient,
    rounded,
    source_of,
    split,
    values,
)
from .powers import E8M0_NAN, power_codes, power_divisor, power_values

_CHUNK = 1 << 17
"""elements in hand at a time, so that what is in between stays in the cache"""
_ALL = (np.array(2688 << 12), np.array(-12))
"""6 * 448 as a mantissa of 24 bits and its exponent"""

_CODES = np.arange(256)


class _Blocks(NamedTuple):
    """A tensor cut into blocks."""

    bits: Bits
    """[blocks, block size]"""
    largest: Array
    """[blocks] code of the largest finite magnitude"""
    nan: npt.NDArray[np.bool_]
    """[blocks] holds a NaN"""


def _chunks(blocks: int, size: int) -> list[slice]:
    step = _CHUNK // size
    return [slice(start, start + step) for start in range(0, blocks, step)]


def _cut(bits: Bits, source: Format, size: int) -> _Blocks:
    blocks = np.ascontiguousarray(bits).reshape(-1, size)
    largest, nan = np.empty(len(blocks), bits.dtype), np.empty(len(blocks), np.bool_)
    for rows in _chunks(len(blocks), size):
        codes = magnitudes(blocks[rows], source)
        nan[rows] = is_nan(codes.max(axis=1), source)
        codes[codes > source.largest] = 0
        largest[rows] = codes.max(axis=1)
    return _Blocks(blocks, largest, nan)


def _packed(blocks: _Blocks, source: Format, scales: Array, bounds: Array, shape: tuple[int, ...]) -> Array:
    """Quantise chunk by chunk, and put two halves into each byte. bounds: [256, 7], for every code that a scale can have."""
    size = blocks.bits.shape[1]
    halves = np.empty((len(blocks.bits), size // 2), np.uint8)
    for rows in _chunks(len(blocks.bits), size):
        codes = compared(blocks.bits[rows], bounds[scales[rows]], source, E2M1)
        codes[blocks.nan[rows]] = 0
        halves[rows] = codes[:, 0::2] | codes[:, 1::2] << 4
    return halves.reshape(*shape[:-1], shape[-1] // 2)


def _unpacked(halves: Array, scales: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Values; `scales` has one for each block."""
    codes = np.stack([halves & 15, halves >> 4], axis=-1)
    whole = values(codes.reshape(scales.size, -1), E2M1) * scales.reshape(-1, 1)
    return whole.reshape(*halves.shape[:-1], halves.shape[-1] * 2)


class NvFp4:
    name = "nvfp4/1"
    size = 16
    bytes_per_param = 0.5 + 1 / size

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) >= 1 and 0 not in shape and shape[-1] % self.size == 0

    def quantise(self, bits: Bits, dtype: str) -> dict[str, Part]:
        source = source_of(dtype)
        blocks = _cut(bits, source, self.size)
        whole = rounded(*quotient(*split(blocks.largest.max(), source), *_ALL), F32)
        whole = np.maximum(whole, 1 << F32.mantissa_bits)  # 2^-126: a smaller one might be flushed to zero
        mantissa, exponent = fields(whole, F32)
        scales = rounded(*quotient(*split(blocks.largest, source), 3 * mantissa, exponent + 1), E4M3)
        scales = np.where(blocks.nan, E4M3.nan or 0, np.maximum(scales, 1)).astype(np.uint8)

        # block scale (4 bits) * tensor scale (24 bits) is exact
        block_mantissa, block_exponent = fields(np.maximum(_CODES & 0x7F, 1), E4M3)
        bounds = boundaries(block_mantissa * mantissa, block_exponent + exponent, source, E2M1)
        return {
            "": Part(_packed(blocks, source, scales, bounds, bits.shape), "U8"),
            "_scale": Part(scales.reshape(*bits.shape[:-1], bits.shape[-1] // self.size), "F8_E4M3"),
            "_scale_2": Part(whole.astype(np.uint32).reshape(()), "F32"),
        }

    def dequantise(self, parts: Mapping[str, Array]) -> npt.NDArray[np.float64]:
        return _unpacked(parts[""], values(parts["_scale"], E4M3) * values(parts["_scale_2"], F32))


class MxFp4:
    name = "mxfp4/1"
    size = 32
    bytes_per_param = 0.5 + 1 / size

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) >= 1 and 0 not in shape and shape[-1] % self.size == 0

    def quantise(self, bits: Bits, dtype: str) -> dict[str, Part]:
        source = source_of(dtype)
        blocks = _cut(bits, source, self.size)
        scales = np.where(blocks.nan, np.uint8(E8M0_NAN), power_codes(blocks.largest, source, E2M1))
        bounds = boundaries(*power_divisor(_CODES), source, E2M1)
        return {
            "": Part(_packed(blocks, source, scales, bounds, bits.shape), "U8"),
            "_scale": Part(scales.reshape(*bits.shape[:-1], bits.shape[-1] // self.size), "F8_E8M0"),
        }

    def dequantise(self, parts: Mapping[str, Array]) -> npt.NDArray[np.float64]:
        return _unpacked(parts[""], power_values(parts["_scale"]))
