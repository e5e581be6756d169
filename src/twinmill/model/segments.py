"""How packed segments are laid out for attention: a plan made once per forward and used by every layer.

Segments of similar length form a bucket: a padded batch, longest first. A loop over blocks of query positions works on
the segments that are long enough to have them, and on the keys that these positions can see.

A segment may continue another one (its parent: the prompt that the attempts of a group share). Its queries then see
the parent's keys first and its own behind them, exactly as if the parent's tokens stood before its own.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .config import ModelConfig
from .parity import MIN_ROWS

KEY_PAD = 64
"""keys come in multiples of this: vector kernels treat a ragged tail differently"""
QUERY_BLOCK = 64
"""positions per block: small blocks skip more of the upper triangle, large ones make larger matrix products"""


def padded(keys: int) -> int:
    """`keys` rounded up to a multiple of KEY_PAD."""
    return -(-keys // KEY_PAD) * KEY_PAD


class Segment(NamedTuple):
    """Tokens [start, start + length) of the packed rows, behind tokens [prefix_start, prefix_start + prefix)."""

    start: int
    length: int
    prefix_start: int
    prefix: int


class Block(NamedTuple):
    """QUERY_BLOCK positions of the first `z / kv_heads` segments of a bucket. R = query rows."""

    z: int
    rows: slice
    """of the bucket's query rows"""
    first: int
    """keys before this one are seen by every row"""
    keys: int
    hidden: Tensor
    """bool [1 or z, R, keys - first]: what a row does not see"""


class Bucket(NamedTuple):
    """Z = segments * kv_heads. Rows index the packed axis [T * kv_heads]; padding repeats row 0."""

    segments: tuple[Segment, ...]
    query_rows: Tensor
    """[Z, queries]"""
    query_padding: Tensor
    """flat indices into query_rows"""
    key_rows: Tensor
    """[Z, keys]: the prefix, then the segment's own"""
    own_keys: Tensor
    """[Z, keys], bool: the segment's own"""
    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Numbers in all probabilities."""
        return sum(b.z * (b.rows.stop - b.rows.start) * b.keys for b in self.blocks)


class Plan(NamedTuple):
    buckets: tuple[Bucket, ...]
    query_back: Tensor
    """[T * kv_heads]: where a packed row stands among the query rows of all buckets, laid end to end"""
    key_back: Tensor
    """the same among their key rows"""


def plan(config: ModelConfig, lens: Sequence[int], parents: Sequence[int] | None = None) -> Plan:
    """parents[i] = index of the segment that segment i continues, -1 = none; a parent has no parent itself."""
    buckets = tuple(_bucket(group, config) for group in _groups(_segments(lens, parents)))
    rows = sum(lens) * config.kv_heads
    query_rows = [bucket.query_rows.flatten() for bucket in buckets]
    own_queries = [_unpadded(bucket) for bucket in buckets]
    key_rows, own_keys = zip(*((bucket.key_rows.flatten(), bucket.own_keys.flatten()) for bucket in buckets))
    return Plan(buckets, _inverse(query_rows, own_queries, rows), _inverse(key_rows, own_keys, rows))


def _segments(lens: Sequence[int], parents: Sequence[int] | None) -> list[Segment]:
    starts = torch.tensor([0, *lens]).cumsum(0).tolist()
    parents = [-1] * len(lens) if parents is None else parents
    if len(parents) != len(lens) or any(p >= len(lens) or (p >= 0 and parents[p] >= 0) for p in parents):
        raise ValueError(f"parents {list(parents)} of {len(lens)} segments: one each, and no parent with a parent")
    prefixes = [(starts[p], lens[p]) if p >= 0 else (0, 0) for p in parents]
    return [Segment(start, length, *prefix) for start, length, prefix in zip(starts, lens, prefixes) if length]


def _groups(segments: list[Segment]) -> list[list[Segment]]:
    """Longest first, cut where a length falls below half of its group's longest."""
    groups: list[list[Segment]] = []
    for segment in sorted(segments, key=lambda s: -s.length):
        if not groups or 2 * segment.length < groups[-1][0].length:
            groups.append([])
        groups[-1].append(segment)
    return groups


def _bucket(segments: list[Segment], config: ModelConfig) -> Bucket:
    start, length, prefix_start, prefix = (column[:, None] for column in torch.tensor(segments).T)
    # at least MIN_ROWS queries: a few padded positions ride along
    queries = -(-segments[0].length // MIN_ROWS) * MIN_ROWS
    keys = padded(int(prefix.max()) + queries)
    along = torch.arange(queries)
    query_tokens = torch.where(along < length, start + along, -1)
    along = torch.arange(keys)
    own = (along >= prefix) & (along < prefix + length)
    key_tokens = torch.where(own, start + along - prefix, torch.where(along < prefix, prefix_start + along, -1))
    query_rows, key_rows = _per_head(query_tokens, config.kv_heads), _per_head(key_tokens, config.kv_heads)
    return Bucket(
        tuple(segments),
        query_rows.clamp(min=0),
        (query_rows < 0).flatten().nonzero()[:, 0],
        key_rows.clamp(min=0),
        own.repeat_interleave(config.kv_heads, 0),
        tuple(_blocks(segments, queries, config)),
    )


def _per_head(tokens: Tensor, kv_heads: int) -> Tensor:
    """[S, n] tokens (-1 = padding) -> [S * kv_heads, n] rows (negative = padding)"""
    rows = tokens[:, None] * kv_heads + torch.arange(kv_heads)[:, None]
    return torch.where(tokens[:, None] < 0, -1, rows).flatten(0, 1)


def _blocks(segments: list[Segment], queries: int, config: ModelConfig) -> Iterator[Block]:
    group = config.heads // config.kv_heads
    for begin in range(0, queries, QUERY_BLOCK):
        end = min(begin + QUERY_BLOCK, queries)
        active = [s for s in segments if s.length > begin]
        prefixes = torch.tensor([s.prefix for s in active])
        keys, first = padded(int(prefixes.max()) + end), int(prefixes.min()) + begin
        if len(prefixes.unique()) == 1:
            prefixes = prefixes[:1]
        else:
            prefixes = prefixes.repeat_interleave(config.kv_heads)
        position = prefixes[:, None] + torch.arange(begin, end).repeat_interleave(group)
        hidden = torch.arange(first, keys) > position[..., None]
        yield Block(len(active) * config.kv_heads, slice(begin * group, end * group), first, keys, hidden)


def _unpadded(bucket: Bucket) -> Tensor:
    return torch.ones(bucket.query_rows.numel(), dtype=torch.bool).index_fill_(0, bucket.query_padding, False)


def _inverse(rows: Sequence[Tensor], real: Sequence[Tensor], total: int) -> Tensor:
    """Where each of `total` packed rows stands in `rows` laid end to end, looking at the real ones alone."""
    flat, mask = torch.cat(list(rows)), torch.cat(list(real))
    back = torch.empty(total, dtype=torch.int64)
    back[flat[mask]] = mask.nonzero()[:, 0]
    return back
