"""Trainer: a decoder, its optimizer and the one step, with what checkpoints and publishing need of them."""

from collections.abc import Sequence

import numpy.typing as npt
import torch
from torch import Tensor

from twinmill.model import hf
from twinmill.model.transformer import Decoder
from twinmill.publish.tiles import tiled_digest
from twinmill.records.samples import Microbatch, StepReport
from twinmill.records.weights import GridSpec

from .checkpoint import put_back, take
from .loss.base import Loss
from .optimizer import AdamW, Optimizer
from .step import Compute, TrainStep

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class Trainer:
    def __init__(self, decoder: Decoder, loss: Loss, optimizer: AdamW, compute: Compute) -> None:
        self.decoder = decoder
        self.dtypes = hf.dtypes(decoder)
        self._optimizer = Optimizer(decoder.named_parameters(), optimizer, stored_dtypes(decoder))
        self._step = TrainStep(decoder, self._optimizer, loss, compute)

    def run(self, microbatches: Sequence[Microbatch], *, step: int, version: int, source: str) -> StepReport:
        return self._step.run(microbatches, step=step, version=version, source=source)

    def bits(self) -> dict[str, npt.NDArray]:
        """Stored bits of every tensor under its on-disk name: what is published and what engines serve."""
        return hf.state_bits(self.decoder)

    def digest(self, grid: GridSpec | None = None) -> str:
        """The digest that a manifest of these weights, cut so, carries as model_digest; None = cut as by default."""
        return tiled_digest(self.bits(), self.dtypes, grid or GridSpec())

    def take(self) -> dict[str, Tensor]:
        return take(self._optimizer)

    def put_back(self, tensors: dict[str, Tensor]) -> None:
        put_back(self._optimizer, tensors)


def stored_dtypes(decoder: Decoder) -> dict[str, torch.dtype]:
    """Parameter name -> dtype of its values on disk (buffers are not trained). ValueError when the parts of a fused
    parameter disagree."""
    names = {p.untyped_storage().data_ptr(): name for name, p in decoder.named_parameters()}
    kinds = hf.dtypes(decoder)
    found: dict[str, torch.dtype] = {}
    for tensor, view in hf.named_views(decoder).items():
        name = names.get(view.untyped_storage().data_ptr())
        if name is None:
            continue
        dtype = _DTYPES[kinds[tensor]]
        if found.setdefault(name, dtype) is not dtype:
            raise ValueError(f"{tensor} is stored as {dtype}, other parts of the fused {name} as {found[name]}")
    return found
