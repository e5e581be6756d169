"""Counter-based sampling: a token is a pure function of (logits, temperature, top_p, seed, position).

splitmix64(seed, position) -> one uniform number -> inverse of the cumulative distribution. No generator is advanced, so
nothing depends on the batch or on what was sampled before, and a sample can be drawn again from a record of it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from twinmill.model.logprob import log_softmax
from twinmill.records.engines import Sampling

_MASK = 2**64 - 1


def _mix(x: int) -> int:
    """The output function of splitmix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    start = _mix((seed + 0x9E3779B97F4A7C15) & _MASK)
    return (_mix((start + position * 0x9E3779B97F4A7C15) & _MASK) >> 11) * 2.0**-53


def sample(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
    """logits [B, vocab] (overwritten), positions[b] = index in its context of the token to be -> ids and logprobs [B].

    The log-probability is that of the distribution really sampled from: at the temperature, and within top_p. A greedy
    token (temperature 0) has no such distribution; its log-probability is at temperature 1.
    """
    temperatures = torch.tensor([[s.temperature or 1.0] for s in samplings])
    logprobs = log_softmax(logits, temperatures)
    if any(s.top_p < 1.0 for s in samplings):
        logprobs = _within_top_p(logprobs, torch.tensor([[s.top_p] for s in samplings]))
    draws = [uniform(s.seed, position) for s, position in zip(samplings, positions)]
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    threshold = torch.tensor(draws, dtype=torch.float64)[:, None] * cumulative[:, -1:]
    # right=True: the first id whose cumulative sum exceeds the threshold, hence one of positive probability
    ids = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    greedy = torch.tensor([s.temperature == 0.0 for s in samplings])
    ids = torch.where(greedy, logprobs.argmax(-1), ids)
    return ids, logprobs.gather(-1, ids[:, None])[:, 0]


def _within_top_p(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Keep the most likely ids until their probabilities reach top_p, the last one included, and renormalise."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    dropped = torch.empty_like(before, dtype=torch.bool).scatter_(-1, order, (before >= top_p) & (top_p < 1.0))
    dropped.scatter_(-1, order[:, :1], False)
    kept = logprobs.masked_fill(dropped, float("-inf"))
    # rows without a top_p keep their bits
    return torch.where(top_p < 1.0, kept.log_softmax(-1), logprobs)
