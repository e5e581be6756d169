"""Block-diagonal causal attention over packed segments."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import ModelConfig
from .parity import Parity


class SegmentAttention:
    """Each segment attends causally to itself alone. Segments are padded to the longest of their bucket."""

    def __init__(self, config: ModelConfig, segment_lens: Sequence[int], parity: Parity) -> None:
        self.config, self.lens, self.parity = config, list(segment_lens), parity

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads * head_dim]"""
        lens = self.lens
        if len(lens) == 1:
            return _attend(q[None], k[None], v[None])[0].flatten(1)
        valid = torch.arange(max(lens))[None] < torch.tensor(lens)[:, None]
        padded = []
        for x in (q, k, v):
            rows = x.new_zeros(len(lens), max(lens), *x.shape[1:])
            padded.append(rows.masked_scatter(valid[..., None, None], x))
        return _attend(*padded)[valid].flatten(1)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[S, N, heads, head_dim] -> the same"""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
