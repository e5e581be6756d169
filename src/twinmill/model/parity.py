"""How far results are independent of what else is in the batch.

On a CPU, fp32 matrix products fall into result classes by their number of rows: {1}, {2, 3} and {>= MIN_ROWS}
(tests/model/test_parity.py checks it on the machine at hand). Small products are therefore padded to MIN_ROWS rows.
"""

from enum import Enum

import torch.nn.functional as F
from torch import Tensor

MIN_ROWS = 4


class Parity(Enum):
    OFF = "off"
    """fastest; log-probabilities move by about 1e-6 with the batch"""
    BATCH = "batch"
    """linear layers are padded: a decode step does not depend on the other rows of its batch"""
    STRICT = "strict"
    """attention too: decoding, prefill, scoring and the trainer's forward agree bit for bit"""

    def pads(self, rows: int) -> bool:
        """Whether a linear layer of so many rows is padded."""
        return self is not Parity.OFF and rows < MIN_ROWS


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, parity: Parity) -> Tensor:
    """x [T, n] @ weight [m, n].T + bias"""
    if parity.pads(len(x)):
        return F.linear(F.pad(x, (0, 0, 0, MIN_ROWS - len(x))), weight, bias)[: len(x)]
    return F.linear(x, weight, bias)
