"""A mixture-of-experts layer: top-k routing with softmax or sigmoid gates, and router replay. The experts themselves:
model/experts.py.

DeepSeek's choice_bias evens the load without a loss (2408.15664). It is a buffer: no gradient reaches it, versions carry
it like any other tensor. Not covered: moving it by the load while training, as pre-training does.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .config import Gating, ModelConfig
from .core import operators
from .experts import apply_experts, swiglu
from .parity import Parity, linear, sigmoid


class Routing(NamedTuple):
    chosen: Tensor
    """int64 [T, top_k], in falling order of score, recorded ones too: records are sets, and the order of a sum is in its bits"""
    gates: Tensor
    """[T, top_k]; differentiable"""
    replayed: int
    refused: int
    aux_loss: Tensor
    """E * sum over experts of (share of choices) * (mean score); 1 = perfectly even; 0 without gradients"""


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
        self.shared_gate = nn.Parameter(torch.empty(1, width)) if shared and config.shared_gate else None
        self.choice_bias = nn.Buffer(torch.zeros(experts)) if config.gating is Gating.SIGMOID else None
        """[E], added to the scores for the choice alone"""

    def forward(self, x: Tensor, forced: Tensor | None, floor: float, parity: Parity) -> tuple[Tensor, Routing]:
        """x [T, width]; forced [T, top_k], -1 = choose freely"""
        logits = linear(x, self.router, None, parity)
        if parity is Parity.CORE:
            routing = route_by_core(logits, self.config, forced, floor)
        else:
            scores = sigmoid(logits, parity) if self.config.gating is Gating.SIGMOID else logits.softmax(-1)
            own = choose(scores, self.config, self.choice_bias)
            routing = route(scores, own, self.config, forced, floor)
        y = apply_experts(x, routing.chosen, routing.gates, self.gate_up, self.down, parity)
        if self.shared_gate_up is not None:
            inner = swiglu(linear(x, self.shared_gate_up, None, parity), parity)
            shared = linear(inner, self.shared_down, None, parity)
            if self.shared_gate is None:
                return y + shared, routing
            gate = linear(x, self.shared_gate, None, parity)
            total = y + shared * sigmoid(gate, parity)
            y = operators.valued(operators.add_gated(shared, gate, y), total) if parity is Parity.CORE else total
        return y, routing


@torch.no_grad()
def choose(scores: Tensor, config: ModelConfig, bias: Tensor | None) -> Tensor:
    """scores [T, E], bias [E] -> int64 [T, top_k], the best first."""
    ranked = scores if bias is None else scores + bias
    if config.top_groups < config.groups:
        by_group = ranked.unflatten(-1, (config.groups, -1))
        best = by_group.topk(2, -1).values.sum(-1).topk(config.top_groups, -1).indices
        kept = torch.zeros(by_group.shape[:-1], dtype=torch.bool).scatter_(-1, best, True)
        ranked = by_group.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
    return ranked.topk(config.top_k, -1).indices


def route(scores: Tensor, own: Tensor, config: ModelConfig, forced: Tensor | None, floor: float) -> Routing:
    """scores [T, E] of all experts, own [T, top_k] the router's own choice.

    Forced experts are weighed by the scores of this very router, so gradients reach it. Chosen ones stand in falling order of
    score, whoever chose them: records are sets, and the sum over experts is rounded in their order.
    """
    chosen, replayed, refused = own, 0, 0
    if forced is not None:
        chosen, replayed, refused = replay(scores.detach(), own, forced.long(), floor)
    chosen = _ordered(chosen, scores.detach())
    gates = scores.gather(-1, chosen)
    if config.norm_topk:
        gates = gates / gates.sum(-1, keepdim=True)
    if config.gate_scale != 1:
        gates = gates * config.gate_scale
    if config.gating is Gating.SIGMOID:  # not shares yet (2412.19437, eq. 18)
        scores = scores / scores.sum(-1, keepdim=True)
    return Routing(chosen, gates, replayed, refused, _aux_loss(scores, chosen))


def route_by_core(logits: Tensor, config: ModelConfig, forced: Tensor | None, floor: float) -> Routing:
    """route with the core's values and torch's gradients; logits [T, E] of the router."""
    choice = operators.route(logits, config.top_k, config.norm_topk, forced, floor)
    scores = operators.valued(choice.scores, logits.softmax(-1))
    gates = scores.gather(-1, choice.chosen)
    if config.norm_topk:
        gates = gates / gates.sum(-1, keepdim=True)
    gates = operators.valued(choice.gates, gates)
    return Routing(choice.chosen, gates, choice.replayed, choice.refused, _aux_loss(scores, choice.chosen))


def _aux_loss(scores: Tensor, chosen: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return scores.new_zeros(())
    experts = scores.shape[-1]
    share = torch.bincount(chosen.flatten(), minlength=experts).to(scores.dtype) / chosen.numel()
    return experts * (share @ scores.mean(0))


def replay(scores: Tensor, own: Tensor, forced: Tensor, floor: float) -> tuple[Tensor, int, int]:
    """The experts to use: recorded ones that are plausible, holes refilled from `own` in order.

    Plausible: score >= floor * lowest score of `own`. scores [T, E], own and forced [T, top_k]. Scores are those of the
    gates, without choice_bias: a ratio means something only between positive numbers.
    Returns chosen [T, top_k] and the numbers of rows that were replayed whole and that had a refusal.
    """
    recorded = forced >= 0
    lowest = scores.gather(-1, own).amin(-1, keepdim=True)
    keep = recorded & (scores.gather(-1, forced.clamp(min=0)) >= floor * lowest)
    refused = int((recorded & ~keep).any(-1).sum())
    whole = keep.all(-1)
    chosen = torch.where(whole[:, None], forced, own)
    mixed = keep.any(-1) & ~whole
    if bool(mixed.any()):
        chosen[mixed] = _refill(torch.where(keep, forced, -1)[mixed], own[mixed])
    return chosen, int(whole.sum()), refused


def _ordered(chosen: Tensor, scores: Tensor) -> Tensor:
    """In falling order of score, among equals the lower index first."""
    chosen = chosen.sort(-1).values
    return chosen.gather(-1, scores.gather(-1, chosen).sort(dim=-1, descending=True, stable=True).indices)


def _refill(chosen: Tensor, own: Tensor) -> Tensor:
    """chosen [T, top_k] with holes (-1): each hole takes the best of `own` that the row does not have yet."""
    for j in range(own.shape[1]):
        candidate = own[:, j : j + 1]
        hole = chosen < 0
        first = hole & (hole.cumsum(-1) == 1) & (chosen != candidate).all(-1, keepdim=True)
        chosen = torch.where(first, candidate, chosen)
    return chosen
