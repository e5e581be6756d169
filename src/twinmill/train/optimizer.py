"""AdamW over fp32 masters, for a model whose weights hold bf16 values.

The model computes with what engines serve: its parameters are fp32 tensors, but every value in them is one that
the stored dtype (bf16 by default) can hold. The optimizer keeps the exact fp32 masters, moves those, and writes
them rounded into the model. Masters, moments and gradients each lie in one flat buffer per decay group, so that an
update is one pass over memory instead of a call per tensor; parameters keep their own, aligned storage.

Not covered: sharding (FSDP2), other optimizers.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.optim.adamw import adamw


def _constant(progress: float, floor: float) -> float:
    return 1.0


def _cosine(progress: float, floor: float) -> float:
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


SCHEDULES: Mapping[str, Callable[[float, float], float]] = {"constant": _constant, "cosine": _cosine}


class AdamW(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lr: float = 1e-4
    """peak learning rate; 0 = weights never change"""
    warmup: int = 0
    """steps of linear rise to lr; 0 = none"""
    schedule: str = "constant"
    """what follows the warm-up: constant or cosine"""
    horizon: int = 0
    """step at which cosine reaches lr * floor; needed for cosine, 0 otherwise"""
    floor: float = 0.1
    """share of lr at which cosine ends"""
    betas: tuple[float, float] = (0.9, 0.95)
    """decay of the first and second moment per step"""
    eps: float = 1e-8
    """added to the root of the second moment"""
    weight_decay: float = 0.0
    """per unit of lr, on matrices alone; 0 = none"""
    clip: float = 1.0
    """largest norm of the whole gradient; 0 = not clipped"""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}; choose one of {', '.join(SCHEDULES)}")
        if self.schedule == "cosine" and self.horizon <= self.warmup:
            raise ValueError(f"horizon is {self.horizon}; cosine needs one beyond warmup ({self.warmup})")
        if min(self.lr, self.warmup, self.weight_decay, self.clip) < 0:
            raise ValueError("lr, warmup, weight_decay and clip must be at least 0")


def lr_at(config: AdamW, step: int) -> float:
    """Learning rate of step `step` (from 0). Example: lr 1, warmup 4: steps 0, 1, 2, 3 have .25, .5, .75, 1."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(config.horizon - config.warmup, 1)
    return config.lr * SCHEDULES[config.schedule](progress, config.floor)


class Applied(NamedTuple):
    grad_norm: float
    """before clipping"""
    lr: float


class NotFinite(ArithmeticError):
    """The gradient is not finite; nothing was changed."""


class Optimizer:
    """Owns the masters, the moments and the model's gradients. `stored` = dtype of each parameter on disk."""

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], config: AdamW, stored: Mapping[str, torch.dtype] = {}
    ) -> None:
        self.config = config
        named = list(parameters)
        self.parameters = [p for _, p in named]
        matrices = [(name, p) for name, p in named if p.dim() > 1]
        vectors = [(name, p) for name, p in named if p.dim() <= 1]
        groups = ((matrices, config.weight_decay), (vectors, 0.0))
        self._flats = [_Flat(group, stored, decay) for group, decay in groups if group]

    def zero(self) -> None:
        for flat in self._flats:
            flat.grad.zero_()

    def add(self, gradients: Iterable[Tensor | None]) -> None:
        """Add to the gradient. One for each of `parameters`; None = nothing."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad += gradient

    def step(self, step: int) -> Applied:
        """Clip, update the masters, write the rounded weights. Raises NotFinite before anything is changed."""
        for flat in self._flats:
            flat.check()
        norms = [torch.linalg.vector_norm(flat.grad) for flat in self._flats]
        norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        if not math.isfinite(norm):
            raise NotFinite(f"step {step}: the gradient's norm is {norm}")
        lr = lr_at(self.config, step)
        for flat in self._flats:
            if 0 < self.config.clip < norm:
                flat.grad.mul_(self.config.clip / norm)
            flat.update(self.config, lr)
            flat.write_rounded()
        return Applied(norm, lr)

    def state(self) -> dict[str, Tensor]:
        """Names master/<parameter>, exp_avg/..., exp_avg_sq/... and updates; shares memory with the optimizer."""
        out: dict[str, Tensor] = {}
        for flat in self._flats:
            out["updates"] = flat.updates
            for kind in ("master", "exp_avg", "exp_avg_sq"):
                out |= {f"{kind}/{name}": view for name, view in flat.views(getattr(flat, kind)).items()}
        return out

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `state` over and write the rounded weights into the model. ValueError when it is of another model."""
        own = self.state()
        wrong = sorted(
            name
            for name in own.keys() | state.keys()
            if name not in own or name not in state or own[name].shape != state[name].shape
        )
        if wrong:
            raise ValueError(f"optimizer state of another model: {len(wrong)} tensors differ, the first is {wrong[0]}")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        for flat in self._flats:
            flat.updates.copy_(state["updates"])
            flat.write_rounded()


class _Flat:
    """Several parameters as one: flat master, gradient and moments. The parameters' gradients are views of `grad`."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], stored: Mapping[str, torch.dtype], decay: float) -> None:
        self.named, self.decay = named, decay
        self.dtypes = [stored.get(name, torch.bfloat16) for name, _ in named]
        self.master = torch.cat([p.detach().flatten() for _, p in named])
        self.grad, self.exp_avg, self.exp_avg_sq = (torch.zeros_like(self.master) for _ in range(3))
        self.updates = torch.zeros(())
        self._grads = self.views(self.grad)
        for name, p in named:
            p.grad = self._grads[name]

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        parts = buffer.split([p.numel() for _, p in self.named])
        return {name: part.view(p.shape) for (name, p), part in zip(self.named, parts, strict=True)}

    def check(self) -> None:
        for name, p in self.named:
            if p.grad is not self._grads[name]:
                raise RuntimeError(
                    f"{name}.grad was replaced; the optimizer owns it: call Optimizer.zero, not zero_grad"
                )

    def update(self, config: AdamW, lr: float) -> None:
        """torch's own AdamW kernel; its function, because its class imports a compiler for seconds."""
        adamw(
            [self.master],
            [self.grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.updates],
            fused=True,
            foreach=False,
            capturable=False,
            differentiable=False,
            amsgrad=False,
            maximize=False,
            beta1=config.betas[0],
            beta2=config.betas[1],
            lr=lr,
            weight_decay=self.decay,
            eps=config.eps,
        )

    @torch.no_grad()
    def write_rounded(self) -> None:
        views = self.views(self.master)
        for (name, p), dtype in zip(self.named, self.dtypes, strict=True):
            p.copy_(views[name].to(dtype))
