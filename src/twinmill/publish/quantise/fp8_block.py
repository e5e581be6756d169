"""fp8_block: e4m3 in blocks of 128 x 128, as DeepSeek-V3's checkpoints have it and engines serve it.

    X        F8_E4M3   the shape of X
    X_scale_inv        one scale per block, ceil(rows / 128) x ceil(columns / 128); value = e4m3 * scale

    fp8_block/1       scales F8_E8M0: the smallest power of two with (largest |x| of the block) / scale <= 448, within
                      2^-127 .. 2^127. Default: a scale changes only when the largest weight crosses a power of two, so
                      a step of RL changes next to none (and a changed one requantises 16384 weights).
    fp8_block_f32/1   scales F32: (largest |x|) / 448, rounded to nearest even, at least 2^-126.

Elements: x / scale, rounded once to nearest even, saturating at +-448; -0 and what rounds to it keep their sign, NaN stays
NaN, infinities saturate. Neither counts for the scale. A block of zeros has scale 1 (2^-126 in fp32).
Dimensions before the last two are a stack of matrices. Not covered: activations; engines that want the scales transposed.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..tensors import Array, Bits
from .base import Part
from .floats import (
    E4M3,
    F32,
    Codes,
    Format,
    Ints,
    boundaries,
    coder,
    fields,
    magnitudes,
    quotient,
    rounded,
    source_of,
    split,
    values,
)
from .powers import power_codes, power_divisor, power_values

SIDE = 128


class Scale(Protocol):
    """How the scales of blocks are chosen and stored, and what they are as numbers."""

    dtype: str
    bytes: int

    def of(self, largest: Array, source: Format) -> Array:
        """Codes of the largest finite magnitudes of blocks -> stored bits of their scales."""
        ...

    def divisor(self, scales: Array) -> tuple[Ints, Ints]: ...

    def values(self, scales: Array) -> npt.NDArray[np.float64]: ...


class PowerScale:
    dtype, bytes = "F8_E8M0", 1

    def of(self, largest: Array, source: Format) -> Array:
        return power_codes(largest, source, E4M3)

    def divisor(self, scales: Array) -> tuple[Ints, Ints]:
        return power_divisor(scales)

    def values(self, scales: Array) -> npt.NDArray[np.float64]:
        return power_values(scales)


class FloatScale:
    dtype, bytes = "F32", 4
    SMALLEST = 1 << F32.mantissa_bits
    """2^-126, the smallest normal: a smaller one might be flushed to zero by an engine"""

    def of(self, largest: Array, source: Format) -> Array:
        code = rounded(*quotient(*split(largest, source), *split(np.array(E4M3.largest), E4M3)), F32)
        return np.maximum(code, self.SMALLEST).astype(np.uint32)

    def divisor(self, scales: Array) -> tuple[Ints, Ints]:
        return fields(scales, F32)

    def values(self, scales: Array) -> npt.NDArray[np.float64]:
        return values(scales, F32)


class Fp8Block:
    def __init__(self, name: str, scale: Scale) -> None:
        self.name = name
        self.bytes_per_param = 1 + scale.bytes / SIDE**2
        self._scale = scale
        self._coder = lru_cache(maxsize=32)(self._new_coder)
        """few powers of two occur among the blocks of a model: theirs stay at hand"""

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) >= 2 and 0 not in shape

    def quantise(self, bits: Bits, dtype: str) -> dict[str, Part]:
        source = source_of(dtype)
        codes, scales = [], []
        for matrix in bits.reshape(-1, *bits.shape[-2:]):
            scales.append(self._scale.of(_block_largest(matrix, source), source))
            codes.append(self._codes(matrix, source, scales[-1]))
        stack = bits.shape[:-2]
        return {
            "": Part(np.stack(codes).reshape(bits.shape), "F8_E4M3"),
            "_scale_inv": Part(np.stack(scales).reshape(*stack, *scales[0].shape), self._scale.dtype),
        }

    def dequantise(self, parts: Mapping[str, Array]) -> npt.NDArray[np.float64]:
        codes, scales = parts[""], self._scale.values(parts["_scale_inv"])
        spread = np.repeat(np.repeat(scales, SIDE, axis=-2), SIDE, axis=-1)
        return values(codes, E4M3) * spread[..., : codes.shape[-2], : codes.shape[-1]]

    def _codes(self, matrix: Bits, source: Format, scales: Array) -> Codes:
        codes = np.empty(matrix.shape, np.uint8)
        for (row, column), scale in np.ndenumerate(scales):
            block = (slice(row * SIDE, (row + 1) * SIDE), slice(column * SIDE, (column + 1) * SIDE))
            codes[block] = self._coder(int(scale), source)(matrix[block])
        return codes

    def _new_coder(self, scale: int, source: Format) -> Callable[[Bits], Codes]:
        return coder(boundaries(*self._scale.divisor(np.array(scale)), source, E4M3), source, E4M3)


def _block_largest(matrix: Bits, source: Format) -> Array:
    """Code of the largest finite magnitude of each block, ragged ones at the edges included."""
    rows, columns = (np.arange(0, size, SIDE) for size in matrix.shape)
    largest = np.empty((len(rows), len(columns)), matrix.dtype)
    for block, row in enumerate(rows):
        codes = magnitudes(matrix[row : row + SIDE], source)
        codes[codes > source.largest] = 0
        largest[block] = np.maximum.reduceat(codes.max(axis=0), columns)
    return largest


FP8_BLOCK = Fp8Block("fp8_block/1", PowerScale())
FP8_BLOCK_F32 = Fp8Block("fp8_block_f32/1", FloatScale())
