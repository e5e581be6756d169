"""Matrix products and sigmoids whose rows do not depend on how many there are.

On a CPU, fp32 products fall into result classes by their number of rows: {1}, {2, 3} and {>= MIN_ROWS}
(tests/model/test_parity.py checks it on the machine at hand). Small products are therefore padded to MIN_ROWS rows.

torch computes a sigmoid in blocks, and what is left over behind the last one by another formula. Where rows are no whole
number of blocks, an element's bits would depend on how many rows follow it.
"""

import torch.nn.functional as F
from torch import Tensor

from .config import Parity

__all__ = ["MIN_ROWS", "Parity", "linear", "pads", "sigmoid"]

MIN_ROWS = 4
BLOCK = 64
"""elements; a multiple of what torch computes at once on any processor"""


def pads(rows: int, parity: Parity) -> bool:
    """Whether a product of so many rows is padded."""
    return parity in (Parity.BATCH, Parity.STRICT) and rows < MIN_ROWS


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, parity: Parity) -> Tensor:
    """x [T, n] @ weight [m, n].T + bias"""
    if parity is Parity.CORE:
        from .core.operators import Linear

        return Linear.apply(x, weight, bias)
    rows = x.shape[0]
    if pads(rows, parity):
        return F.linear(F.pad(x, (0, 0, 0, MIN_ROWS - rows)), weight, bias)[:rows]
    return F.linear(x, weight, bias)


def sigmoid(x: Tensor, parity: Parity) -> Tensor:
    """Of every element."""
    if parity not in (Parity.BATCH, Parity.STRICT) or x.shape[-1] % BLOCK == 0:
        return x.sigmoid()
    count = x.numel()
    return F.pad(x.flatten(), (0, -count % BLOCK)).sigmoid()[:count].view_as(x)
