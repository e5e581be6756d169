"""Log-probabilities of given tokens without a tensor of all logits.

The gradient by `hidden` of a token's log-probability is (head[target] - softmax @ head) / temperature. The backward
computes a chunk's logits again, unless all of them together are small enough to be kept.
"""

import torch
from torch import Tensor
from torch.autograd import Function

from .parity import Parity, linear

CHUNK = 512
"""tokens per block of logits"""
KEEP_LOGITS = 2**23
"""numbers that the backward may find instead of computing them again (32 MiB)"""


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, parity: Parity) -> Tensor:
    """hidden [T, width], head [vocab, width], targets [T] -> fp32 [T]"""
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} must be positive; greedy decoding is scored at temperature 1")
    return _TokenLogprobs.apply(hidden, head, targets, temperature, parity)


def log_softmax_at(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """logits [T, vocab] -> log p(targets) [T], the one formula of engine and trainer. Overwrites `logits`."""
    if temperature != 1.0:
        logits.div_(temperature)
    return torch.log_softmax(logits, -1, out=logits).gather(-1, targets[:, None])[:, 0]


class _TokenLogprobs(Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, parity: Parity):
        keep = len(hidden) * len(head) <= KEEP_LOGITS
        out, kept = [], []
        for h, t in zip(hidden.split(CHUNK), targets.split(CHUNK)):
            logits = linear(h, head, None, parity)
            out.append(log_softmax_at(logits, t, temperature))
            if keep:
                kept.append(logits)
        result = torch.cat(out) if out else hidden.new_empty(0)
        ctx.save_for_backward(hidden, head, targets, *kept)
        ctx.temperature, ctx.parity = temperature, parity
        return result

    @staticmethod
    def backward(ctx, grad: Tensor):
        hidden, head, targets, *kept = ctx.saved_tensors
        by_hidden, by_head = torch.empty_like(hidden), torch.zeros_like(head)
        for i in range(0, len(hidden), CHUNK):
            rows = slice(i, i + CHUNK)
            if kept:
                logits = kept[i // CHUNK]
            else:
                logits = linear(hidden[rows], head, None, ctx.parity).div_(ctx.temperature)
            scale = grad[rows, None] / ctx.temperature
            by_logits = logits.softmax(-1).mul_(-scale)
            by_logits.scatter_add_(-1, targets[rows, None], scale)
            torch.mm(by_logits, head, out=by_hidden[rows])
            by_head.addmm_(by_logits.t(), hidden[rows])
        return by_hidden, by_head, None, None, None
