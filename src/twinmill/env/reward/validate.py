"""Are tasks worth attempting? For each: an empty patch scores 0, the tests fail before, and pass after the oracle.

Of a task that is tagged impossible the oracle, too, must score 0, and the public tests must say that it fails.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from twinmill.data.tasks.base import IMPOSSIBLE, PlayedOracle, TaskSet
from twinmill.env.machine.base import InfrastructureError
from twinmill.records.base import Record
from twinmill.records.tasks import Task

from .grading import MakeMachine, grade
from .public import run_public_cases

AT_ONCE = 4
SOLVE_S = 600.0


class Validation(Record):
    """What one task showed. None = not found out (see `problem`), or, for `public`, the task has no public cases."""

    task_id: str
    empty: float | None = None
    """reward of an attempt that changed nothing; must be 0"""
    oracle: float | None = None
    """reward of the oracle's patch; must be 1, or 0 if the task is impossible"""
    public: str | None = None
    """what the agent's own test says after the oracle's patch; must begin with ok, unless the task is impossible"""
    problem: str = ""
    """why the task does not hold; empty = it does"""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.problem


async def validate(
    taskset: TaskSet,
    ids: Sequence[str],
    make_machine: MakeMachine,
    *,
    on_done: Callable[[Validation], None] = lambda row: None,
) -> list[Validation]:
    """One row per id, in order; a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(task_id: str) -> Validation:
        async with gate:
            row = await _validate(taskset, task_id, make_machine)
        on_done(row)
        return row

    return list(await asyncio.gather(*(one(task_id) for task_id in ids)))


async def _validate(taskset: TaskSet, task_id: str, make_machine: MakeMachine) -> Validation:
    started = time.monotonic()
    try:
        task = taskset.load(task_id)
        empty = await grade(task, {}, make_machine, f"{task_id}/empty")
        patch = await _solution(taskset, task, make_machine)
        solved = await grade(task, patch, make_machine, f"{task_id}/oracle")
        public = await _public(task, patch, make_machine) if task.public_cases else None
    except (ValueError, OSError, InfrastructureError) as error:
        return Validation(task_id=task_id, problem=f"{type(error).__name__}: {error}")
    problems, possible = [], IMPOSSIBLE not in task.tags
    for verdict, name, wanted in ((empty, "an empty patch", 0.0), (solved, "the oracle", float(possible))):
        if verdict.error is not None:
            problems.append(f"{name} could not be graded: {verdict.error.message}")
        elif verdict.reward != wanted:
            why = next((score.evidence for score in verdict.scores.values() if score.evidence), "")
            problems.append(f"{name} scores {verdict.reward:g} ({why})")
    if public is not None and public.startswith("ok") is not possible:
        problems.append(f"after the oracle the public cases say: {public}")
    return Validation(
        task_id=task_id, empty=empty.reward, oracle=solved.reward, public=public, problem="; ".join(problems),
        seconds=time.monotonic() - started,
    )  # fmt: skip


async def _solution(taskset: TaskSet, task: Task, make_machine: MakeMachine) -> dict[str, str]:
    """path -> text of what the oracle changes; played in a machine where it is a command."""
    files = taskset.oracle(task.id)
    if not isinstance(taskset, PlayedOracle):
        return files
    machine = make_machine(task.machine)
    try:
        await machine.start()
        await machine.put({path: text.encode() for path, text in files.items()})
        result = await machine.exec(taskset.oracle_command(task.id), timeout_s=SOLVE_S)
        if result.return_code != 0:
            raise ValueError(f"the oracle's command ends with status {result.return_code}: {result.stderr[-200:]}")
        found = {path: data.decode(errors="replace") for path, data in (await machine.get(["**"])).items()}
    finally:
        await machine.close()
    return {path: text for path, text in found.items() if path not in files and text != task.machine.files.get(path)}


async def _public(task: Task, patch: dict[str, str], make_machine: MakeMachine) -> str:
    """What the agent's own `test` would say after the oracle's patch."""
    machine = make_machine(task.machine)
    try:
        await machine.start()
        await machine.put({path: text.encode() for path, text in patch.items()})
        return await run_public_cases(machine, task.public_cases, timeout_s=task.grader.timeout_s)
    finally:
        await machine.close()
