"""The agent loop: ids to the engine, calls to the machine, observations back, until something ends it.

Token ids in, token ids out: the context is a list of ids that only ever grows; what was sampled is never rendered again.
A failure that is nobody's fault becomes Episode.error (stop ERROR) and is never graded; everything else is the agent's.
Not covered yet: self-summary (a second segment), parallel tool calls in one machine.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from twinmill.data.render import Parsed, Renderer
from twinmill.engine.base import Engine, EngineError, ExpertTrace
from twinmill.env.machine.base import InfrastructureError, Machine, MachineDestroyed
from twinmill.records.base import Record, Ref
from twinmill.records.engines import GenerateRequest, Generation, Sampling
from twinmill.records.episodes import (
    Boundary,
    Episode,
    Failure,
    Finish,
    OpenedBy,
    Segment,
    StopReason,
    Traces,
    Turn,
    Usage,
)  # fmt: skip
from twinmill.records.tasks import Task, ToolSpec

from .tools import SPECS, Scene, ToolError, use
from .traces import Times, look, times
from .waits import waits


class HarnessConfig(Record):
    """How episodes are sampled and bounded; a task's own Budget bounds one attempt."""

    temperature: float = 1.0
    """of sampling; 0 = greedy"""
    turn_tokens: int = 96
    """most tokens sampled in one turn"""
    turns: int | None = None
    """most turns of an attempt, where its task's budget allows more; None = as the task says"""
    experts: bool = True
    """record the expert choice of every position, for router replay"""
    engine_tries: int = 5
    """calls of the engine before an attempt counts as lost; the context is re-prefilled from its ids each time"""
    retry_s: float = 0.5
    """seconds between two tries"""
    tool_s: float = 5.0
    """deadline of one command in a machine, seconds"""
    stamps: bool = True
    """record wall-clock times; False in deterministic runs"""
    deadlines: bool = True
    """attempts end at their task's wall_s; False in deterministic runs, where only turns and tokens bound them"""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which attempt this is. `seed` makes its sampling reproducible."""

    episode_id: str
    group_id: str
    attempt: int
    seed: int
    cluster: str


KeepExperts = Callable[[ExpertTrace], Ref | None]
"""stores a segment's recorded experts and returns where"""


@dataclass
class _State:
    """What one attempt has gathered so far."""

    ids: list[int]
    appended: list[int]
    turns: list[Turn] = field(default_factory=list)
    sampled: int = 0
    tool_errors: int = 0
    engine_s: float = 0.0
    machine_s: float = 0.0
    trace: ExpertTrace = field(default_factory=ExpertTrace)


async def run_attempt(
    task: Task,
    who: Identity,
    *,
    engine: Engine,
    renderer: Renderer,
    machine: Machine,
    config: HarnessConfig,
    keep: KeepExperts,
) -> Episode:
    """Play one attempt to its end. Never raises for what happens inside it; cancellation passes through."""
    tools = [SPECS[name] for name in task.tools]
    prompt = renderer.open(task.messages, tools)
    state = _State(ids=list(prompt), appended=prompt)
    scene = Scene(machine, task, config.tool_s, None if task.tool_wait is None else waits(task.tool_wait, who.seed))
    error: Failure | None = None
    untouched: Times = {}
    try:
        await machine.start()  # has deadlines of its own: what it waits for is not the agent's time
        async with asyncio.timeout((task.budget.wall_s or None) if config.deadlines else None):
            untouched = await times(task, machine)
            stop = await _turns(task, who, state, tools, engine, renderer, scene, config)
    except TimeoutError:
        stop = StopReason.DEADLINE
    except MachineDestroyed:
        stop = StopReason.MACHINE
    except EngineError as lost:
        stop, error = StopReason.ERROR, _failure(Boundary.ENGINE, lost)
    except InfrastructureError as lost:
        stop, error = StopReason.ERROR, _failure(Boundary.MACHINE, lost)
    after: dict[str, str] | None = None
    traces: Traces | None = None
    if error is None:
        try:
            after = {} if stop is StopReason.MACHINE else await changed_files(task, machine)
            traces = None if stop is StopReason.MACHINE else await look(task, machine, untouched)
        except MachineDestroyed:
            stop, after = StopReason.MACHINE, {}
        except InfrastructureError as lost:
            stop, error = StopReason.ERROR, _failure(Boundary.MACHINE, lost)
    try:
        return _episode(task, who, state, stop, error, (after, traces), keep)
    except EngineError as lost:  # it recorded experts of too few positions, or none that are
        return _episode(task, who, state, StopReason.ERROR, _failure(Boundary.ENGINE, lost), (None, None), keep)


