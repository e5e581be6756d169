"""SFT: transcripts (data/chats.py), the tokens that an assistant sampled carrying loss."""

from collections.abc import Sequence

import numpy as np

from twinmill.batch.pack import Packing, pack
from twinmill.records.chats import Chat
from twinmill.records.samples import Microbatch, Sample

from .corpus import plain_sample
from .order import drawn


class ChatSource:
    """A step reads `chats_per_step` chats; the loss is a mean over their sampled tokens."""

    name = "chats"

    def __init__(self, chats: Sequence[Chat], chats_per_step: int, seed: int, packing: Packing) -> None:
        self.chats, self.chats_per_step, self.seed, self.packing = chats, chats_per_step, seed, packing

    def batch(self, step: int) -> list[Microbatch]:
        drawn_chats = [self.chats[i] for i in drawn(len(self.chats), self.chats_per_step, step, self.seed)]
        return chat_microbatches(drawn_chats, self.packing)


def chat_microbatches(chats: Sequence[Chat], packing: Packing) -> list[Microbatch]:
    samples = [_sample(chat) for chat in chats]
    tokens = sum(int(s.mask.sum()) for s in samples)
    return pack(samples, packing, float(max(tokens, 1)), drop_idle=False).microbatches


def _sample(chat: Chat) -> Sample:
    mask = np.zeros(len(chat.token_ids), np.bool_)
    for start, count in chat.sampled:
        mask[start : start + count] = True
    return plain_sample(chat.id, np.array(chat.token_ids, np.int64), mask)
