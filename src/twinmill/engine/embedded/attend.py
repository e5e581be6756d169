"""Attention of one step over the KV cache: one token of every decoding slot, then chunks of other contexts."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from twinmill.model.attention import mix, probabilities
from twinmill.model.config import ModelConfig, Parity
from twinmill.model.parity import MIN_ROWS, pads
from twinmill.model.segments import QUERY_BLOCK, padded

from .compute import Chunk
from .kv import KvCache


class _Block(NamedTuple):
    """Up to QUERY_BLOCK positions of a chunk. R = query rows."""

    rows: slice
    """of the chunk's query rows"""
    padding: int
    """rows added to reach MIN_ROWS"""
    first: int
    keys: int
    hidden: Tensor
    """[1, R, keys - first]"""


class StepAttention:
    """model.transformer.Attend: rows [0, D) are slots [0, D) at `positions`, the rest are the chunks in order."""

    def __init__(
        self, cache: KvCache, config: ModelConfig, parity: Parity, positions: Sequence[int], chunks: Sequence[Chunk]
    ) -> None:
        self._cache, self._chunks = cache, chunks
        self._kv_heads, self._group = config.kv_heads, config.heads // config.kv_heads
        self._pads = lambda rows: parity is Parity.STRICT and pads(rows, parity)
        self._decoding = len(positions)
        self._slots, self._positions = torch.arange(len(positions)), torch.tensor(positions, dtype=torch.int64)
        if positions:
            self._first, self._keys = min(positions) + 1, padded(max(positions) + 1)
            hidden = torch.arange(self._first, self._keys) > self._positions[:, None]
            self._hidden = hidden.repeat_interleave(config.kv_heads, 0)[:, None]
        self._blocks = [list(self._blocks_of(chunk)) for chunk in chunks]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads * head_dim]"""
        parts = []
        done = self._decoding
        if done:
            parts.append(self._decode(layer, q[:done], k[:done], v[:done]))
        for chunk, blocks in zip(self._chunks, self._blocks):
            rows = slice(done, done + chunk.count)
            parts.append(self._prefill(layer, chunk, blocks, q[rows], k[rows], v[rows]))
            done += chunk.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        count, _, head_dim = q.shape
        keys, values = self._cache.kv[layer, :, :count]
        keys[self._slots, :, self._positions] = k
        values[self._slots, :, self._positions] = v
        keys, values = (x.flatten(0, 1)[:, : self._keys] for x in (keys, values))
        rows = q.reshape(-1, self._group, head_dim)
        if self._pads(self._group):
            rows = F.pad(rows, (0, 0, 0, MIN_ROWS - self._group))
        weights = probabilities(rows, keys, self._first, self._hidden)
        return mix(weights, values)[:, : self._group].reshape(count, -1)

    def _prefill(self, layer: int, chunk: Chunk, blocks: list[_Block], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.kv[layer, :, chunk.slot]
        span = slice(chunk.start, chunk.start + chunk.count)
        keys[:, span] = k.transpose(0, 1)
        values[:, span] = v.transpose(0, 1)
        head_dim = q.shape[-1]
        rows = q.reshape(chunk.count, self._kv_heads, -1).transpose(0, 1).reshape(self._kv_heads, -1, head_dim)
        out = torch.empty_like(rows)
        for block in blocks:
            queries = rows[:, block.rows]
            if block.padding:
                queries = F.pad(queries, (0, 0, 0, block.padding))
            weights = probabilities(queries, keys[:, : block.keys], block.first, block.hidden)
            mixed = mix(weights, values[:, : block.keys])
            out[:, block.rows] = mixed[:, : mixed.shape[1] - block.padding]
        return out.view(self._kv_heads, chunk.count, -1).transpose(0, 1).reshape(chunk.count, -1)

    def _blocks_of(self, chunk: Chunk):  # type: ignore[no-untyped-def]
        for begin in range(0, chunk.count, QUERY_BLOCK):
            end = min(begin + QUERY_BLOCK, chunk.count)
            first, keys = chunk.start + begin, padded(chunk.start + end)
            rows = torch.arange(first, chunk.start + end).repeat_interleave(self._group)
            padding = MIN_ROWS - len(rows) if self._pads(len(rows)) else 0
            rows = F.pad(rows, (0, padding), value=first)
            hidden = torch.arange(first, keys) > rows[:, None]
            yield _Block(slice(begin * self._group, end * self._group), padding, first, keys, hidden[None])
