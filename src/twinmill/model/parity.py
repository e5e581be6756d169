"""How far results are independent of what else is in the batch.

On a CPU, fp32 matrix products fall into result classes by their number of rows: {1}, {2, 3} and {>= 4}
(tests/model/test_parity.py checks it on the machine at hand). Rows are therefore padded to four.
"""

from enum import Enum

import torch.nn.functional as F
from torch import Tensor


class Parity(Enum):
    OFF = "off"
    """fastest; log-probabilities move by about 1e-6 with the batch"""
    BATCH = "batch"
    """a decode step does not depend on the other rows of its batch"""
    STRICT = "strict"
    """and decoding, prefill, scoring and the trainer's unpacked forward agree bit for bit"""


MIN_ROWS = 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, parity: Parity) -> Tensor:
    """x [T, n] @ weight [m, n].T + bias"""
    rows = len(x)
    if parity is Parity.OFF or rows >= MIN_ROWS:
        return F.linear(x, weight, bias)
    return F.linear(F.pad(x, (0, 0, 0, MIN_ROWS - rows)), weight, bias)[:rows]
