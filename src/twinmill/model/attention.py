"""Causal attention, written so that a token's result does not depend on how it was batched.

The trainer (packed segments, here), prefill in chunks and single-token decoding (engine/embedded) all go through
`probabilities` and `mix`. Each of the two is a batched matrix product whose rows come out bit-equal for any number
of rows >= MIN_ROWS and any number of keys that is a multiple of KEY_PAD: hidden keys weigh exactly zero, and the sum
over keys always runs in the same blocks. tests/model/test_parity.py holds this on the machine at hand.

The query heads that share a key head are stacked as rows of one matrix (row = position * G + head in group), so keys
and values are never copied per head. Z = sequences * kv_heads, R = query rows, P = keys.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from .config import ModelConfig, Parity
from .segments import Block, Bucket, Plan, plan

KEY_BLOCK = 128
"""keys per partial sum: longer sums are split differently by different numbers of rows"""
KEEP_PROBABILITIES = 2**24
"""numbers per layer that the backward may find instead of computing them again (64 MiB)"""


def probabilities(q: Tensor, k: Tensor, first: int, hidden: Tensor) -> Tensor:
    """q [Z, R, head_dim], k [Z, P, head_dim] -> [Z, R, P]. P is a multiple of KEY_PAD.

    `hidden` [Z or 1, R or 1, P - first], bool: which of the keys from `first` on a row must not see; all rows see the
    keys before `first`.
    """
    scores = torch.baddbmm(q.new_empty(()), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    scores[:, :, first:].masked_fill_(hidden, float("-inf"))
    return scores.softmax(-1)


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """weights [Z, R, P] @ v [Z, P, head_dim], summed in blocks of KEY_BLOCK keys."""
    out = torch.bmm(weights[:, :, :KEY_BLOCK], v[:, :KEY_BLOCK])
    for i in range(KEY_BLOCK, v.shape[1], KEY_BLOCK):
        out.baddbmm_(weights[:, :, i : i + KEY_BLOCK], v[:, i : i + KEY_BLOCK])
    return out


class SegmentAttention:
    """model.transformer.Attend over packed segments. One instance serves all layers of one forward."""

    def __init__(
        self,
        config: ModelConfig,
        lens: Sequence[int],
        parents: Sequence[int] | None = None,
        parity: Parity = Parity.STRICT,
    ) -> None:
        self._plan, self._config, self._parity = plan(config, lens, parents), config, parity

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads * head_dim]"""
        if self._parity is Parity.CORE:
            return _CoreAttention.apply(q, k, v, self._plan, self._config)
        return _SegmentAttention.apply(q, k, v, self._plan)


