"""The core's single operators on torch tensors' memory: the forward halves of what model/ computes in Parity.CORE.

Each of them is the kernel that the engine runs, so the trainer's forward, gradients and all, gives the engine's bits. The
backward halves stay where they are, in torch. Nothing here is differentiable by itself except through `valued`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.weak import WeakTensorKeyDictionary

from twinmill.model.config import ModelConfig
from twinmill.model.segments import Segment

from . import native
from .forward import KV_BLOCK, new_kv, scoring

_pools: dict[int, object] = {}
_matrices = WeakTensorKeyDictionary()
"""weight -> (its version when it was packed, Matrix)"""


def pool():  # type: ignore[no-untyped-def]
    """As many threads as torch has."""
    threads = torch.get_num_threads()
    if threads not in _pools:
        _pools.clear()
        _pools[threads] = native().Pool(threads)
    return _pools[threads]


def matrix(weight: Tensor):  # type: ignore[no-untyped-def]
    """`weight` [..., m, n] packed. Kept until it is written to, which torch counts (`.data` and NumPy views are not)."""
    if weight.dtype != torch.float32:
        raise TypeError(f"the core computes with fp32 tensors, not {weight.dtype}; choose another parity level")
    known = _matrices.get(weight)
    if known is not None and known[0] == weight._version:
        return known[1]
    stack = weight.detach().reshape(-1, *weight.shape[-2:]).contiguous()
    count, rows, cols = stack.shape
    packed = native().Matrix(rows, cols, native().F32, count) if known is None else known[1]
    for index, bits in enumerate(stack.numpy().view(np.uint32)):
        packed.pack(bits, 0, index)
    _matrices[weight] = (weight._version, packed)
    return packed


def memory(x: Tensor) -> npt.NDArray[np.generic]:
    """Contiguous, shared where `x` is contiguous."""
    return x.detach().contiguous().numpy()


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, n] @ weight [m, n].T + bias"""
    y = x.new_empty(len(x), len(weight))
    pool().product(matrix(weight), memory(x), y.numpy(), None if bias is None else memory(bias))
    return y


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    pool().rms_norm(memory(x), memory(weight), eps, y.numpy())
    return y


def norm_rotate(heads: Tensor, weights: Tensor | None, table: Tensor, eps: float) -> Tensor:
    """As model.norm.head_norm_rope."""
    out = heads.detach().contiguous().clone()
    cosine, sine = (memory(t) for t in table)
    weights_ = None if weights is None else memory(weights)
    pool().norm_rotate(out.numpy(), weights_, cosine, sine, eps, heads.shape[1], heads.shape[2])
    return out


def swiglu(hidden: Tensor) -> Tensor:
    out = hidden.new_empty(len(hidden), hidden.shape[1] // 2)
    pool().swiglu(memory(hidden), out.numpy(), len(hidden))
    return out


def add_gated(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """y + x * sigmoid(gate) by row"""
    total = y.detach().contiguous().clone()
    pool().add_gated(memory(x), gate.detach().contiguous().clone().numpy(), total.numpy(), len(x))
    return total


def attention(config: ModelConfig, q: Tensor, k: Tensor, v: Tensor, spans: Sequence[Segment]) -> Tensor:
    """q [T, heads, head_dim], k and v [T, kv_heads, head_dim], normed and rotated -> [T, heads * head_dim].

    Every span gets keys of its own: those of its prefix are stored once more in front of them.
    """
    qkv = np.concatenate([x.detach().flatten(1).numpy() for x in (q, k, v)], 1)
    width = max(-(-(span.prefix + span.length) // KV_BLOCK) for span in spans)
    table = np.arange(len(spans) * width, dtype=np.int32).reshape(len(spans), width)
    kv = new_kv(config, table.size, layers=1)
    shape = (config.heads, config.kv_heads, config.head_dim)
    rest = (shape, config.norm_eps, None, None, None)
    before = [(span.prefix_start + i, s, i) for s, span in enumerate(spans) for i in range(span.prefix)]
    if before:
        rows, sequence, position = (np.array(column, np.int32) for column in zip(*before))
        prefix = np.ascontiguousarray(qkv[rows])
        pool().attention(prefix, *rest, sequence, position, table, width, kv.memory, kv.strides, None)
    sequence, position = np.empty(len(qkv), np.int32), np.empty(len(qkv), np.int32)
    for s, span in enumerate(spans):
        own = slice(span.start, span.start + span.length)
        sequence[own], position[own] = s, np.arange(span.prefix, span.prefix + span.length)
    out = q.new_empty(len(q), config.heads * config.head_dim)
    pool().attention(qkv, *rest, sequence, position, table, width, kv.memory, kv.strides, out.numpy())
    return out


class Choice(NamedTuple):
    scores: Tensor
    """[T, E]"""
    chosen: Tensor
    """int64 [T, top_k]"""
    gates: Tensor
    """[T, top_k]"""
    replayed: int
    refused: int


def route(logits: Tensor, top_k: int, norm: bool, forced: Tensor | None, floor: float) -> Choice:
    """logits [T, E] of a softmax router; the rules of model.mixture.route."""
    scores = logits.detach().contiguous().clone()
    rows, experts = scores.shape
    chosen, gates = torch.empty(rows, top_k, dtype=torch.int32), scores.new_empty(rows, top_k)
    forced_ = None if forced is None else memory(forced.to(torch.int16))
    shape = (experts, top_k, 0, int(norm), 1, 1, 1.0)
    counts = pool().route(scores.numpy(), shape, None, forced_, floor, chosen.numpy(), gates.numpy())
    return Choice(scores, chosen.long(), gates, *counts)


def experts(x: Tensor, chosen: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sum over choices, and what a backward needs, sorted by expert: gate and up [pairs, 2 * I], activated [pairs, I]."""
    pairs, inner = chosen.numel(), down.shape[-1]
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    hidden, activated = x.new_empty(pairs, 2 * inner), x.new_empty(pairs, inner)
    pool().experts(
        matrix(gate_up), matrix(down), memory(x), memory(chosen.int()), memory(gates), chosen.shape[1], y.numpy(),
        hidden.numpy(), activated.numpy(),
    )  # fmt: skip
    return y, hidden, activated


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """log p(targets[t] | hidden[t]), fp32 [T]"""
    out = hidden.new_empty(len(hidden))
    if len(hidden):
        asks = scoring(range(len(hidden)), targets.numpy(), temperature)
        tokens = np.empty(len(hidden), np.int32)
        pool().head(matrix(head), memory(hidden), (*asks, tokens, out.numpy()))
    return out


def valued(value: Tensor, gradient: Tensor) -> Tensor:
    """`value`, with the gradient of `gradient`: the same quantity, rounded differently."""
    return _Valued.apply(gradient, value) if gradient.requires_grad else value


class _Valued(Function):
    @staticmethod
    def forward(ctx, gradient: Tensor, value: Tensor) -> Tensor:
        return value

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


class Linear(Function):
    """product, with torch's backward."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        by_x = grad @ weight if ctx.needs_input_grad[0] else None
        by_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        return by_x, grad.t() @ x, by_bias
