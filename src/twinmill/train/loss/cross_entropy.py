"""Cross entropy, for mid-training and SFT: loss = - 1/D * sum_t w_t log pi(x_t), D = tokens of the step."""

from .base import LossValue, Tokens


def cross_entropy(tokens: Tokens) -> LossValue:
    """Example: logprobs ln .5 and ln .25, weights 1, D = 2: (ln 2 + ln 4) / 2 nats per token."""
    loss = -(tokens.weights * tokens.logprobs).sum() / tokens.denominator
    return LossValue(loss, {"cross_entropy": float(loss.detach())})