class _SegmentAttention(Function):
    """Probabilities are kept for the backward while they are few, else computed again."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, layout: Plan) -> Tensor:
        ctx.keep = sum(bucket.size for bucket in layout.buckets) <= KEEP_PROBABILITIES
        ctx.layout, ctx.shapes = layout, [x.shape for x in (q, k, v)]
        packed_q, packed_k, packed_v = (x.reshape(len(layout.query_back), -1) for x in (q, k, v))
        saved, outs = [], []
        for bucket in layout.buckets:
            qs = _gather(packed_q, bucket.query_rows, q.shape[-1])
            ks, vs = (_gather(x, bucket.key_rows, q.shape[-1]) for x in (packed_k, packed_v))
            out = torch.zeros_like(qs)
            for block in bucket.blocks:
                weights = _weights(block, qs, ks)
                out[: block.z, block.rows] = mix(weights, vs[: block.z, : block.keys])
                if ctx.keep:
                    saved.append(weights)
            saved += [qs, ks, vs, out]
            outs.append(out)
        ctx.save_for_backward(*saved)
        return _scatter(outs, layout.query_back, packed_q.shape[1]).view(len(q), -1)

    @staticmethod
    def backward(ctx, grad: Tensor):
        saved, layout = iter(ctx.saved_tensors), ctx.layout
        grad = grad.reshape(len(layout.query_back), -1)
        parts: tuple[list[Tensor], ...] = ([], [], [])
        for bucket in layout.buckets:
            kept = [next(saved) if ctx.keep else None for _ in bucket.blocks]
            q, k, v, out = (next(saved) for _ in range(4))
            by_out = _gather(grad, bucket.query_rows, q.shape[-1])
            by_out.view(bucket.query_rows.numel(), -1).index_fill_(0, bucket.query_padding, 0.0)
            for part, x in zip(parts, _bucket_backward(bucket, by_out, q, k, v, out, kept)):
                part.append(x)
        by_q = _scatter(parts[0], layout.query_back, grad.shape[1]).view(ctx.shapes[0])
        by_k, by_v = (_collect(part, layout).view(ctx.shapes[1]) for part in parts[1:])
        return by_q, by_k, by_v, None


class _CoreAttention(Function):
    """The core's forward; the backward computes probabilities in torch."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, layout: Plan, config: ModelConfig) -> Tensor:
        from .core import operators

        segments = [segment for bucket in layout.buckets for segment in bucket.segments]
        out = operators.attention(config, q, k, v, segments)
        ctx.keep, ctx.layout, ctx.shapes = False, layout, [x.shape for x in (q, k, v)]
        packed_q, packed_k, packed_v, packed_out = (x.reshape(len(layout.query_back), -1) for x in (q, k, v, out))
        saved = []
        for bucket in layout.buckets:
            qs, outs = (_gather(x, bucket.query_rows, q.shape[-1]) for x in (packed_q, packed_out))
            saved += [qs, *(_gather(x, bucket.key_rows, q.shape[-1]) for x in (packed_k, packed_v)), outs]
        ctx.save_for_backward(*saved)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        return *_SegmentAttention.backward(ctx, grad), None


def _weights(block: Block, q: Tensor, k: Tensor) -> Tensor:
    return probabilities(q[: block.z, block.rows], k[: block.z, : block.keys], block.first, block.hidden)


def _bucket_backward(
    bucket: Bucket, by_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    by_q, by_k, by_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    inner = (by_out * out).sum(-1, keepdim=True)
    scale = q.shape[-1] ** -0.5
    for block, weights in zip(bucket.blocks, kept):
        z, rows, keys = block.z, block.rows, block.keys
        if weights is None:
            weights = _weights(block, q, k)
        by_block = by_out[:z, rows]
        by_v[:z, :keys].baddbmm_(weights.transpose(1, 2), by_block)
        by_scores = torch.bmm(by_block, v[:z, :keys].transpose(1, 2)).sub_(inner[:z, rows]).mul_(weights)
        by_q[:z, rows] = torch.baddbmm(q.new_empty(()), by_scores, k[:z, :keys], beta=0, alpha=scale)
        by_k[:z, :keys].baddbmm_(by_scores.transpose(1, 2), q[:z, rows], alpha=scale)
    return by_q, by_k, by_v


def _gather(packed: Tensor, rows: Tensor, head_dim: int) -> Tensor:
    """packed [T * kv_heads, n * head_dim], rows [Z, m] -> [Z, m * n, head_dim]"""
    return packed.index_select(0, rows.flatten()).view(len(rows), -1, head_dim)


def _scatter(buckets: list[Tensor], back: Tensor, width: int) -> Tensor:
    """The inverse of _gather, bucket by bucket: [T * kv_heads, width]"""
    rows = [x.view(-1, width) for x in buckets]
    return (rows[0] if len(rows) == 1 else torch.cat(rows)).index_select(0, back)


def _collect(buckets: list[Tensor], layout: Plan) -> Tensor:
    """Gradients by keys (or values): each segment's own, and on the parents' what their children add.

    buckets [Z, P, head_dim] each -> [T, kv_heads, head_dim]
    """
    head_dim = buckets[0].shape[-1]
    kv_heads = len(buckets[0]) // len(layout.buckets[0].segments)
    total = _scatter(buckets, layout.key_back, head_dim).view(-1, kv_heads, head_dim)
    for bucket, by_keys in zip(layout.buckets, buckets):
        for segment, by_heads in zip(bucket.segments, by_keys.split(kv_heads)):
            if segment.prefix:
                parent = slice(segment.prefix_start, segment.prefix_start + segment.prefix)
                total[parent] += by_heads[:, : segment.prefix].transpose(0, 1)
    return total
