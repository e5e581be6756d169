"""Whatever is killed, whenever: every slot is trained exactly once, nothing is dropped, and the chain holds."""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.publish.mills import GROUP, SLOTS_PER_STEP, WINDOW, ClusterMill, TrainerMill, slots_of
from twinmill.publish.chain import rebuild, versions
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.materialize import verify
from twinmill.store import blobs as blobs_module
from twinmill.store.audit import Audit, audit
from twinmill.store.blobs import NAMED_WRITES, Blobs, open_blobs
from twinmill.store.ledger import EpisodesLog

from .toys import first_state, moved, same

VERSIONS = 5
SLOTS = VERSIONS * SLOTS_PER_STEP


class Killed(BaseException):
    """The end of a process: only what is in the store is left of it."""


def check(blobs: Blobs) -> Audit:
    found = audit(blobs, window=WINDOW, objects=True)
    assert found.problems == ()
    assert (found.admitted, found.closed, found.trained) == (SLOTS, SLOTS, SLOTS)
    assert (found.dropped, found.open, found.untrained) == ({}, (), ())
    assert found.sampled_tokens == SLOTS * GROUP
    for version in versions(WeightsLog(blobs), 1):
        assert version.slots == tuple(slots_of(version.number))
    state = first_state()
    for number in range(VERSIONS + 1):
        state = moved(state, number) if number else state
        assert same(rebuild(WeightsLog(blobs), number).tensors, state)
    return found


def run_with_kills(blobs: Blobs, seed: int, kill: Callable[[str, random.Random], bool]) -> Counter[str]:
    """Both mills, interleaved by `seed`; each dies at the points that `kill` picks. Returns the points died at."""
    rng = random.Random(seed)
    deaths: Counter[str] = Counter()

    def perhaps_die(point: str) -> None:
        if kill(point, rng):
            deaths[point] += 1
            raise Killed

    start: list[Callable[[], ClusterMill | TrainerMill]] = [
        lambda: ClusterMill(blobs, "c0", VERSIONS),
        lambda: ClusterMill(blobs, "c1", VERSIONS),
        lambda: TrainerMill(blobs, VERSIONS),
    ]
    mills: list[ClusterMill | TrainerMill | None] = [None, None, None]
    blobs_module.crash_points = perhaps_die
    try:
        for _ in range(3000):
            chosen = rng.randrange(3)
            try:
                mills[chosen] = mill = mills[chosen] or start[chosen]()
                mill.step()
            except Killed:
                mills[chosen] = None
            trainer = mills[2]
            if isinstance(trainer, TrainerMill) and trainer.finished:
                return deaths
    finally:
        blobs_module.crash_points = blobs_module._no_crash
    raise AssertionError(f"not finished, seed {seed}; died at {dict(deaths)}")


def test_undisturbed(local: Blobs) -> None:
    assert not run_with_kills(local, 0, lambda point, rng: False)
    assert check(local).unused == 0


@pytest.mark.parametrize("seed", range(8))
def test_kills_at_random_writes(seed: int) -> None:
    blobs = open_blobs("memory://")
    deaths = run_with_kills(blobs, seed, lambda point, rng: rng.random() < 0.15)
    assert sum(deaths.values()) > 5
    found = check(blobs)
    assert found.unused == 0, "an attempt whose entry is durable is never run again"


HERE = sorted(set(NAMED_WRITES) - {"checkpoint.save", "weights.lease", "weights.collect"})  # these: test_collect.py


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_at_every_named_write(local: Blobs, name: str, when: str) -> None:
    """The first three times that the write is reached."""
    seen: Counter[str] = Counter()

    def kill(point: str, rng: random.Random) -> bool:
        seen[point] += 1
        return point == f"{name}:{when}" and seen[point] <= 3

    deaths = run_with_kills(local, 1, kill)
    assert deaths == {f"{name}:{when}": 3}
    check(local)


def wait_until(happened: Callable[[], bool], deadline_s: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not happened():
        assert time.monotonic() < deadline, f"not within {deadline_s} s"
        time.sleep(0.005)


@pytest.mark.parametrize("seed", range(2))
def test_processes_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    """Real processes, SIGKILL, a real folder; whatever dies is started again."""
    rng = random.Random(seed)
    folder = str(tmp_path / "store")
    command = [sys.executable, "-m", "tests.publish.mills", folder]
    roles = [["cluster", "c0", str(VERSIONS)], ["cluster", "c1", str(VERSIONS)], ["trainer", str(VERSIONS)]]

    def start(role: list[str]) -> subprocess.Popen:
        return subprocess.Popen([*command, *role], cwd=Path(__file__).parents[2])

    running = [start(role) for role in roles]
    log = EpisodesLog(open_blobs(folder))
    try:
        for slot in range(1, SLOTS - 1, 2):  # the work itself says when: as soon as this slot is taken
            wait_until(lambda slot=slot: log.admit_of(slot) is not None)
            time.sleep(rng.uniform(0.0, 0.1))
            victim = rng.randrange(3)
            running[victim].kill()
            running[victim].wait(timeout=10)
            running[victim] = start(roles[victim])
        wait_until(lambda: running[2].poll() is not None)
        assert running[2].returncode == 0
    finally:
        for process in running:
            process.kill()
            process.wait(timeout=10)
    blobs = open_blobs(folder)
    check(blobs)
    assert all(report.ok for report in verify(blobs))
    assert not [key for key in blobs.list() if "#" in key]
    blobs.sweep(older_s=0.0)
    assert not [path for path in (tmp_path / "store").rglob("*#*")]
