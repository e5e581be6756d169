"""The core's single operators on torch tensors' memory: the forward halves of what model/ computes in Parity.CORE.

Each of them is the kernel that the engine runs, so the trainer's forward, gradients and all, gives the engine's bits. The
backward halves stay where they are, in torch. Nothing here is differentiable by itself except through `valued`.
"""

import threading
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
from .forward import KV_BLOCK, Ints, new_kv, scoring

_own = threading.local()
"""the pool of each thread that computes: microbatches are computed side by side, and a pool serves one call at a time"""
_matrices = WeakTensorKeyDictionary()
"""weight -> (its version when it was packed, Matrix)"""
_packing = threading.Lock()


def pool():  # type: ignore[no-untyped-def]
    """This thread's, of as many threads as torch has here."""
    threads = torch.get_num_threads()
    if getattr(_own, "threads", 0) != threads:
        _own.threads, _own.pool = threads, native().Pool(threads)
    return _own.pool


def matrix(weight: Tensor):  # type: ignore[no-untyped-def]
    """`weight` [..., m, n] packed. Kept until it is written to, which torch counts (`.data` and NumPy views are not)."""
    if weight.dtype != torch.float32:
        raise TypeError(f"the core computes with fp32 tensors, not {weight.dtype}; choose another parity level")
    with _packing:
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


class _Blocks(NamedTuple):
    """Where the keys of spans lie. T packed rows, S spans, C rows whose keys are stored once more."""

    sequence: Ints
    """[T]: the span of a row"""
    position: Ints
    """[T]"""
    table: Ints
    """[S, W]; entries beyond a span's last block mean nothing"""
    count: int
    again: tuple[Ints, Ints, Ints]
    """[C]: row, span and position of each"""


def _blocks(spans: Sequence[Segment], rows: int) -> _Blocks:
    """A span reads the whole blocks of its prefix where its parent has them; the rest of the prefix is stored once more,
    in the block in which its own keys begin."""
    start, length, prefix_start, prefix = np.array(spans, np.int32).T
    whole = prefix // KV_BLOCK
    own = -(-(prefix + length) // KV_BLOCK) - whole
    first = np.cumsum(own, dtype=np.int32) - own
    index = {span.start: i for i, span in enumerate(spans)}
    parent = [index[span.prefix_start] if span.prefix else i for i, span in enumerate(spans)]
    block = np.arange((own + whole).max(), dtype=np.int32)
    table = np.where(block < whole[:, None], first[parent][:, None] + block, (first - whole)[:, None] + block)
    span, at = _along(length)
    sequence, position = np.empty((2, rows), np.int32)
    sequence[start[span] + at], position[start[span] + at] = span, prefix[span] + at
    span, at = _along(prefix - whole * KV_BLOCK)
    at += whole[span] * KV_BLOCK
    return _Blocks(sequence, position, table, int(own.sum()), (prefix_start[span] + at, span, at))


def _along(counts: Ints) -> tuple[Ints, Ints]:
    """0 counts[0] times, 1 counts[1] times, ..., and beside them 0, 1, ... anew for each."""
    which = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return which, np.arange(len(which), dtype=np.int32) - (np.cumsum(counts, dtype=np.int32) - counts)[which]


def attention(config: ModelConfig, q: Tensor, k: Tensor, v: Tensor, spans: Sequence[Segment]) -> Tensor:
    """q [T, heads, head_dim], k and v [T, kv_heads, head_dim], normed and rotated -> [T, heads * head_dim]"""
    qkv = np.concatenate([x.detach().flatten(1).numpy() for x in (q, k, v)], 1)
    blocks = _blocks(spans, len(qkv))
    kv = new_kv(config, blocks.count, layers=1)
    shape = ((config.heads, config.kv_heads, config.head_dim), config.norm_eps, None, None, None)
    place = (blocks.table, blocks.table.shape[1], kv.memory, kv.strides)
    rows, sequence, position = blocks.again
    if len(rows):
        pool().attention(qkv[rows], *shape, sequence, position, *place, None)
    out = q.new_empty(len(q), config.heads * config.head_dim)
    pool().attention(qkv, *shape, blocks.sequence, blocks.position, *place, out.numpy())
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
