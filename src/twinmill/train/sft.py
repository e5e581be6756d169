"""SFT: a model learns from transcripts that an expert played in the real harness.

consumes      chats (data/chats.py): token ids and which of them an assistant said
produces      weights
waits for     nothing
"""

from collections.abc import Sequence

from msgspec import Struct

from twinmill.batch.pack import Packing
from twinmill.model.transformer import Decoder
from twinmill.records.chats import Chat

from .checkpoint import Checkpoints
from .loss.cross_entropy import cross_entropy
from .optimizer import AdamW
from .sources.chats import ChatSource
from .step import Compute
from .supervised import Emit, teach
from .trainer import Trainer


class Sft(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    steps: int = 50
    """optimizer steps; 0 = SFT is skipped"""
    chats_per_step: int = 16
    """transcripts that one step reads"""
    optimizer: AdamW = AdamW(lr=3e-4, warmup=5)
    """learning rate and schedule"""
    compute: Compute = Compute()
    """load-balance loss"""
    packing: Packing = Packing(tokens=4096)
    """tokens of one microbatch"""
    checkpoint_every: int = 0
    """steps between checkpoints; 0 = only after the last step"""
    seed: int = 0
    """of the order in which chats are read"""


def sft(
    config: Sft, decoder: Decoder, chats: Sequence[Chat], emit: Emit, checkpoints: Checkpoints | None = None
) -> None:
    """Train `decoder` in place on `chats`."""
    source = ChatSource(chats, config.chats_per_step, config.seed, config.packing)
    trainer = Trainer(decoder, cross_entropy, config.optimizer, config.compute)
    teach(trainer, source, config.steps, emit, checkpoints, config.checkpoint_every)
