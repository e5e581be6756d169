"""The loop of mid-training and SFT: sources of tokens that are already there.

consumes      source.batch(step), a pure function of the step
produces      weights, checkpoints, a StepReport per step
waits for     nothing
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
import torch

from twinmill.model.transformer import Decoder
from twinmill.records.samples import Microbatch, StepReport

from .checkpoint import Checkpoints
from .step import inputs_of, logprobs_at
from .trainer import Trainer

Emit = Callable[[StepReport], None]


class Source(Protocol):
    name: str

    def batch(self, step: int) -> list[Microbatch]: ...


def teach(
    trainer: Trainer,
    source: Source,
    steps: int,
    emit: Emit,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: int = 0,
) -> None:
    """Run steps [resumed, steps). `checkpoint_every` 0 = only after the last step; checkpoints None = none at all."""
    start = _resumed(trainer, checkpoints)
    for step in range(start, steps):
        began = time.perf_counter()
        microbatches = source.batch(step)
        read = time.perf_counter() - began
        report = trainer.run(microbatches, step=step, version=step, source=source.name)
        done = step + 1
        if checkpoints is not None and (done == steps or (checkpoint_every and done % checkpoint_every == 0)):
            checkpoints.save(done, trainer.take())
            checkpoints.prune(1, ())
        emit(msgspec.structs.replace(report, seconds={"read": read, **report.seconds}))


def _resumed(trainer: Trainer, checkpoints: Checkpoints | None) -> int:
    """Put the newest checkpoint back; the steps it has behind it. 0 = there is none."""
    if checkpoints is None or not (keys := checkpoints.keys()):
        return 0
    state = checkpoints.load(keys[-1])
    trainer.put_back(state.tensors)
    return state.step


@torch.inference_mode()
def mean_loss(decoder: Decoder, microbatches: Sequence[Microbatch]) -> float:
    """Cross entropy in nats per token under the mask."""
    total, tokens = 0.0, 0
    for microbatch in microbatches:
        rows = torch.from_numpy(np.flatnonzero(microbatch.mask))
        hidden = decoder(**inputs_of(microbatch)).hidden
        total -= float(logprobs_at(decoder, hidden, microbatch, rows, 1.0).double().sum())
        tokens += len(rows)
    return total / max(tokens, 1)
