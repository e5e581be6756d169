"""What a loss is: the tokens of one microbatch that carry loss in, a scalar and its measurements out. Pure."""

from typing import NamedTuple, Protocol

from torch import Tensor


class Tokens(NamedTuple):
    """The tokens under the mask of one microbatch. Axis K; every tensor is fp32 [K]."""

    logprobs: Tensor
    """the trainer's, of the token that was sampled; differentiable"""
    engine_logprobs: Tensor
    """the engine's, of the same token; 0 in sources that nothing sampled"""
    advantages: Tensor
    weights: Tensor
    denominator: float
    """divides the summed loss of the whole step, so losses and gradients of microbatches add up"""


class LossValue(NamedTuple):
    loss: Tensor
    """scalar, this microbatch's share of the step's loss"""
    sums: dict[str, float]
    """name -> what this microbatch adds to the step's figure of that name"""
    log_ratio: Tensor | None = None
    """[K], trainer minus engine log-probability; None = there was no engine"""


class Loss(Protocol):
    def __call__(self, tokens: Tokens) -> LossValue: ...
