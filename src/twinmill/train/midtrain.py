"""Mid-training: a base model reads code.

consumes      rows of a packed corpus (data/corpus.py)
produces      weights; held-out loss per token before and after
waits for     nothing
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from twinmill.batch.pack import Packing
from twinmill.model.transformer import Decoder

from .checkpoint import Checkpoints
from .loss.cross_entropy import cross_entropy
from .optimizer import AdamW
from .sources.corpus import CorpusSource, row_microbatches
from .step import Compute
from .supervised import Emit, mean_loss, teach
from .trainer import Trainer


class Midtrain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    steps: int = 100
    """optimizer steps; 0 = mid-training is skipped"""
    rows_per_step: int = 16
    """corpus rows that one step reads"""
    heldout_rows: int = 32
    """held-out rows that the loss before and after is measured on; 0 = not measured"""
    optimizer: AdamW = AdamW(lr=1e-3, warmup=10)
    """learning rate and schedule"""
    compute: Compute = Compute()
    """load-balance loss"""
    packing: Packing = Packing(tokens=4096)
    """tokens of one microbatch"""
    checkpoint_every: int = 0
    """steps between checkpoints; 0 = only after the last step"""
    seed: int = 0
    """of the order in which rows are read"""


class HeldOut(NamedTuple):
    """Nats per token; nan = not measured."""

    before: float
    after: float


def midtrain(
    config: Midtrain,
    decoder: Decoder,
    rows: npt.NDArray[np.int64],
    heldout: npt.NDArray[np.int64],
    emit: Emit,
    checkpoints: Checkpoints | None = None,
) -> HeldOut:
    """Train `decoder` in place on `rows` [N, T]. `before` is measured on the weights as given, also when resuming."""
    source = CorpusSource(rows, config.rows_per_step, config.seed, config.packing)
    unseen = row_microbatches(heldout[: config.heldout_rows], config.packing) if config.heldout_rows else []
    before = mean_loss(decoder, unseen) if unseen else float("nan")
    trainer = Trainer(decoder, cross_entropy, config.optimizer, config.compute)
    teach(trainer, source, config.steps, emit, checkpoints, config.checkpoint_every)
    return HeldOut(before, mean_loss(decoder, unseen) if unseen else float("nan"))
