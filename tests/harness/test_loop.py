"""The agent loop: ids only ever grow, budgets end it, and a failure is the model's, the agent's or nobody's."""

import asyncio
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_render import RENDERERS
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.engine.base import EngineError
from twinmill.engine.scripted import Said, ScriptedEngine
from twinmill.env.harness.loop import HarnessConfig, Identity, run_attempt
from twinmill.env.harness.tools import SPECS
from twinmill.env.machine.base import MachineDestroyed, MachineLostError
from twinmill.env.machine.fake import FakeMachine
from twinmill.records.base import Ref
from twinmill.records.episodes import Boundary, Episode, StopReason
from twinmill.records.tasks import Message, Task, ToolCall

RENDER = RENDERERS["nano"]
TOOLS = list(SPECS.values())
TASK = TinyRepo(0).load("tinyrepo/0/train/5")
ROOMY = msgspec.structs.replace(
    TASK, budget=msgspec.structs.replace(TASK.budget, context_tokens=4000, sampled_tokens=800)
)

PATIENT = HarnessConfig(turn_tokens=200, retry_s=0)


def say(name: str, **arguments: str | int) -> list[int]:
    call = ToolCall(name=name, arguments=arguments)
    return RENDER.assistant(Message(role="assistant", content="", tool_calls=(call,)), TOOLS)


def play(turns, task: Task = ROOMY, *, engine=None, config=PATIENT, **fault) -> Episode:
    """`turns`: what the model says, one list of ids per turn."""
    script = list(turns)
    engine = engine or ScriptedEngine(lambda request: script.pop(0), experts=(2, 2, 8))
    kept = []

    def keep(trace):
        kept.append(trace.rows())
        return Ref(key="k", digest="d", bytes=len(trace.rows()))

    who = Identity(episode_id="1-0-0", group_id="1", attempt=0, seed=3, cluster="c")
    machine = FakeMachine(task.machine, **fault)
    episode = asyncio.run(
        run_attempt(task, who, engine=engine, renderer=RENDER, machine=machine, config=config, keep=keep)
    )
    if kept:
        n = sum(len(t.input_ids) + len(t.sampled_ids) for t in episode.segments[0].turns)
        assert kept[0].shape == (n - 1, 2, 2) and kept[0].dtype == np.uint16
    return episode


def test_edits_reach_the_machine_and_only_changes_are_carried_away():
    episode = play(
        [say("replace", path="main.py", line=1, text="def f():"), say("read", path="main.py"), say("finish")]
    )
    first, second, third = episode.segments[0].turns
    assert first.observation == "ok"
    assert second.observation.startswith("1|def f():\n2|")
    assert third.observation is None
    assert episode.stop is StopReason.FINISHED
    assert episode.machine_after == {"main.py": "def f():\n" + TASK.machine.files["main.py"].split("\n", 1)[1]}
    assert episode.versions == (0, 0)
    assert episode.usage.turns == 3 and episode.usage.tool_errors == 0


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_the_context_only_ever_grows_whatever_ids_are_sampled(seed):
    """The property that makes training exact: what the engine sees next is what it saw, what it sampled, and more."""
    rng = random.Random(seed)
    said: list[list[int]] = []

    def noise(request):
        said.append([rng.randrange(RENDER.vocab_size) for _ in range(rng.randint(1, 12))] + [6] * (rng.random() < 0.8))
        return said[-1]

    engine = ScriptedEngine(noise, experts=(2, 2, 8))
    episode = play([], engine=engine)
    contexts = [request.token_ids for request in engine.requests]
    turns = episode.segments[0].turns
    for before, after, turn in zip(contexts, contexts[1:], turns):
        assert after[: len(before) + len(turn.sampled_ids)] == before + turn.sampled_ids
    joined = [i for turn in turns for i in (*turn.input_ids, *turn.sampled_ids)]
    assert joined == contexts[-1] + turns[-1].sampled_ids
    known = [0, *(len(c) + len(t.sampled_ids) - 1 for c, t in zip(contexts, turns))][: len(contexts)]
    assert [request.experts_from for request in engine.requests] == known


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (say("replace", path="main.py", line=99, text="x"), "lines"),
        (
            say("replace", path="main.py", line=1, text=TASK.machine.files["main.py"].split("\n")[0]),
            "line 1 reads so already",
        ),
        (say("read", path="nosuch.py"), "error: no file nosuch.py"),
        (say("read", path="../etc/passwd"), "must lie in the workspace"),
        (say("search", pattern="("), "bad pattern"),
        ([4, *RENDER.text_ids("fly"), 6], "error: no tool 'fly'"),
    ],
)
def test_the_models_own_mistakes_are_told_to_it_and_counted(turn, says):
    episode = play([turn, say("finish")])
    assert says in episode.segments[0].turns[0].observation
    assert episode.usage.tool_errors == 1
    assert episode.stop is StopReason.FINISHED and episode.error is None


def test_budgets_end_an_attempt_as_a_valid_one():
    def bounded(**budget):
        return msgspec.structs.replace(ROOMY, budget=msgspec.structs.replace(ROOMY.budget, **budget))

    loop = say("list")
    assert play([loop] * 9, bounded(turns=3)).stop is StopReason.TURNS
    for harness, task in ((2, 3), (3, 2)):  # whichever is less
        few = play([loop] * 9, bounded(turns=task), config=msgspec.structs.replace(PATIENT, turns=harness))
        assert few.stop is StopReason.TURNS and few.usage.turns == 2
    assert play([loop] * 9, bounded(sampled_tokens=len(loop) * 2)).stop is StopReason.TOKENS
    prompt = len(RENDER.open(TASK.messages, TOOLS))
    assert play([loop] * 9, bounded(context_tokens=prompt + len(loop) + 2)).stop is StopReason.CONTEXT
    slow = ScriptedEngine(lambda request: Said(loop, delay_s=0.2))
    late = play([], bounded(wall_s=0.1), engine=slow)
    assert late.stop is StopReason.DEADLINE and late.error is None and late.machine_after == {}


def test_a_machine_lost_to_infrastructure_is_an_error_and_a_destroyed_one_is_the_agents_own():
    lost = play([say("list"), say("finish")], fail={"get": MachineLostError("the host went away")})
    assert lost.stop is StopReason.ERROR
    assert lost.error.boundary is Boundary.MACHINE and "host went away" in lost.error.message
    assert lost.machine_after is None
    own = play([say("list"), say("finish")], fail={"get": MachineDestroyed("init was killed")})
    assert own.stop is StopReason.MACHINE and own.error is None and own.machine_after == {}


def test_a_lost_engine_is_tried_again_and_then_named():
    calls = {"n": 0}

    class Flaky(ScriptedEngine):
        async def generate(self, request):
            calls["n"] += 1
            if calls["n"] <= self.losses:
                raise EngineError("socket closed")
            return await super().generate(request)

    for losses, stop in ((3, StopReason.FINISHED), (99, StopReason.ERROR)):
        calls["n"] = 0
        engine = Flaky(lambda request: say("finish"), experts=(2, 2, 8))
        engine.losses = losses
        episode = play([], engine=engine)
        assert episode.stop is stop
    assert episode.error.boundary is Boundary.ENGINE and "socket closed" in episode.error.message
    assert calls["n"] == HarnessConfig().engine_tries


def test_an_engine_that_goes_back_in_versions_is_refused():
    versions = iter((5, 4))
    engine = ScriptedEngine(lambda request: Said(say("list"), version=next(versions)), experts=(2, 2, 8))
    episode = play([], engine=engine)
    assert episode.stop is StopReason.ERROR
    assert "went back from version 5 to 4" in episode.error.message
