"""The experts' MLPs over tokens sorted by expert, with a hand-written backward.

Stock autograd would keep and re-read every slice; here each expert is three matrix products forward and six backward
into buffers of all experts, and the gradient of a gate comes from the inner activations instead of the outputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .parity import Parity, linear, pads


class Dispatch(NamedTuple):
    """Rows sorted by expert; one row per (token, choice) pair."""

    tokens: Tensor
    """[T * top_k]: the token of each row"""
    order: Tensor
    """[T * top_k]: the pair of each row"""
    back: Tensor
    """[T * top_k]: the row of each pair"""
    spans: list[tuple[int, int, int]]
    """(expert, first row, end) of every expert that has rows"""


def dispatch(chosen: Tensor, experts: int) -> Dispatch:
    """chosen [T, top_k]"""
    pairs = chosen.flatten()
    order = pairs.argsort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    spans, start = [], 0
    for expert, count in enumerate(torch.bincount(pairs, minlength=experts).tolist()):
        if count:
            spans.append((expert, start, start + count))
        start += count
    return Dispatch(order // chosen.shape[1], order, back, spans)


def apply_experts(x: Tensor, chosen: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor, parity: Parity) -> Tensor:
    """x [T, width], chosen and gates [T, K], gate_up [E, 2 * I, width], down [E, width, I] -> [T, width].

    Token t gets the sum over its K experts of gate * down(silu(gate half) * up half).
    """
    plan = dispatch(chosen, len(gate_up))
    if torch.is_grad_enabled():
        return _Experts.apply(x, chosen, gates, gate_up, down, plan, parity)
    return _forward(x, chosen, gates, gate_up, down, plan, parity)[0]


def _forward(
    x: Tensor, chosen: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor, plan: Dispatch, parity: Parity
) -> tuple[Tensor, ...]:
    """The result, and what the backward needs."""
    rows = x.index_select(0, plan.tokens)
    if parity is Parity.CORE:
        from .core import operators

        y, hidden, inner = operators.experts(x, chosen, gates, gate_up, down)
        return y, rows, hidden, hidden.chunk(2, -1)[0].sigmoid(), inner
    hidden = x.new_empty(len(rows), gate_up.shape[1])
    out = torch.empty_like(rows)
    for e, a, b in plan.spans:
        _product(rows[a:b], gate_up[e], hidden[a:b], parity)
    gate, up = hidden.chunk(2, -1)
    sigmoid = gate.sigmoid()
    inner = torch.mul(gate, sigmoid).mul_(up)
    for e, a, b in plan.spans:
        _product(inner[a:b], down[e], out[a:b], parity)
    back = plan.back.view(gates.shape)
    # choices are added in order of rank: the sum does not depend on the batch
    y = out.index_select(0, back[:, 0]).mul_(gates[:, :1])
    for j in range(1, back.shape[1]):
        y.addcmul_(out.index_select(0, back[:, j]), gates[:, j : j + 1])
    return y, rows, hidden, sigmoid, inner


class _Experts(Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, chosen: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor, plan: Dispatch, parity: Parity
    ) -> Tensor:
        y, *saved = _forward(x, chosen, gates, gate_up, down, plan, parity)
        ctx.save_for_backward(gates, gate_up, down, *saved)
        ctx.plan = plan
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        gates, gate_up, down, rows, hidden, sigmoid, inner = ctx.saved_tensors
        plan: Dispatch = ctx.plan
        by_out = grad.index_select(0, plan.tokens)
        by_inner = torch.empty_like(inner)
        for e, a, b in plan.spans:
            torch.mm(by_out[a:b], down[e], out=by_inner[a:b])
        # d(gate * out)/d gate = <by_out, out> = <by_out @ down, inner>
        by_gates = (by_inner * inner).sum(-1).index_select(0, plan.back).view(gates.shape)
        row_gates = gates.flatten().index_select(0, plan.order)[:, None]
        by_down = torch.zeros_like(down)
        gated = inner * row_gates
        for e, a, b in plan.spans:
            torch.mm(by_out[a:b].t(), gated[a:b], out=by_down[e])
        by_hidden = _through_swiglu(by_inner.mul_(row_gates), hidden, sigmoid)
        by_gate_up = torch.zeros_like(gate_up)
        by_rows = by_out  # its values are used up
        for e, a, b in plan.spans:
            torch.mm(by_hidden[a:b].t(), rows[a:b], out=by_gate_up[e])
            torch.mm(by_hidden[a:b], gate_up[e], out=by_rows[a:b])
        back = plan.back.view(gates.shape)
        by_x = by_rows.index_select(0, back[:, 0])
        for j in range(1, back.shape[1]):
            by_x.add_(by_rows.index_select(0, back[:, j]))
        return by_x, None, by_gates, by_gate_up, by_down, None, None


def _product(rows: Tensor, weight: Tensor, out: Tensor, parity: Parity) -> None:
    """out = rows @ weight.T"""
    if pads(rows.shape[0], parity):
        out.copy_(linear(rows, weight, None, parity))
    else:
        torch.mm(rows, weight.t(), out=out)


def swiglu(hidden: Tensor, parity: Parity = Parity.OFF) -> Tensor:
    """[T, 2 * I] -> silu(first half) * second half, [T, I]"""
    return _Swiglu.apply(hidden, parity)


class _Swiglu(Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, parity: Parity) -> Tensor:
        gate, up = hidden.chunk(2, -1)
        sigmoid = gate.sigmoid()
        ctx.save_for_backward(hidden, sigmoid)
        if parity is Parity.CORE:
            from .core import operators

            return operators.swiglu(hidden)
        return torch.mul(gate, sigmoid).mul_(up)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _through_swiglu(grad, *ctx.saved_tensors), None


def _through_swiglu(by_inner: Tensor, hidden: Tensor, sigmoid: Tensor) -> Tensor:
    """[T, I] -> [T, 2 * I]; silu'(g) = s + g * s * (1 - s) = s + silu(g) * (1 - s)"""
    gate, up = hidden.chunk(2, -1)
    by_hidden = torch.empty_like(hidden)
    by_gate, by_up = by_hidden.chunk(2, -1)
    silu = gate * sigmoid
    torch.mul(by_inner, silu, out=by_up)
    slope = silu.addcmul_(silu, sigmoid, value=-1).add_(sigmoid)
    torch.mul(by_inner, up, out=by_gate)
    by_gate.mul_(slope)
    return by_hidden
