"""What hangs is noticed within its deadline, named, and worked around, or the run stops and can be resumed. It is never
a reward."""

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.store.s3_server import BUCKET, S3Server, serving
from twinmill.batch.window import may_start
from twinmill.data.render import open_renderer
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.engine.scripted import ScriptedEngine
from twinmill.env.harness.loop import HarnessConfig
from twinmill.env.harness.tools import SPECS
from twinmill.env.machine import cells, namespace
from twinmill.env.machine.namespace import NamespaceMachine
from twinmill.env.machine.nest import Nest, mark
from twinmill.records.engines import GenerateRequest
from twinmill.records.episodes import Attempt, Boundary
from twinmill.records.tasks import Message, ToolCall
from twinmill.rollout.mill import Mill, RolloutConfig
from twinmill.rollout.play import Player
from twinmill.store.backends import StoreConfig
from twinmill.store.blobs import open_blobs
from twinmill.store.ledger import EpisodesLog, finished

from .real import RealRun

NAMED = ("was stopped from outside", "its forge does not answer", "died at its start", "the sandbox around the machine")


def never_a_reward(attempts: list[Attempt]) -> None:
    assert attempts
    for attempt in attempts:
        lost = attempt.episode.error is not None or attempt.verdict.error is not None
        assert lost == (attempt.verdict.reward is None), attempt


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stopped_trainer_is_named_and_replaced(run: RealRun) -> None:
    run.start(rl__steps=3, hang_s=5.0)
    run.wait(lambda: run.newest >= 1, "version 1")
    stopped = run.signal("trainer", signal.SIGSTOP)
    run.wait(lambda: run.says(r"^hung: trainer: no heartbeat for 2\d\.\d s \(stopped\)"), "word of the trainer")
    run.wait(lambda: run.pid("trainer") not in (None, stopped), "another trainer")
    run.done()
    run.whole(window=1, slots=6)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of machines that a test can wait for."""
    monkeypatch.setattr(namespace, "FILES_S", 1.5)
    monkeypatch.setattr(cells, "START_S", 3.0)


def test_stopped_sandboxes_are_lost_attempts_that_are_played_again(impatient: None, agent: Path) -> None:
    """Everything of the sandbox is stopped while attempts are in it: its forge, and every machine."""
    renderer, tools = open_renderer(agent), list(SPECS.values())
    calls = [ToolCall(name="test"), ToolCall(name="finish")]
    turns = [renderer.assistant(Message(role="assistant", content="", tool_calls=(c,)), tools) for c in calls]
    stopped: list[int] = []
    places: dict[str, int] = {}

    def said(request: GenerateRequest) -> list[int]:
        turn = places.get(request.session_id, 0)
        places[request.session_id] = turn + 1
        if len(places) == 3 and not stopped:
            stopped.extend(_stop_machines(os.getpid()))
        return turns[turn]

    log = EpisodesLog(open_blobs("memory://"))
    player = Player(
        engine=ScriptedEngine(said),
        renderer=renderer,
        make_machine=lambda spec: NamespaceMachine(spec, grace_s=1.5),
        harness=HarnessConfig(experts=False, tool_s=1.5),
        cluster="a",
    )
    mill = Mill(
        cluster="a",
        log=log,
        engine=player.engine,
        taskset=TinyRepo(0),
        task_of=lambda slot: f"tinyrepo/0/train/{slot}",
        may_start=lambda slot, serving: may_start(slot, 2, 0, 0),
        play=player,
        config=RolloutConfig(groups_in_flight=2, group_size=3, machines=4, losses=9),
        seed=0,
        slots=2,
    )
    asyncio.run(mill.run())
    attempts = [attempt for _, attempt in log.tail("a")]
    never_a_reward(attempts)
    lost = [attempt for attempt in attempts if not finished(attempt)]
    assert stopped
    assert lost, "whatever was in a stopped machine is lost"
    for attempt in lost:
        failure = attempt.episode.error or attempt.verdict.error
        assert failure is not None
        assert failure.boundary in (Boundary.MACHINE, Boundary.GRADER)
        assert any(words in failure.message for words in NAMED), failure
    for slot in (0, 1):
        close = log.close_of(slot)
        assert close is not None
        assert close.drop is None
        assert len(close.entries_G) == 3
    assert sum(log.close_of(slot).lost for slot in (0, 1)) == len(lost)


def _stop_machines(owner: int) -> list[int]:
    """Those of `_machines` that were stopped; one that has just ended by itself needs no stopping."""
    stopped = []
    for pid in _machines(owner):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
    return stopped


def _machines(owner: int) -> list[int]:
    """Every process of the sandboxes of `owner`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark(owner).encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture
