"""The first mill: losses are run again with the same seed, never graded; lost clusters are cleaned up after."""

import asyncio
import time
from collections import Counter

import pytest

from tests.cases.crash_world import FollowingEngine, ToyTasks
from tests.train.toys import toy_attempt
from twinmill.batch.window import may_start
from twinmill.records.episodes import Admit, Boundary, DropReason, Failure, Verdict
from twinmill.records.runs import Beat
from twinmill.rollout.mill import Mill, RolloutConfig
from twinmill.store.blobs import open_blobs
from twinmill.store.ledger import EpisodesLog

LOST = Failure(boundary=Boundary.MACHINE, type="MachineLostError", message="gone")


class ServingEngine(FollowingEngine):
    def __init__(self, version: int) -> None:
        self._log = type("Log", (), {"newest": lambda self: version})()


def mill(log: EpisodesLog, play, *, slots: int, serving: int = 0, window: int = 100, **config) -> Mill:
    return Mill(
        cluster="a", log=log, engine=ServingEngine(serving), taskset=ToyTasks(), task_of=lambda slot: f"toy/{slot}",
        may_start=lambda slot, version: may_start(slot, 2, window, version), play=play,
        config=RolloutConfig(group_size=2, poll_s=0.01, beat_s=0.05, **config), seed=0, slots=slots,
    )  # fmt: skip


def graded(slot: int, attempt: int):
    toy = toy_attempt(slot, attempt, 0)
    return toy.episode, toy.verdict


def ungraded(slot: int, attempt: int):
    episode, _ = graded(slot, attempt)
    return episode, Verdict(episode_id=episode.id, scores={}, reward=None, error=LOST)


@pytest.fixture
def log(tmp_path) -> EpisodesLog:
    return EpisodesLog(open_blobs(str(tmp_path)))


def test_an_attempt_that_infrastructure_lost_is_run_again_with_its_seed_and_only_then_counts(log):
    seeds: dict[tuple[str, int], list[int]] = {}

    async def play(task, *, episode_id, group_id, attempt, seed):
        tries = seeds.setdefault((group_id, attempt), [])
        tries.append(seed)
        slot = int(group_id)
        return ungraded(slot, attempt) if len(tries) < 3 and attempt == 1 else graded(slot, attempt)

    asyncio.run(asyncio.wait_for(mill(log, play, slots=2).run(), 20))
    for slot in (0, 1):
        assert len(set(seeds[str(slot), 1])) == 1
        assert len(seeds[str(slot), 1]) == 3
        close = log.close_of(slot)
        assert close.drop is None
        assert close.lost == 2
        assert all(verdict.reward is not None for verdict in log.group_of(close).verdicts_G)


def test_a_slot_whose_attempts_are_always_lost_is_closed_with_the_reason(log):
    calls: Counter = Counter()

    async def play(task, *, episode_id, group_id, attempt, seed):
        calls[group_id, attempt] += 1
        return ungraded(int(group_id), attempt) if attempt == 0 else graded(int(group_id), attempt)

    asyncio.run(asyncio.wait_for(mill(log, play, slots=1, losses=3).run(), 20))
    close = log.close_of(0)
    assert close.drop is DropReason.INFRASTRUCTURE
    assert close.entries_G == ()
    assert calls["0", 0] == 3
    assert calls["0", 1] == 1


def test_no_slot_starts_before_the_window_allows_it(log):
    async def play(task, *, episode_id, group_id, attempt, seed):
        return graded(int(group_id), attempt)

    async def main() -> None:
        running = asyncio.create_task(mill(log, play, slots=10, serving=1, window=1).run())
        async with asyncio.timeout(20):
            while len(log.closed_slots()) < 6:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # time enough to start what must not be started
        running.cancel()

    asyncio.run(main())
    # version 1, window 1, two groups a step: slots of steps 0, 1 and 2
    assert log.closed_slots() == [0, 1, 2, 3, 4, 5]


def test_the_open_slots_of_a_cluster_that_falls_silent_are_closed_and_a_living_ones_are_left(log):
    def beat(cluster: str) -> None:
        log.put_beat(Beat(cluster=cluster, at=time.time(), serving=0))

    for slot, cluster in ((0, "dead"), (1, "alive")):
        assert log.admit(Admit(slot=slot, task_id=f"toy/{slot}", seed=0, cluster=cluster, version=0))
        beat(cluster)

    async def play(task, *, episode_id, group_id, attempt, seed):
        while log.close_of(0) is None:
            await asyncio.to_thread(beat, "alive")
            await asyncio.sleep(0.05)
        return graded(int(group_id), attempt)

    asyncio.run(asyncio.wait_for(mill(log, play, slots=3, lost_s=1.0).run(), 30))
    assert log.close_of(0).drop is DropReason.CLUSTER_LOST
    assert log.close_of(1) is None
    assert log.close_of(2).drop is None
