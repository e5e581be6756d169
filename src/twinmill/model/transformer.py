"""The decoder: one forward for dense Llama / Qwen, mixtures of experts and DeepSeek's family, for training, scoring and
generation.

Rows are packed: axis T runs over the tokens of several segments, one after another, without padding. What differs
between a trainer and an engine is only how a token sees earlier ones, so attention comes in as `Attend`:
block-diagonal here (`SegmentAttention`), over a KV cache in engine/embedded.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import IntTensor, LongTensor, Tensor, nn

from .attention import SegmentAttention
from .config import ModelConfig
from .experts import swiglu
from .latent import LatentAttention
from .logprob import token_logprobs
from .mixture import Mixture, Routing
from .norm import head_norm_rope, rms_norm
from .parity import Parity, linear
from .rope import rope_table


class Output(NamedTuple):
    hidden: Tensor
    """[T, width], after the last norm"""
    routes: Tensor
    """int32 [T, L, top_k], the experts that were used; L = mixture layers (0 in a dense model)"""
    replayed: int
    """(position, layer) pairs whose recorded experts were all used"""
    refused: int
    """(position, layer) pairs in which the plausibility filter replaced at least one recorded expert"""
    aux_loss: Tensor
    """load-balance loss, mean over mixture layers; 1 = perfectly even, 0 in a dense model and without gradients"""


class Attend(Protocol):
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim] -> [T, heads * head_dim]"""
        ...


class Block(nn.Module):
    """One layer. Projections of one input are stored fused (model/hf.py maps the on-disk names onto slices)."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.config, self.index = config, index
        width, head_dim = config.width, config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * head_dim
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.latent = None if config.latent is None else LatentAttention(config, config.latent)
        self.qkv = nn.Parameter(torch.empty(rows, width)) if config.latent is None else None
        self.qkv_bias = nn.Parameter(torch.zeros(rows)) if config.qkv_bias else None
        self.q_norm = nn.Parameter(torch.ones(head_dim)) if config.qk_norm else None
        self.k_norm = nn.Parameter(torch.ones(head_dim)) if config.qk_norm else None
        self.out = nn.Parameter(torch.empty(width, config.heads * config.v_dim))
        self.out_bias = nn.Parameter(torch.zeros(width)) if config.out_bias else None
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.mixture = Mixture(config) if index in config.moe_layers else None
        if self.mixture is None:
            self.gate_up = nn.Parameter(torch.empty(2 * config.intermediate, width))
            self.down = nn.Parameter(torch.empty(width, config.intermediate))

    def forward(self, x: Tensor, rope: Tensor, attend: Attend, forced: Tensor | None, floor: float, parity: Parity):
        """x [T, width] -> (x, Routing or None)"""
        config = self.config
        normed = rms_norm(x, self.attn_norm, config.norm_eps, parity)
        if self.latent is None:
            mixed = attend(self.index, *self._heads(normed, rope, parity))
        else:
            mixed = self.latent.mixed(attend(self.index, *self.latent(normed, rope, parity)))
        x = x + linear(mixed, self.out, self.out_bias, parity)
        normed = rms_norm(x, self.mlp_norm, config.norm_eps, parity)
        if self.mixture is not None:
            y, routing = self.mixture(normed, forced, floor, parity)
            return x + y, routing
        inner = swiglu(linear(normed, self.gate_up, None, parity), parity)
        return x + linear(inner, self.down, None, parity), None

    def _heads(self, x: Tensor, rope: Tensor, parity: Parity) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, width], normed -> q [T, heads, head_dim], k and v [T, kv_heads, head_dim]"""
        config = self.config
        qkv = linear(x, self.qkv, self.qkv_bias, parity).view(len(x), -1, config.head_dim)
        rotated, v = qkv.split((config.heads + config.kv_heads, config.kv_heads), 1)
        rotated = head_norm_rope(rotated, self._head_norms(), rope, config.norm_eps, parity)
        return *rotated.split((config.heads, config.kv_heads), 1), v

    def _head_norms(self) -> Tensor | None:
        """[heads + kv_heads, head_dim]: one norm per head, or None"""
        if self.q_norm is None or self.k_norm is None:
            return None
        return torch.cat((self.q_norm.expand(self.config.heads, -1), self.k_norm.expand(self.config.kv_heads, -1)))


