"""The first mill: keeps groups in flight, for ever, inside the freshness window.

    loop        consumes                 produces                 waits for                    unblocked by
    admit       free slot numbers        Admit (put-if-absent)    a version fresh enough       the engine's subscriber
    attempt     Admit, task, machine     Attempt in the lane      the engine, the machine      their deadlines
    close       group_size Attempts      Close (put-if-absent)    all attempts of the slot     the attempts
    beat        -                        Beat, lost slots closed  the clock                    -

Killed at any moment, it resumes from the log alone: its own open slots are continued and finished attempts are not run
again. Machines and samples in flight are all that is lost.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from twinmill.data.curriculum import attempt_seed
from twinmill.data.tasks.base import TaskSet
from twinmill.engine.base import Engine, EngineError
from twinmill.records.base import Record
from twinmill.records.episodes import (
    FLAGGED,
    Admit,
    Attempt,
    Close,
    DropReason,
    Episode,
    Finding,
    LogPos,
    Verdict,
)
from twinmill.records.runs import Beat
from twinmill.records.tasks import Task
from twinmill.store.ledger import EpisodesLog, finished


class RolloutConfig(Record):
    """How one cluster's rollout process works."""

    groups_in_flight: int = 4
    """groups that one cluster plays at once"""
    group_size: int = 8
    """attempts that are compared with one another"""
    machines: int = 16
    """attempts that one cluster plays at once, each in a machine of its own"""
    losses: int = 3
    """times one attempt may be lost to infrastructure before its slot is closed with that reason"""
    beat_s: float = 2.0
    """seconds between signs of life"""
    lost_s: float = 60.0
    """seconds without a beat after which anyone may close a cluster's open slots; 0 = never"""
    poll_s: float = 0.1
    """seconds between looks at the log and the engine while waiting for a fresher version"""


class Play(Protocol):
    """Plays and grades one attempt. Made by the composition root from env.harness and env.reward."""

    async def __call__(
        self, task: Task, *, episode_id: str, group_id: str, attempt: int, seed: int
    ) -> tuple[Episode, Verdict]: ...


Audit = Callable[[Task, Episode, Verdict], tuple[Verdict, tuple[Finding, ...]]]
"""what an attempt is held against before it is logged: the verdict as it leaves it, and what it found (env.audit)"""


def no_audit(task: Task, episode: Episode, verdict: Verdict) -> tuple[Verdict, tuple[Finding, ...]]:
    return verdict, ()


Note = Callable[..., None]
"""metrics: note(kind, **fields)"""


