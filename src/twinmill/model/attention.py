"""Causal attention, written so that a token's result does not depend on how it was batched.

The trainer (packed segments, here), prefill in chunks and single-token decoding (engine/embedded) all go through
`probabilities` and `mix`. Each of the two is a batched matrix product whose rows come out bit-equal for any number
of rows >= MIN_ROWS and any number of keys that is a multiple of KEY_PAD: hidden keys weigh exactly zero, and the sum
over keys always runs in the same blocks. tests/model/test_parity.py holds this on the machine at hand.

The query heads that share a key head are stacked as rows of one matrix (row = position * G + head in group), so keys
and values are never copied per head. Z = sequences * kv_heads, R = query rows, P = keys.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .config import ModelConfig
from .parity import MIN_ROWS

KEY_PAD = 64
"""keys come in multiples of this: vector kernels treat a ragged tail differently"""
KEY_BLOCK = 128
"""keys per partial sum: longer sums are split differently by different numbers of rows"""
QUERY_BLOCK = 64
"""positions per block: small blocks skip more of the upper triangle, large ones make larger matrix products"""
KEEP_PROBABILITIES = 2**24
"""numbers per layer that the backward may find instead of recomputing them (64 MiB)"""


def padded(keys: int) -> int:
    """`keys` rounded up to what `probabilities` takes."""
    return -(-keys // KEY_PAD) * KEY_PAD


def probabilities(q: Tensor, k: Tensor, first: int, hidden: Tensor) -> Tensor:
    """q [Z, R, head_dim], k [Z, P, head_dim] -> [Z, R, P].

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
    """Each segment attends causally to itself alone. One instance serves all layers of one forward."""

    def __init__(self, config: ModelConfig, segment_lens: Sequence[int]) -> None:
        self.buckets = [_bucket(group, config) for group in _group(segment_lens)]
        self.back = _inverse(self.buckets, sum(segment_lens) * config.kv_heads)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads * head_dim]"""
        return _SegmentAttention.apply(q, k, v, self.buckets, self.back)


class Block(NamedTuple):
    """QUERY_BLOCK positions of all segments that are long enough to have them."""

    z: int
    """segments * kv_heads; a prefix of the bucket, whose segments are sorted by length"""
    rows: slice
    """of the query rows"""
    first: int
    """position of the first query"""
    keys: int
    hidden: Tensor
    """[1, R, keys - first]"""


class Bucket(NamedTuple):
    """Segments of similar length, longest first, padded to `width` positions."""

    width: int
    packed_rows: Tensor
    """[Z * width]: which row of the packed axis [T * kv_heads] stands here; padding repeats row 0"""
    padding: Tensor
    """which of packed_rows are padding"""
    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """numbers in all probabilities"""
        return sum(b.z * (b.rows.stop - b.rows.start) * b.keys for b in self.blocks)


def _group(lens: Sequence[int]) -> list[list[tuple[int, int]]]:
    """(start, length) of every segment, longest first, cut where a length falls below half of its group's longest."""
    starts = torch.tensor([0, *lens]).cumsum(0).tolist()
    groups: list[list[tuple[int, int]]] = []
    for start, length in sorted(zip(starts, lens), key=lambda segment: -segment[1]):
        if not groups or 2 * length < groups[-1][0][1]:
            groups.append([])
        groups[-1].append((start, length))
    return groups


def _bucket(group: list[tuple[int, int]], config: ModelConfig) -> Bucket:
    starts, lens = torch.tensor(group).T
    width = padded(group[0][1])
    along = torch.arange(width)
    valid = along < lens[:, None]
    rows = torch.where(valid, starts[:, None] + along, 0)
    heads = torch.arange(config.kv_heads)[:, None]
    rows = (rows[:, None] * config.kv_heads + heads) * valid[:, None]
    padding = (~valid)[:, None].expand(rows.shape).flatten().nonzero()[:, 0]
    return Bucket(width, rows.flatten(), padding, tuple(_blocks([length for _, length in group], config)))