async def _turns(
    task: Task,
    who: Identity,
    state: _State,
    tools: list[ToolSpec],
    engine: Engine,
    renderer: Renderer,
    scene: Scene,
    config: HarnessConfig,
) -> StopReason:
    budget = task.budget
    turns = budget.turns if config.turns is None else min(config.turns, budget.turns)
    while True:
        if len(state.turns) == turns:
            return StopReason.TURNS
        if state.sampled >= budget.sampled_tokens:
            return StopReason.TOKENS
        room = min(config.turn_tokens, budget.sampled_tokens - state.sampled, budget.context_tokens - len(state.ids))
        if room <= 0:
            return StopReason.CONTEXT
        started = time.time()
        out = await _generate(who, state, engine, renderer, room, config)
        state.ids += out.sampled_ids
        state.sampled += len(out.sampled_ids)
        parsed = renderer.parse(out.sampled_ids, tools)
        state.engine_s += time.time() - started
        observations, over = await _act(parsed, state, scene)
        state.turns.append(
            Turn(
                index=len(state.turns),
                input_ids=state.appended,
                sampled_ids=out.sampled_ids,
                logprobs=out.logprobs,
                version_runs=out.version_runs,
                finish=out.finish,
                kv_runs=out.kv_runs,
                tool_calls=parsed.tool_calls,
                observation=None if over else "\n".join(observations),
                started=started if config.stamps else 0.0,
                seconds=time.time() - started if config.stamps else 0.0,
            )
        )
        if over:
            return StopReason.FINISHED
        if out.finish is Finish.LENGTH and room < config.turn_tokens:
            continue  # a budget ended the turn: the checks above say which
        state.appended = renderer.observe(out.sampled_ids, observations)
        state.ids += state.appended


async def _generate(
    who: Identity, state: _State, engine: Engine, renderer: Renderer, room: int, config: HarnessConfig
) -> Generation:
    """One model call. A lost engine is tried again from the ids alone: sampling is a pure function of weights, prefix and seed."""
    request = GenerateRequest(
        session_id=who.episode_id,
        group_id=who.group_id,
        token_ids=list(state.ids),
        sampling=Sampling(
            temperature=config.temperature,
            max_tokens=room,
            stop_ids=tuple(sorted(renderer.stop_ids)),
            seed=who.seed,
        ),
        want_experts=config.experts,
        experts_from=state.trace.known,
    )
    for tries_left in reversed(range(config.engine_tries)):
        try:
            out = await engine.generate(request)
            break
        except EngineError:
            if not tries_left:
                raise
            await asyncio.sleep(config.retry_s)
    last = state.turns[-1].version_runs[-1].version if state.turns and state.turns[-1].version_runs else -1
    if out.version_runs and out.version_runs[0].version < last:
        raise EngineError(
            f"{who.episode_id}: the engine went back from version {last} to {out.version_runs[0].version}"
        )
    state.trace.extend(out)
    return out


async def _act(parsed: Parsed, state: _State, scene: Scene) -> tuple[list[str], bool]:
    """(what the model sees next, whether the episode is over)"""
    if parsed.error is not None:
        state.tool_errors += 1
        return [f"error: {parsed.error}"], False
    if not parsed.tool_calls:
        return [], True
    observations = []
    started = time.time()
    for call in parsed.tool_calls:
        if call.name == "finish":
            return observations, True
        try:
            observations.append(await use(scene, call.name, call.arguments))
        except ToolError as mistake:
            state.tool_errors += 1
            observations.append(f"error: {mistake}")
    state.machine_s += time.time() - started
    return observations, False


async def changed_files(task: Task, machine: Machine) -> dict[str, str]:
    """What differs from the task's own files, within the grader's allow-list; Traces has the rest."""
    now = {path: data.decode(errors="replace") for path, data in (await machine.get(task.grader.allow)).items()}
    before = task.machine.files
    return {path: text for path, text in sorted(now.items()) if before.get(path) != text}


def _failure(boundary: Boundary, error: Exception) -> Failure:
    return Failure(boundary=boundary, type=type(error).__name__, message=str(error))


def _episode(
    task: Task,
    who: Identity,
    state: _State,
    stop: StopReason,
    error: Failure | None,
    left: tuple[dict[str, str] | None, Traces | None],
    keep: KeepExperts,
) -> Episode:
    versions = [run.version for turn in state.turns for run in turn.version_runs]
    experts = None
    if state.turns and error is None:
        state.trace.cut(sum(len(t.input_ids) + len(t.sampled_ids) for t in state.turns) - 1)
        experts = keep(state.trace)
    return Episode(
        id=who.episode_id, task_id=task.id, group_id=who.group_id, attempt=who.attempt,
        segments=(Segment(index=0, opened_by=OpenedBy.TASK, turns=tuple(state.turns), experts=experts),),
        stop=stop, versions=(versions[0], versions[-1]) if versions else (-1, -1),
        usage=Usage(
            turns=len(state.turns), prompt_tokens=sum(len(t.input_ids) for t in state.turns), sampled_tokens=state.sampled,
            tool_errors=state.tool_errors, engine_s=state.engine_s, machine_s=state.machine_s,
        ),
        cluster=who.cluster, seed=who.seed, machine_after=left[0], traces=left[1], error=error,
    )  # fmt: skip
