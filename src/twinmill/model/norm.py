"""RMS norm, and the per-head norm + rotary embedding of queries and keys.

Both have a hand-written backward: stock autograd decomposes them into a dozen passes over memory each, which made a
third of a training step of a small model.
"""

import torch
from torch import Tensor
from torch.autograd import Function

from .config import Parity


def rms_norm(x: Tensor, weight: Tensor, eps: float, parity: Parity = Parity.OFF) -> Tensor:
    """x [..., n] -> x / rms(x) * weight, over the last axis."""
    if torch.is_grad_enabled():
        return _RmsNorm.apply(x, weight, eps, parity)
    return _rms_norm(x, weight, eps, parity)


def head_norm_rope(
    heads: Tensor, weights: Tensor | None, table: Tensor, eps: float, parity: Parity = Parity.OFF
) -> Tensor:
    """Norm (where `weights` is given) and rotate every head.

    heads [T, R, head_dim], weights [R, head_dim] (one row per head) or None, table [2, T, 1, head_dim] of
    model/rope.py -> contiguous [T, R, head_dim]
    """
    if torch.is_grad_enabled():
        return _HeadNormRope.apply(heads, weights, table, eps, parity)
    return _head_norm_rope(heads, weights, table, eps, parity)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[..., 1]"""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _unit(x: Tensor, eps: float) -> Tensor:
    """x / rms(x); F.rms_norm takes three times as many operations on a CPU"""
    return x * _inverse_rms(x, eps)


def _through_norm(grad: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """Gradient by x of unit = x * inverse_rms(x), given the gradient by unit. Overwrites `grad`."""
    along = torch.mul(grad, unit).mean(-1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1).mul_(inverse)


def _rms_norm(x: Tensor, weight: Tensor, eps: float, parity: Parity) -> Tensor:
    if parity is Parity.CORE:
        from .core import operators

        return operators.rms_norm(x, weight, eps)
    return _unit(x, eps).mul_(weight)


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float, parity: Parity) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return _rms_norm(x, weight, eps, parity)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        inverse = _inverse_rms(x, ctx.eps)
        unit = x * inverse
        by_weight = (grad * unit).flatten(0, -2).sum(0)
        return _through_norm(grad * weight, unit, inverse), by_weight, None, None


def _head_norm_rope(heads: Tensor, weights: Tensor | None, table: Tensor, eps: float, parity: Parity) -> Tensor:
    if parity is Parity.CORE:
        from .core import operators

        return operators.norm_rotate(heads, weights, table, eps)
    heads = heads.contiguous()
    if weights is not None:
        heads = _unit(heads, eps).mul_(weights)
    cos, sin = table
    return torch.mul(heads, cos).addcmul_(_turn(heads), sin)


class _HeadNormRope(Function):
    @staticmethod
    def forward(ctx, heads: Tensor, weights: Tensor | None, table: Tensor, eps: float, parity: Parity) -> Tensor:
        ctx.save_for_backward(heads, weights, table)
        ctx.eps = eps
        return _head_norm_rope(heads, weights, table, eps, parity)

    @staticmethod
    def backward(ctx, grad: Tensor):
        heads, weights, table = ctx.saved_tensors
        cos, sin = table
        by_heads = torch.mul(grad, cos).add_(_turn(grad * sin))
        if weights is None:
            return by_heads, None, None, None, None
        inverse = _inverse_rms(heads, ctx.eps)
        unit = heads * inverse
        by_weights = (by_heads * unit).sum(0)
        return _through_norm(by_heads.mul_(weights), unit, inverse), by_weights, None, None, None


def _turn(heads: Tensor) -> Tensor:
    """Swap the two halves of every head; its own inverse."""
    low, high = heads.chunk(2, -1)
    return torch.cat((high, low), -1)
