"""Quantised serving: what an engine holds is made on the trainer, deterministically, and published as its own stream.

floats.py      formats as integers; division and rounding without floating-point arithmetic
powers.py      scales that are powers of two
fp8_block.py   e4m3 in blocks of 128 x 128
fp4.py         nvfp4 and mxfp4
base.py        what a quantiser is; which tensors it gets; a whole state through it

Ten times fewer of the quantised bytes change per step of RL than of the bf16 weights that they stand for, and an engine that
checks digests in its own memory checks what it really multiplies by.
"""

from collections.abc import Mapping

from .base import Quantised, Quantiser, QuantiseRule, quantise
from .fp4 import MxFp4, NvFp4
from .fp8_block import FP8_BLOCK, FP8_BLOCK_F32

QUANTISERS: Mapping[str, Quantiser] = {q.name: q for q in (FP8_BLOCK, FP8_BLOCK_F32, NvFp4(), MxFp4())}
"""name with version -> quantiser; the name goes to WeightVersion.quantisation"""

__all__ = ["QUANTISERS", "QuantiseRule", "Quantised", "Quantiser", "quantise"]
