"""Packed INT4 weights, as Kimi K2.5 is published: compressed-tensors' pack-quantized, symmetric, scaled by groups.

A matrix NAME.weight of [rows, cols] is stored as three tensors:

    NAME.weight_packed  int32 [rows, ceil(cols / 8)]    eight numbers to a word, the first in its lowest four bits, each + 8
    NAME.weight_scale   [rows, cols / group]            BF16, F16 or F32
    NAME.weight_shape   [2]                             rows, cols

A weight is number * scale, rounded to the dtype of its scale. Not covered: other widths, zero points, packing again.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

PARTS = ("weight_packed", "weight_scale", "weight_shape")
_SCALES = (torch.bfloat16, torch.float16, torch.float32)


def is_packed(name: str) -> bool:
    """Whether a tensor of this on-disk name is a part of a packed matrix."""
    return name.rpartition(".")[2] in PARTS


def unpacked(parts: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """On-disk parts of packed matrices -> (NAME.weight, weight), one by one. ValueError names what does not fit."""
    for module in sorted({name.rpartition(".")[0] for name in parts}):
        missing = [part for part in PARTS if f"{module}.{part}" not in parts]
        if missing:
            raise ValueError(f"{module}.{missing[0]} is missing: a packed matrix has {', '.join(PARTS)}")
        try:
            yield f"{module}.weight", unpack(*(parts[f"{module}.{part}"] for part in PARTS))
        except ValueError as error:
            raise ValueError(f"{module}: {error}") from error


def unpack(packed: Tensor, scale: Tensor, shape: Tensor) -> Tensor:
    """packed int32 [rows, words], scale [rows, groups], shape [2] -> weight [rows, cols] in the dtype of `scale`."""
    if shape.numel() != 2:
        raise ValueError(f"weight_shape has {shape.numel()} numbers; only matrices are packed")
    rows, cols = (int(n) for n in shape.flatten())
    if packed.dtype != torch.int32 or tuple(packed.shape) != (rows, -(-cols // 8)):
        found = f"{packed.dtype} {list(packed.shape)}"
        raise ValueError(
            f"weight_packed is {found}; a matrix of {[rows, cols]} in INT4 needs int32 {[rows, -(-cols // 8)]}"
        )
    if (
        scale.dtype not in _SCALES
        or scale.dim() != 2
        or len(scale) != rows
        or not scale.shape[1]
        or cols % scale.shape[1]
    ):
        raise ValueError(
            f"weight_scale is {scale.dtype} {list(scale.shape)}, which does not cut {[rows, cols]} into groups"
        )
    numbers = (packed[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 0xF
    numbers = numbers.reshape(rows, -1)[:, :cols].float() - 8
    # exact in fp32 (4 bits by at most 24), so this is one rounding, as in the scale's own arithmetic
    weight = numbers.view(rows, scale.shape[1], -1) * scale.float()[..., None]
    return weight.view(rows, cols).to(scale.dtype)
