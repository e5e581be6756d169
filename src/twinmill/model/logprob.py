"""Log-probabilities of given tokens without a tensor of all logits.

The gradient by `hidden` of a token's log-probability is (head[target] - softmax @ head) / temperature. The backward
computes a chunk's logits again, unless all of them together are small enough to be kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .parity import Parity, linear

CHUNK = 512
"""tokens per block of logits"""
KEEP_LOGPROBS = 2**23
"""numbers that the backward may find instead of computing them again (32 MiB)"""


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, parity: Parity) -> Tensor:
    """hidden [T, width], head [vocab, width], targets [T] -> fp32 [T]"""
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} must be positive; greedy decoding is scored at temperature 1")
    return _TokenLogprobs.apply(hidden, head, targets, float(temperature), parity)


def log_softmax(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """logits [T, vocab], temperature a number or [T, 1]; in place. The one formula of engine and trainer."""
    if not isinstance(temperature, float) or temperature != 1.0:
        logits.div_(temperature)
    return torch.log_softmax(logits, -1, out=logits)


class _TokenLogprobs(Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, parity: Parity):
        ctx.temperature, ctx.parity = temperature, parity
        if parity is Parity.CORE:
            from .core import operators

            ctx.save_for_backward(hidden, head, targets)
            return operators.token_logprobs(hidden, head, targets, temperature)
        keep = len(hidden) * len(head) <= KEEP_LOGPROBS
        out, kept = [], []
        for h, t in zip(hidden.split(CHUNK), targets.split(CHUNK)):
            logprobs = log_softmax(linear(h, head, None, parity), temperature)
            out.append(logprobs.gather(-1, t[:, None])[:, 0])
            if keep:
                kept.append(logprobs)
        result = torch.cat(out) if out else hidden.new_empty(0)
        ctx.save_for_backward(hidden, head, targets, *kept)
        return result

    @staticmethod
    def backward(ctx, grad: Tensor):
        hidden, head, targets, *kept = ctx.saved_tensors
        by_hidden, by_head = torch.empty_like(hidden), torch.zeros_like(head)
        for i in range(0, len(hidden), CHUNK):
            rows = slice(i, i + CHUNK)
            if kept:
                logprobs = kept[i // CHUNK]
            else:
                logprobs = log_softmax(F.linear(hidden[rows], head), ctx.temperature)
            scale = grad[rows, None] / ctx.temperature
            by_logits = logprobs.exp().mul_(-scale)
            by_logits.scatter_add_(-1, targets[rows, None], scale)
            torch.mm(by_logits, head, out=by_hidden[rows])
            by_head.addmm_(by_logits.t(), hidden[rows])
        return by_hidden, by_head, None, None, None
