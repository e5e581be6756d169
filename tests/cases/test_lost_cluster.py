"""When is a cluster lost? When it shows no beat while others watch: not because a run was stopped for a night."""

import asyncio
import itertools
import time

from twinmill.batch.window import may_start
from twinmill.engine.scripted import ScriptedEngine
from twinmill.records.episodes import Admit, DropReason
from twinmill.records.runs import Beat
from twinmill.rollout.mill import Mill, RolloutConfig
from twinmill.store.blobs import open_blobs
from twinmill.store.ledger import EpisodesLog

LOST_S = 1.0
LONG_AGO = 1000.0


def watching(log: EpisodesLog) -> Mill:
    """A mill of cluster "a" that has no slot of its own to play: all are admitted."""

    async def nothing(task, **who):  # type: ignore[no-untyped-def]
        raise AssertionError("no slot is left to play")

    return Mill(
        cluster="a",
        log=log,
        engine=ScriptedEngine(lambda request: [2]),
        taskset=None,
        task_of=lambda slot: "",
        may_start=lambda slot, serving: may_start(slot, 1, 0, serving),
        play=nothing,
        config=RolloutConfig(beat_s=0.02, lost_s=LOST_S),
        seed=0,
        slots=1,
    )


def left_open(at: float) -> EpisodesLog:
    """Cluster "b" beat at `at` and left slot 0 open."""
    log = EpisodesLog(open_blobs("memory://"))
    log.admit(Admit(slot=0, task_id="t", seed=0, cluster="b", version=0))
    log.put_beat(Beat(cluster="b", at=at, serving=0, open_slots=(0,)))
    return log


async def beats(mill: Mill, until) -> None:  # type: ignore[no-untyped-def]
    beating = asyncio.create_task(mill._beat())
    deadline = time.monotonic() + 60
    try:
        while not until():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
    finally:
        beating.cancel()


def test_a_silent_cluster_is_given_its_time_from_when_it_is_watched():
    log, started = left_open(LONG_AGO), time.time()
    asyncio.run(beats(watching(log), lambda: log.close_of(0) is not None))
    close = log.close_of(0)
    assert close is not None
    assert close.drop is DropReason.CLUSTER_LOST
    assert close.closed_at - started >= LOST_S, "a beat from long ago, before a resume, must not count at once"


def test_a_cluster_whose_clock_is_wrong_is_not_lost():
    log, ticks, started = left_open(LONG_AGO), itertools.count(), time.monotonic()

    def still_beating() -> bool:
        log.put_beat(Beat(cluster="b", at=LONG_AGO + next(ticks), serving=0, open_slots=(0,)))
        return time.monotonic() - started > 2 * LOST_S

    asyncio.run(beats(watching(log), still_beating))
    assert log.close_of(0) is None


def test_who_stood_still_himself_calls_nobody_lost():
    log = left_open(LONG_AGO)
    mill = watching(log)
    assert mill._silent() == set()
    time.sleep(LOST_S * 1.2)  # as after SIGSTOP or a suspended laptop, in which the others stood still, too
    assert mill._silent() == set()
    deadline = time.monotonic() + 60
    while mill._silent() != {"b"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
