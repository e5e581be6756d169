"""Multi-head latent attention (MLA; DeepSeek-V2, 2405.04434), with heads expanded.

    x -> q latent [q_rank] -> norm -> queries of all heads                          [heads, nope + rope]
    x -> kv latent [kv_rank] -> norm -> keys without position, and values           [heads, nope], [heads, v]
    x -> one rotated key part for all heads                                         [rope]

The latent exists so that a cache may hold kv_rank + rope numbers per token. Here attention and cache see ordinary heads,
made equally wide by zeros behind the narrower of keys and values: they stay one code for all families, and strict parity
holds as it does there. The price is memory: heads * 2 * head_dim numbers per token and layer in place of kv_rank + rope.
Not covered: a cache of latents with kv_up absorbed into the queries, the native core.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import Latent, ModelConfig
from .core import CoreUnavailable, lacks
from .norm import head_norm_rope, rms_norm
from .parity import Parity, linear
from .rope import score_gain

LATENT_EPS = 1e-6
"""of the norms of both latents: the family's own code does not take rms_norm_eps there"""


class LatentAttention(nn.Module):
    """From a normed token to queries, keys and values. Projections of one input are stored fused."""

    def __init__(self, config: ModelConfig, latent: Latent) -> None:
        super().__init__()
        self.config, self.latent = config, latent
        queries = config.heads * (latent.nope_dim + latent.rope_dim)
        first = latent.q_rank or queries
        self.down = nn.Parameter(torch.empty(first + latent.kv_rank + latent.rope_dim, config.width))
        """queries' latent (queries themselves where q_rank = 0), keys' and values' latent, rotated key part"""
        self.q_norm = nn.Parameter(torch.ones(latent.q_rank)) if latent.q_rank else None
        self.q_up = nn.Parameter(torch.empty(queries, latent.q_rank)) if latent.q_rank else None
        self.kv_norm = nn.Parameter(torch.ones(latent.kv_rank))
        self.kv_up = nn.Parameter(torch.empty(config.heads * (latent.nope_dim + latent.v_dim), latent.kv_rank))
        score_dim = latent.nope_dim + latent.rope_dim
        # attention divides by the root of head_dim, which may be wider than what is compared
        self._scale = score_gain(config) * (config.head_dim / score_dim) ** 0.5

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows of `down`."""
        latent = self.latent
        return len(self.down) - latent.kv_rank - latent.rope_dim, latent.kv_rank, latent.rope_dim

    def forward(self, x: Tensor, rope: Tensor, parity: Parity) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, width] -> q, k, v, each [T, heads, head_dim]"""
        config, latent = self.config, self.latent
        if parity is Parity.CORE:
            raise CoreUnavailable(f"the native core has no {lacks(config)}; choose parity strict or off")
        q, kv, key_part = linear(x, self.down, None, parity).split(self.sizes, -1)
        if self.q_norm is not None:
            q = linear(rms_norm(q.contiguous(), self.q_norm, LATENT_EPS, parity), self.q_up, None, parity)
        q = q.reshape(len(x), config.heads, -1)
        kv = linear(rms_norm(kv.contiguous(), self.kv_norm, LATENT_EPS, parity), self.kv_up, None, parity)
        k, v = kv.view(len(x), config.heads, -1).split((latent.nope_dim, latent.v_dim), -1)
        q, q_part = q.split((latent.nope_dim, latent.rope_dim), -1)
        parts = torch.cat((q_part, key_part[:, None]), 1)
        if latent.interleaved:
            parts = parts.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        parts = head_norm_rope(parts, None, rope, config.norm_eps, parity)
        q_part, key_part = parts.split((config.heads, 1), 1)
        q = torch.cat((q, q_part), -1)
        k = torch.cat((k, key_part.expand(-1, config.heads, -1)), -1)
        if self._scale != 1.0:
            q = q * self._scale
        return self._widened(q), self._widened(k), self._widened(v)

    def mixed(self, values: Tensor) -> Tensor:
        """What attention gave, [T, heads * head_dim], without the zeros: [T, heads * v_dim]"""
        wide = values.view(len(values), self.config.heads, -1)
        return wide[..., : self.latent.v_dim].reshape(len(values), -1)

    def _widened(self, heads: Tensor) -> Tensor:
        """[T, heads, n] -> [T, heads, head_dim], zeros behind"""
        missing = self.config.head_dim - heads.shape[-1]
        return F.pad(heads, (0, missing)) if missing else heads