class Decoder(nn.Module):
    """`parity` chooses how far results are independent of what else is in the batch (model/parity.py)."""

    def __init__(self, config: ModelConfig, parity: Parity = Parity.OFF) -> None:
        super().__init__()
        self.config, self.parity = config, parity
        self.stored: dict[str, str] = {}
        """on-disk dtype by tensor name where it is not the usual one; see model/hf.py"""
        self.carried: dict[str, npt.NDArray] = {}
        """stored bits, by on-disk name, of tensors that are not computed with (ModelConfig.carries)"""
        self.embed = nn.Parameter(torch.empty(config.vocab, config.width))
        self.blocks = nn.ModuleList(Block(config, index) for index in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.width))
        self.head = None if config.tied else nn.Parameter(torch.empty(config.vocab, config.width))
        self._rope = rope_table(config, 0)

    @property
    def head_weight(self) -> Tensor:
        """[vocab, width]"""
        return self.embed if self.head is None else self.head

    def forward(
        self,
        token_ids: LongTensor,
        positions: LongTensor,
        segment_lens: Sequence[int],
        experts: IntTensor | None = None,
        replay_floor: float = 0.0,
        parents: Sequence[int] | None = None,
    ) -> Output:
        """Packed rows: token_ids, positions [T]; segment_lens add up to T; experts [T, L, top_k], -1 = choose freely.

        parents[i]: the segment that segment i continues (-1 = none), so that a prompt which many segments share is
        computed once; their positions go on where its end. Results are those of the segments written out in full.
        (Leave the last shared token to the children: a token is predicted by the row before it.)

        A recorded expert is kept iff its score is at least `replay_floor` times the lowest score of the router's own
        top k; holes are refilled from the router's own choice in order.
        """
        if sum(segment_lens) != len(token_ids):
            raise ValueError(f"segment_lens add up to {sum(segment_lens)}, but there are {len(token_ids)} tokens")
        attend = SegmentAttention(self.config, segment_lens, parents, self.parity)
        return self.run(token_ids, positions, attend, experts, replay_floor)

    def run(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attend: Attend,
        experts: Tensor | None = None,
        replay_floor: float = 0.0,
    ) -> Output:
        """forward with any attention."""
        x = F.embedding(token_ids, self.embed)
        rope = self._rope_at(positions)
        routings: list[Routing] = []
        for block in self.blocks:
            forced = experts[:, len(routings)] if experts is not None and block.mixture is not None else None
            x, routing = block(x, rope, attend, forced, replay_floor, self.parity)
            if routing is not None:
                routings.append(routing)
        hidden = rms_norm(x, self.norm, self.config.norm_eps, self.parity)
        if not routings:
            empty = torch.zeros(len(x), 0, 0, dtype=torch.int32)
            return Output(hidden, empty, 0, 0, x.new_zeros(()))
        return Output(
            hidden,
            torch.stack([r.chosen for r in routings], 1).int(),
            sum(r.replayed for r in routings),
            sum(r.refused for r in routings),
            torch.stack([r.aux_loss for r in routings]).mean(),
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [T, width] -> [T, vocab]"""
        return linear(hidden, self.head_weight, None, self.parity)

    def logprobs(self, hidden: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
        """log p(targets[t] | hidden[t]) at `temperature`, fp32 [T], differentiable; never holds [T, vocab].

        Select the positions that carry loss before the call: it costs as much as a layer.
        """
        return token_logprobs(hidden, self.head_weight, targets, temperature, self.parity)

    def _rope_at(self, positions: Tensor) -> Tensor:
        need = int(positions.max()) + 1 if len(positions) else 0
        rope = self._rope  # read once: others may replace it meanwhile, also by a shorter one
        if need > rope.shape[1]:
            rope = self._rope = rope_table(self.config, max(need, 2 * rope.shape[1]))
        return rope[:, positions]