def _blocks(lens: list[int], config: ModelConfig) -> Iterator[Block]:
    group = config.heads // config.kv_heads
    for first in range(0, lens[0], QUERY_BLOCK):
        # at least MIN_ROWS query rows: a few padded positions ride along
        last = min(first + QUERY_BLOCK, -(-lens[0] // MIN_ROWS) * MIN_ROWS)
        z = sum(length > first for length in lens) * config.kv_heads
        keys = padded(last)
        rows = torch.arange(first, last).repeat_interleave(group)
        hidden = torch.arange(first, keys) > rows[:, None]
        yield Block(z, slice(first * group, last * group), first, keys, hidden[None])


def _inverse(buckets: list[Bucket], rows: int) -> Tensor:
    """[T * kv_heads]: where each packed row stands in the buckets' rows laid end to end."""
    back = torch.empty(rows, dtype=torch.int64)
    offset = 0
    for bucket in buckets:
        at = torch.arange(offset, offset + len(bucket.packed_rows))
        real = torch.ones(len(at), dtype=torch.bool).index_fill_(0, bucket.padding, False)
        back[bucket.packed_rows[real]] = at[real]
        offset += len(at)
    return back


class _SegmentAttention(Function):
    """Probabilities are kept for the backward while they are small, else computed again."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, buckets: list[Bucket], back: Tensor) -> Tensor:
        ctx.keep = sum(bucket.size for bucket in buckets) <= KEEP_PROBABILITIES
        ctx.buckets, ctx.back, ctx.shapes = buckets, back, [x.shape for x in (q, k, v)]
        packed = [x.reshape(len(back), -1) for x in (q, k, v)]
        saved, outs = [], []
        for bucket in buckets:
            q, k, v = (_gather(x, bucket, q.shape[-1]) for x in packed)
            out = torch.zeros_like(q)
            saved += [q, k, v, out]
            outs.append(out.view(len(bucket.packed_rows), -1))
            for block in bucket.blocks:
                weights = _weights(block, q, k)
                out[: block.z, block.rows] = mix(weights, v[: block.z, : block.keys])
                if ctx.keep:
                    saved.append(weights)
        ctx.save_for_backward(*saved)
        return _scatter(outs, back).view(ctx.shapes[0][0], -1)

    @staticmethod
    def backward(ctx, grad: Tensor):
        saved = iter(ctx.saved_tensors)
        grad = grad.reshape(len(ctx.back), -1)
        parts: tuple[list[Tensor], ...] = ([], [], [])
        for bucket in ctx.buckets:
            q, k, v, out = (next(saved) for _ in range(4))
            weights = [next(saved) for _ in bucket.blocks] if ctx.keep else [None] * len(bucket.blocks)
            by_out = _gather(grad, bucket, q.shape[-1])
            by_out.view(len(bucket.packed_rows), -1).index_fill_(0, bucket.padding, 0.0)
            for part, x in zip(parts, _bucket_backward(bucket, by_out, q, k, v, out, weights)):
                part.append(x.view(len(bucket.packed_rows), -1))
        by_q, by_k, by_v = (_scatter(part, ctx.back).view(shape) for part, shape in zip(parts, ctx.shapes))
        return by_q, by_k, by_v, None, None


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


def _gather(packed: Tensor, bucket: Bucket, head_dim: int) -> Tensor:
    """[T * kv_heads, n * head_dim] -> [Z, width * n, head_dim]"""
    rows = packed.index_select(0, bucket.packed_rows)
    return rows.view(len(rows) // bucket.width, -1, head_dim)


def _scatter(rows: list[Tensor], back: Tensor) -> Tensor:
    """The inverse of _gather over all buckets: [T * kv_heads, n * head_dim]"""
    return (rows[0] if len(rows) == 1 else torch.cat(rows)).index_select(0, back)