def far(tmp_path: Path, agent: Path, s3: S3Server) -> Iterator[tuple[RealRun, dict[str, object]]]:
    """A run whose store is a real S3 server, and the overrides that say so."""
    config = structs.replace(s3.config, url=f"s3://{BUCKET}/{uuid.uuid4().hex}")
    keys = {f"store__{name}": getattr(config, name) for name in ("url", "endpoint", "region", *_SECRETS)}
    with RealRun(tmp_path / "runs", agent, StoreConfig(**structs.asdict(config))) as run:
        yield run, {**keys, "store__deadline_s": 4.0}


_SECRETS = ("access_key_id", "secret_access_key")


@pytest.mark.timeout(900)
def test_a_stopped_engine_store_and_rollout_process_are_named_and_got_over(
    far: tuple[RealRun, dict[str, object]], s3: S3Server
) -> None:
    run, store = far
    run.start(**store, rl__steps=6, rl__window__window=1, hang_s=6.0)
    run.wait(lambda: run.newest >= 1, "version 1")
    stopped = {name: run.signal(name, signal.SIGSTOP) for name in ("engine/east", "rollout/east")}
    for name, pid in stopped.items():
        run.wait(lambda n=name: run.says(rf"^hung: {n}: no heartbeat for \d+\.\d s \(stopped\)"), f"word of {name}")
        run.wait(lambda n=name, pid=pid: run.pid(n) not in (None, pid), f"another {name}")
    run.wait(lambda: run.newest >= 2, "version 2")
    with s3.stopped():
        run.wait(lambda: run.says(r"could not .* s3://.* within its deadline of 4 s"), "word of the store")
    run.done()
    run.whole(window=1, slots=12)
    never_a_reward(run.attempts())
    run.no_strays()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_store_that_stays_away_stops_the_run_which_can_be_resumed(
    far: tuple[RealRun, dict[str, object]], s3: S3Server
) -> None:
    run, store = far
    run.start(**store, rl__steps=3, rl__window__window=1)
    run.wait(lambda: run.newest >= 1, "version 1")
    with s3.stopped():
        assert run.end() == 1
        for name in ("trainer", "rollout/east"):
            assert run.says(rf"^error: {name}: could not .* within its deadline of 4 s"), run.events()
        assert "Traceback" not in run.said()
        assert f"resume with: twinmill run --resume {run.folder.path}" in run.said()
        run.no_strays()
    run.resume().done()
    run.whole(window=1, slots=6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stopped_sandboxes_of_a_real_run_cost_attempts_and_nothing_else(run: RealRun) -> None:
    run.start(rl__steps=3, rl__window__window=1, harness__tool_s=3.0)
    run.wait(lambda: run.attempts(), "the first attempt")
    owner = run.pid("rollout/east")
    run.wait(lambda: _machines(owner), "a machine")
    assert _stop_machines(owner)
    run.done()
    found = run.whole(window=1, slots=6)
    assert found.lost > 0
    never_a_reward(run.attempts())
    assert run.pid("rollout/east") is None
    run.no_strays()


def test_a_forge_that_was_given_up_still_says_its_last_words() -> None:
    """Those who waited for a machine of it ask after it was closed, when its descriptor's number may be another's."""
    nest = Nest.start(cells.LAUNCHERS["nested"])
    nest.close()
    reader, writer = os.pipe()  # takes the number
    try:
        assert nest.said() == ""
        assert not nest.listen()
    finally:
        os.close(reader)
        os.close(writer)