class Mill:
    def __init__(
        self,
        *,
        cluster: str,
        log: EpisodesLog,
        engine: Engine,
        taskset: TaskSet,
        task_of: Callable[[int], str],
        may_start: Callable[[int, int], bool],
        play: Play,
        config: RolloutConfig,
        seed: int,
        slots: int,
        note: Note = lambda kind, **fields: None,
        audit: Audit = no_audit,
    ) -> None:
        """`task_of(slot)` and `may_start(slot, serving)` are pure; `slots` is the number of slots of the whole run."""
        self.cluster, self.log, self.engine, self.taskset = cluster, log, engine, taskset
        self.task_of, self.may_start, self.play, self.config = task_of, may_start, play, config
        self.seed, self.slots, self.note, self.audit = seed, slots, note, audit
        self._lane = asyncio.Lock()  # one writer: the lane and what reads its end take turns
        self._room = asyncio.Semaphore(config.machines)
        self._open: set[int] = set()
        self._serving = -1
        self._hint = 0
        self._pulses: dict[str, tuple[float, float]] = {}
        self._looked = 0.0

    async def run(self) -> None:
        """Until every slot of the run is admitted and all of ours are closed."""
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(self._beat())
            await self._admit()
            beat.cancel()

    async def _admit(self) -> None:
        playing: set[asyncio.Task[None]] = set()
        for admit in await asyncio.to_thread(self.log.open_slots):
            if admit.cluster == self.cluster:
                playing.add(asyncio.create_task(self._slot(admit)))
        more = True
        while more or playing:
            while more and len(playing) < self.config.groups_in_flight:
                admit = await self._claim()
                if admit is None:
                    more = False
                else:
                    playing.add(asyncio.create_task(self._slot(admit)))
            done, playing = (
                await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED) if playing else (set(), set())
            )
            for task in done:
                task.result()

    async def _claim(self) -> Admit | None:
        """The next slot that is free and may start; None = no slots are left in this run."""
        while True:
            self._hint = slot = await asyncio.to_thread(self.log.next_free_slot, self._hint)
            if slot >= self.slots:
                return None
            await self._fresh_enough(slot)
            admit = Admit(
                slot=slot, task_id=self.task_of(slot), seed=attempt_seed(self.seed, slot, 0), cluster=self.cluster,
                version=self._serving, admitted_at=time.time(),
            )  # fmt: skip
            async with self._lane:
                ours = await asyncio.to_thread(self.log.admit, admit)
            if ours:
                self.note("slot", slot=slot, cluster=self.cluster, event="admit", version=self._serving)
                return admit

    async def _fresh_enough(self, slot: int) -> None:
        """Wait until our engine serves a version that `slot` may start on. The trainer publishes it; a trainer that is
        gone is the supervisor's business, so this wait has no deadline of its own."""
        while True:
            try:
                self._serving = (await self.engine.state()).serving
            except EngineError:
                self._serving = -1
            if self.may_start(slot, self._serving):
                return
            await asyncio.sleep(self.config.poll_s)

    async def _slot(self, admit: Admit) -> None:
        self._open.add(admit.slot)
        task = self.taskset.load(admit.task_id)
        done = await asyncio.to_thread(self.log.attempts_of, self.cluster, [admit.slot])
        size = self.config.group_size
        known = {attempt: pos for (_, attempt), (pos, _) in done.items()}
        missing = [k for k in range(size) if k not in known]
        results = await asyncio.gather(*(self._attempt(admit, task, k) for k in missing))
        lost = sum(count for _, count in results)
        known |= {k: pos for k, (pos, _) in zip(missing, results) if pos is not None}
        whole = len(known) == size
        close = Close(
            slot=admit.slot, task_id=task.id, entries_G=tuple(known[k] for k in sorted(known)) if whole else (),
            drop=None if whole else DropReason.INFRASTRUCTURE, lost=lost, closed_at=time.time(),
        )  # fmt: skip
        await asyncio.to_thread(self.log.close, close)
        self._open.discard(admit.slot)
        self.note(
            "slot",
            slot=admit.slot,
            cluster=self.cluster,
            event="close" if whole else "drop",
            version=self._serving,
        )

    async def _attempt(self, admit: Admit, task: Task, k: int) -> tuple[LogPos | None, int]:
        """(where the finished attempt lies, times it was lost); None = lost too often."""
        for lost in range(self.config.losses):
            async with self._room:
                await self._fresh_enough(admit.slot)
                started = time.time()
                episode, verdict = await self.play(
                    task, episode_id=f"{admit.slot}-{k}-{lost}", group_id=str(admit.slot), attempt=k,
                    seed=attempt_seed(self.seed, admit.slot, k),
                )  # fmt: skip
                verdict, findings = self.audit(task, episode, verdict)
            entry = Attempt(slot=admit.slot, attempt=k, episode=episode, verdict=verdict, findings=findings)
            async with self._lane:
                pos = await asyncio.to_thread(self.log.append, self.cluster, entry)
            self.note(
                "attempt", cluster=self.cluster, slot=admit.slot, attempt=k, start=started, end=time.time(),
                reward=verdict.reward, stop=episode.stop.value, turns=episode.usage.turns, sampled=episode.usage.sampled_tokens,
                engine_s=episode.usage.engine_s, machine_s=episode.usage.machine_s, finished=finished(entry),
                failure=_failure(entry), hacks=[finding.rule for finding in findings if finding.severity >= FLAGGED],
            )  # fmt: skip
            if finished(entry):
                return pos, lost
        return None, self.config.losses

    async def _beat(self) -> None:
        while True:
            beat = Beat(
                cluster=self.cluster,
                at=time.time(),
                serving=self._serving,
                open_slots=tuple(sorted(self._open)),
            )
            await asyncio.to_thread(self.log.put_beat, beat)
            if self.config.lost_s:
                await asyncio.to_thread(self._close_lost)
            await asyncio.sleep(self.config.beat_s)

    def _silent(self) -> set[str]:
        """Clusters whose beat has not changed for lost_s while this process watched, by its own clock. So a run that was
        stopped over night makes nobody lost when it is resumed, and neither does a clock that is wrong elsewhere."""
        now = time.monotonic()
        if now - self._looked > max(self.config.lost_s / 2, 2 * self.config.beat_s):
            self._pulses.clear()  # we stood still ourselves, and perhaps everybody did
        self._looked = now
        for cluster, beat in self.log.beats().items():
            if cluster not in self._pulses or self._pulses[cluster][0] != beat.at:
                self._pulses[cluster] = beat.at, now
        silent = {cluster for cluster, (_, since) in self._pulses.items() if now - since > self.config.lost_s}
        return silent - {self.cluster}

    def _close_lost(self) -> None:
        """Close what a cluster without a beat has left open; its tasks come again in later slots."""
        dead = self._silent()
        if not dead:
            return
        for admit in self.log.open_slots():
            if admit.cluster in dead:
                close = Close(
                    slot=admit.slot,
                    task_id=admit.task_id,
                    entries_G=(),
                    drop=DropReason.CLUSTER_LOST,
                    closed_at=time.time(),
                )
                if self.log.close(close):
                    self.note(
                        "event",
                        level="warning",
                        what="cluster lost",
                        text=f"{admit.cluster}: slot {admit.slot} closed",
                    )


def _failure(entry: Attempt) -> str | None:
    failure = entry.episode.error or entry.verdict.error
    return f"{failure.boundary.value}: {failure.type}: {failure.message}" if failure else None
