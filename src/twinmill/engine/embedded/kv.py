"""KvCache: what is known of up to `slots` contexts, token by token.

For the torch backend, slots [0, n) that decode stand together, so that a decode step works on a view of the cache
instead of a copy; the scheduler sees to it by exchanging slots. A slot that is not in use keeps its content until
someone needs the room: a later turn of its session, or another attempt of its group, finds its prefix there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from twinmill.model.config import ModelConfig
from twinmill.model.segments import padded

Ids = npt.NDArray[np.int64]


@dataclass
class Slot:
    """Whose context a slot holds, and how much of it: `length` positions have KV, ids, experts and a version."""

    session: str = ""
    group: str = ""
    length: int = 0
    used: int = 0
    """tick of its last use"""
    busy: bool = False


def common_prefix(a: Ids, b: Ids) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


class KvCache:
    def __init__(self, config: ModelConfig, slots: int, context: int, dim: int | None = None) -> None:
        """context: positions per slot, a multiple of segments.KEY_PAD; dim: numbers per position, None = head_dim."""
        self.kv = torch.zeros(config.layers, 2, slots, config.kv_heads, context, dim or config.head_dim)
        """[layers, k or v, slots, kv_heads, context, dim]; what lies beyond a slot's length is finite. A backend may lay
        out the numbers of KEY_PAD positions as it likes: they are only ever moved together."""
        self.ids = np.zeros((slots, context), np.int64)
        self.experts = np.zeros((slots, context, len(config.moe_layers), config.top_k), np.uint16)
        self.versions = np.full((slots, context), -1, np.int64)
        """weights that computed a position's KV"""
        self.slots = [Slot() for _ in range(slots)]
        self._tick = 0

    def known(self, session: str, group: str, ids: Ids) -> int:
        """How many of the first tokens of `ids` need no forward, were they taken now."""
        return max((length for _, length in self._matches(session, group, ids)), default=0)

    def take(self, session: str, group: str, ids: Ids) -> tuple[int, int] | None:
        """A slot for a context that begins with `ids`, filled as far as anything known reaches.

        Returns (slot, tokens known), at most len(ids) - 1: the last one is needed for its logits. None = all are busy.
        """
        index = self._own(session)
        if index is None:
            index = self._victim()
        if index is None:
            return None
        donor, length = max(self._matches(session, group, ids), key=lambda m: (m[1], m[0] == index), default=(index, 0))
        length = min(length, len(ids) - 1)
        if donor != index:
            self._copy(donor, index, length)
        self._tick += 1
        self.slots[index] = Slot(session, group, length, self._tick, busy=True)
        return index, length

    def release(self, index: int, keep: bool) -> None:
        """keep False: the session is over; its content serves its group until the room is needed."""
        self._tick += 1
        slot = self.slots[index]
        slot.busy, slot.used = False, self._tick
        if not keep:
            slot.session = ""

    def exchange(self, i: int, j: int) -> None:
        """Swap two slots, whatever they hold."""
        if i == j:
            return
        length = max(self.slots[i].length, self.slots[j].length)
        both, swapped, moved = [i, j], [j, i], padded(length)
        self.kv[:, :, both, :, :moved] = self.kv[:, :, swapped, :, :moved]
        for array in (self.ids, self.experts, self.versions):
            array[both, :length] = array[swapped, :length]
        self.slots[i], self.slots[j] = self.slots[j], self.slots[i]

    def wipe(self, index: int) -> None:
        """Forget a slot's content, down to its bits: NaN would reach others through a weight of zero."""
        self.kv[:, :, index] = 0.0
        self.slots[index].length = 0

    def older_than(self, version: int) -> int:
        """Positions whose KV older weights computed."""
        return sum(int((self.versions[i, : s.length] < version).sum()) for i, s in enumerate(self.slots))

    def _matches(self, session: str, group: str, ids: Ids) -> Iterator[tuple[int, int]]:
        for index, slot in enumerate(self.slots):
            mine = session and slot.session == session and not slot.busy
            same = mine or (group and slot.group == group)
            if same and slot.length:
                yield index, common_prefix(self.ids[index, : slot.length], ids)

    def _own(self, session: str) -> int | None:
        for index, slot in enumerate(self.slots):
            if session and slot.session == session and not slot.busy:
                return index
        return None

    def _victim(self) -> int | None:
        """An empty slot, else the idle one of an ended session, else that of the session that was idle longest."""
        idle = [i for i, slot in enumerate(self.slots) if not slot.busy]
        return min(
            idle,
            key=lambda i: (self.slots[i].length > 0, self.slots[i].session != "", self.slots[i].used),
            default=None,
        )

    def _copy(self, donor: int, index: int, length: int) -> None:
        moved = padded(length)
        self.kv[:, :, index, :, :moved] = self.kv[:, :, donor, :, :moved]
        for array in (self.ids, self.experts, self.versions):
            array[index, :length] = array[donor, :length]
