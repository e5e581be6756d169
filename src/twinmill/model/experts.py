"""A mixture of experts: top-k softmax routing, router replay, and the experts' MLPs."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ModelConfig
from .parity import Parity, linear


class Routing(NamedTuple):
    chosen: Tensor
    """int64 [T, top_k], in falling order of score"""
    gates: Tensor
    """[T, top_k]; differentiable"""
    replayed: int
    refused: int
    aux_loss: Tensor
    """E * sum_e share of tokens sent to e * mean score of e; 1 = perfectly even"""


class Mixture(nn.Module):
    """Experts are stored fused: gate_up [E, 2 * I, width], down [E, width, I]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        experts, width, inner = config.experts, config.width, config.expert_intermediate
        self.router = nn.Parameter(torch.empty(experts, width))
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * inner, width))
        self.down = nn.Parameter(torch.empty(experts, width, inner))
        shared = config.shared_intermediate
        self.shared_gate_up = nn.Parameter(torch.empty(2 * shared, width)) if shared else None
        self.shared_down = nn.Parameter(torch.empty(width, shared)) if shared else None
        self.shared_gate = nn.Parameter(torch.empty(1, width)) if shared else None

    def forward(
        self, x: Tensor, forced: Tensor | None, floor: float, parity: Parity
    ) -> tuple[Tensor, Routing]:
        """x [T, width]; forced [T, top_k], -1 = choose freely"""
        scores = linear(x, self.router, None, parity).softmax(-1)
        routing = route(scores, self.config.top_k, self.config.norm_topk, forced, floor)
        y = apply_experts(x, routing.chosen, routing.gates, self.gate_up, self.down, parity)
        if self.shared_gate_up is not None:
            gate, up = linear(x, self.shared_gate_up, None, parity).chunk(2, -1)
            shared = linear(F.silu(gate) * up, self.shared_down, None, parity)
            y = y + shared * linear(x, self.shared_gate, None, parity).sigmoid()
        return y, routing


def route(scores: Tensor, top_k: int, norm: bool, forced: Tensor | None, floor: float) -> Routing:
    """scores [T, E] (softmax over all experts). Forced experts take their own scores, so gradients reach the router."""
    own_scores, own = scores.topk(top_k, -1)
    chosen, replayed, refused = own, 0, 0
    if forced is not None:
        chosen, replayed, refused = replay(scores.detach(), own, own_scores.detach(), forced.long(), floor)
    gates = own_scores if forced is None else scores.gather(-1, chosen)
    if norm:
        gates = gates / gates.sum(-1, keepdim=True)
    count = torch.bincount(chosen.flatten(), minlength=scores.shape[-1])
    share = count.to(scores.dtype) / chosen.numel()
    return Routing(chosen, gates, replayed, refused, scores.shape[-1] * (share * scores.mean(0)).sum())


def replay(
    scores: Tensor, own: Tensor, own_scores: Tensor, forced: Tensor, floor: float
) -> tuple[Tensor, int, int]:
    """The experts to use: recorded ones that are plausible, holes refilled from `own` in order.

    Returns chosen [T, top_k] and the numbers of rows that were replayed whole and that had a refusal.
    """
    recorded = forced >= 0
    keep = recorded & (scores.gather(-1, forced.clamp(min=0)) >= floor * own_scores[:, -1:])
    free = ~recorded.any(-1)
    holes = ~keep
    refused = int((recorded & holes).any(-1).sum())
    chosen = torch.where(keep, forced, -1)
    if refused or bool((holes.any(-1) & ~free).any()):
        # a candidate of our own that is not kept already fills the first open hole
        for j in range(own.shape[-1]):
            candidate = own[:, j]
            wanted = (chosen != candidate[:, None]).all(-1)
            first = ((chosen < 0).cumsum(-1) == 1) & (chosen < 0) & wanted[:, None]
            chosen = torch.where(first, candidate[:, None], chosen)
    chosen = torch.where(free[:, None], own, chosen)
    replayed = int(keep.all(-1).sum())
    return chosen, replayed, refused


def apply_experts(
    x: Tensor, chosen: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor, parity: Parity
) -> Tensor:
    """x [T, width], chosen and gates [T, K] -> sum over the K chosen experts' MLPs, [T, width]"""
    top_k = chosen.shape[-1]
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=len(gate_up)).tolist()
    rows = x[order // top_k].split(counts)
    parts = []
    for e, part in enumerate(rows):
        if len(part):
            gate, up = linear(part, gate_up[e], None, parity).chunk(2, -1)
            parts.append(linear(F.silu(gate) * up, down[e], None, parity))
    y = torch.cat(parts) * gates.flatten()[order, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return y[back].view(*chosen.shape, -1).sum(1)
