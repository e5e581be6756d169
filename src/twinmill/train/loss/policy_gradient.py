"""Policy gradient with a truncated importance weight per token.

    loss = - 1/D * sum_t  sg[min(rho_t, cap)] * A_t * log pi(a_t),     rho_t = pi(a_t) / mu(a_t)

mu is the engine's own distribution (what was really sampled from), pi the trainer's now; their quotient holds
what numerics do and what staleness does. sg[.] stops the gradient: the weight corrects where samples came from and
is no objective of its own; truncation bounds the variance at the cost of a bias towards too small a step. No token
is thrown away, as clipping its objective would. The original names no correction; cap and form are our choice.
"""

from msgspec import Struct

from .base import LossValue, Tokens


class PolicyGradient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ratio_cap: float = 2.0
    """largest importance weight of a token; 0 = no importance weights at all"""


def policy_gradient(tokens: Tokens, config: PolicyGradient) -> LossValue:
    """Example: logprob ln .5, engine ln .1, A = 1, cap 2, D = 1: rho 5 -> 2, loss -2 ln .5, gradient -2."""
    log_ratio = tokens.logprobs.detach() - tokens.engine_logprobs
    ratio = log_ratio.exp()
    weight = ratio.clamp(max=config.ratio_cap) if config.ratio_cap > 0 else ratio.new_ones(ratio.shape)
    loss = -(tokens.weights * weight * tokens.advantages * tokens.logprobs).sum() / tokens.denominator
    clipped = float((ratio > config.ratio_cap).sum()) if config.ratio_cap > 0 else 0.0
    return LossValue(loss, {"policy": float(loss.detach()), "clipped": clipped}, log_ratio)
