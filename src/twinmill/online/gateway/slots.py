"""Groups of sessions -> slots of the episodes log, in its order: Admit, Attempts, Close, each durable before the next.

The gateway is one more cluster: a group's first session takes the next free slot, a session's end is an Attempt in the
gateway's lane, and when all of a group's attempts have a reward its slot is closed and the trainer may take it. An attempt
that ends without one leaves its place to another session. What an earlier process of this name left open is dropped at the
start, since its sessions died with it.

Not covered: a run's window. A gateway admits when a harness comes, not when a version is fresh enough; how old its tokens are
is recorded, and the trainer's age limit masks what is too old.
"""

import asyncio
import time
from dataclasses import dataclass, field

from twinmill.data.curriculum import attempt_seed
from twinmill.records.episodes import Admit, Attempt, Close, DropReason, Episode, LogPos, Verdict
from twinmill.records.runs import Beat
from twinmill.store.ledger import EpisodesLog, finished

from .refusals import Conflict


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which attempt a session is."""

    group: str
    slot: int
    attempt: int
    tries: int
    """sessions at this very attempt that ended without a reward"""
    seed: int


@dataclass
class _Group:
    slot: int
    task_id: str
    size: int
    playing: set[int] = field(default_factory=set)
    landed: dict[int, LogPos] = field(default_factory=dict)
    """attempt -> where it lies, with its reward"""
    tries: dict[int, int] = field(default_factory=dict)
    touched: float = field(default_factory=time.monotonic)


class Slots:
    """The gateway's half of the ledger. Every method may raise StoreError, and may then be called again. None may be cancelled:
    who writes next must know the lane's end."""

    def __init__(self, log: EpisodesLog, *, cluster: str, seed: int) -> None:
        self._log, self._cluster, self._seed = log, cluster, seed
        self._groups: dict[str, _Group] = {}
        self._turn = asyncio.Lock()  # one writer: the lane, and the choice of a slot
        self._hint = 0
        self._unsure: Admit | None = None
        """the last Admit, where the store failed in it"""

    async def rival(self, watch_s: float) -> bool:
        """Whether another process of this name is at work: whether the signs of life change that it left. One that ended in order
        left none, and is not watched for."""
        left = await self._pulse()
        if left is None:
            return False
        deadline = time.monotonic() + watch_s
        while time.monotonic() < deadline:
            await asyncio.sleep(watch_s / 20)
            if await self._pulse() != left:
                return True
        return False

    async def _pulse(self) -> float | None:
        beat = (await asyncio.to_thread(self._log.beats)).get(self._cluster)
        return None if beat is None else beat.at

    async def beat(self, serving: int) -> None:
        """A sign of life."""
        async with self._turn:
            slots = tuple(sorted(group.slot for group in self._groups.values()))
            beat = Beat(cluster=self._cluster, at=time.time(), serving=serving, open_slots=slots)
            await asyncio.to_thread(self._log.put_beat, beat)

    async def end(self) -> None:
        """No sign of life will follow."""
        async with self._turn:
            await asyncio.to_thread(self._log.drop_beat, self._cluster)

    async def start(self) -> int:
        """Close what an earlier process left open; how many slots that were."""
        async with self._turn:
            left = [admit for admit in await asyncio.to_thread(self._log.open_slots) if admit.cluster == self._cluster]
            for admit in left:
                await self._close(admit.slot, admit.task_id, (), DropReason.INFRASTRUCTURE, 0)
        return len(left)

    async def open(self, task_id: str, name: str, size: int, version: int) -> Place:
        """A place for one more session of group `name`."""
        async with self._turn:
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = _Group(await self._admit(task_id, version), task_id, size)
            if (group.task_id, group.size) != (task_id, size):
                raise Conflict(
                    f"group {name!r} is {group.size} attempts at {group.task_id!r}; give the same task and attempts, or "
                    "another group"
                )
            free = [k for k in range(size) if k not in group.playing and k not in group.landed]
            if not free:
                raise Conflict(f"group {name!r} has its {size} attempts; wait for one that ends without a reward")
            attempt = free[0]
            group.playing.add(attempt)
            group.touched = time.monotonic()
            return Place(
                group=name, slot=group.slot, attempt=attempt, tries=group.tries.get(attempt, 0),
                seed=attempt_seed(self._seed, group.slot, attempt),
            )  # fmt: skip

    async def land(self, place: Place, episode: Episode, verdict: Verdict) -> LogPos:
        """Log a session's end. The group is over with its last reward."""
        async with self._turn:
            group = self._groups[place.group]
            group.touched = time.monotonic()
            pos = group.landed.get(place.attempt)
            if pos is None:  # else the Close failed after the Attempt was written
                entry = Attempt(slot=place.slot, attempt=place.attempt, episode=episode, verdict=verdict)
                pos = await asyncio.to_thread(self._log.append, self._cluster, entry)
                if finished(entry):
                    group.landed[place.attempt] = pos
                else:
                    group.tries[place.attempt] = place.tries + 1
            if len(group.landed) == group.size:
                entries = tuple(group.landed[k] for k in range(group.size))
                await self._close(group.slot, group.task_id, entries, None, sum(group.tries.values()))
                del self._groups[place.group]
            group.playing.discard(place.attempt)
            return pos

    async def drop_idle(self, idle_s: float, reason: DropReason) -> None:
        """Close the slots of groups that nobody plays in and nobody came to for so long."""
        async with self._turn:
            await self._settle()
            for name, group in list(self._groups.items()):
                if not group.playing and time.monotonic() - group.touched >= idle_s:
                    await self._close(group.slot, group.task_id, (), reason, sum(group.tries.values()))
                    del self._groups[name]

    def closed(self, place: Place) -> bool:
        return place.group not in self._groups

    async def _settle(self) -> None:
        """An Admit that ended in an error may stand all the same, and a trainer would wait for its slot for ever."""
        if self._unsure is None:
            return
        if await asyncio.to_thread(self._log.admit, self._unsure):
            await self._close(self._unsure.slot, self._unsure.task_id, (), DropReason.INFRASTRUCTURE, 0)
        self._unsure = None

    async def _admit(self, task_id: str, version: int) -> int:
        await self._settle()
        while True:
            slot = self._hint = await asyncio.to_thread(self._log.next_free_slot, self._hint)
            admit = Admit(
                slot=slot, task_id=task_id, seed=attempt_seed(self._seed, slot, 0), cluster=self._cluster,
                version=version, admitted_at=time.time(),
            )  # fmt: skip
            self._unsure = admit
            mine = await asyncio.to_thread(self._log.admit, admit)
            self._unsure = None
            if mine:
                return slot

    async def _close(
        self, slot: int, task_id: str, entries: tuple[LogPos, ...], drop: DropReason | None, lost: int
    ) -> None:
        close = Close(slot=slot, task_id=task_id, entries_G=entries, drop=drop, lost=lost, closed_at=time.time())
        await asyncio.to_thread(self._log.close, close)
