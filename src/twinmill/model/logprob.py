"""Log-probabilities of given tokens without a tensor of all logits."""

import torch
from torch import Tensor

from .parity import Parity, linear

CHUNK = 512


def token_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, parity: Parity
) -> Tensor:
    """hidden [T, width], head [vocab, width], targets [T] -> fp32 [T]"""
    parts = []
    for h, t in zip(hidden.split(CHUNK), targets.split(CHUNK)):
        logits = linear(h, head, None, parity).float() / temperature
        parts.append(logits.log_softmax(-1).gather(-1, t[:, None])[:, 0])
    return torch.cat(parts) if parts else hidden.new_zeros(0)
