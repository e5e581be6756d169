"""Grading: what the agent left is judged in a fresh machine in which the agent has never been.

    pristine task files  +  the agent's changes, as far as the grader's allow and deny lists let them  +  hidden files

Three outcomes and no fourth: a reward; a reward of 0 because the agent's files broke the machine or do not fit; no
reward (`Verdict.reward` None with a `Failure`) because the infrastructure failed.
"""

from collections.abc import Awaitable, Callable, Container, Mapping
from importlib import import_module
from typing import Any

from twinmill.env.machine.base import InfrastructureError, Machine, MachineDestroyed
from twinmill.env.machine.paths import check_path, matches
from twinmill.records.episodes import Boundary, Failure, Score, Verdict
from twinmill.records.tasks import Grader, GraderKind, MachineSpec, Task

MakeMachine = Callable[[MachineSpec], Machine]
Grade = Callable[[Task, Machine], Awaitable[dict[str, Score]]]

GRADERS = {
    GraderKind.CASES: "twinmill.env.reward.cases:grade_cases",
    GraderKind.SCRIPT: "twinmill.env.reward.script:grade_script",
    GraderKind.COMMAND: "twinmill.env.reward.command:grade_command",
    GraderKind.MIGRATION: "twinmill.env.reward.migration:grade_migration",
}
"""kind -> module:function"""
CONTROLS = {GraderKind.COMMAND: "twinmill.env.reward.command:control_command"}
"""kind -> what is asked, in one more fresh machine, about an attempt that has earned something: why not to believe it"""
NEVER = (".harbor/**", ".put")
"""paths that no agent's change may have, whatever a task allows: what graders use"""
NEVER_NEW = (
    *("sitecustomize.py", "**/sitecustomize.py", "usercustomize.py", "**/usercustomize.py", "*.pth", "**/*.pth"),
    *("unittest.py", "unittest/**", "pytest.py", "pytest/**", "_pytest/**", "pluggy.py", "pluggy/**"),
)
"""paths that a change may have only where the task came with them: what runs before tests, or stands before the tests'
own libraries"""
FILE_BYTES = 1 << 20
TOTAL_BYTES = 8 << 20
FILES = 2000
"""an agent's changes beyond these are its own failure"""


class DoNotFit(Exception):
    """The agent's changes cannot be laid out."""


def carried(grader: Grader, changed: Mapping[str, str], before: Container[str] = ()) -> dict[str, bytes]:
    """What of the agent's changes goes into the grading machine; `before` = paths of the task. Raises DoNotFit."""
    files = {}
    for path, text in changed.items():
        try:
            check_path(path)
        except ValueError:
            continue
        never = NEVER if path in before else (*NEVER, *NEVER_NEW)
        if matches(path, grader.allow) and not matches(path, (*grader.deny, *never)):
            files[path] = text.encode(errors="replace")
    total = sum(map(len, files.values()))
    if len(files) > FILES or total > TOTAL_BYTES or any(len(data) > FILE_BYTES for data in files.values()):
        raise DoNotFit(f"{len(files)} changed files with {total} bytes: at most {FILES} and {TOTAL_BYTES} are carried")
    return files


async def grade(
    task: Task, changed: Mapping[str, str], make_machine: MakeMachine, episode_id: str, now: float = 0.0
) -> Verdict:
    """The verdict over an attempt that changed `changed` (path -> text). Raises nothing that a machine can cause."""
    judge: Grade = _imported(GRADERS[task.grader.kind])
    try:
        scores = await _in_fresh_machine(task, changed, make_machine, judge)
        doubt = CONTROLS.get(task.grader.kind)
        if doubt and isinstance(scores, dict) and _reward(scores) > 0:
            why = await _in_fresh_machine(task, changed, make_machine, _imported(doubt))
            if isinstance(why, str):
                kind = task.grader.kind.value
                scores = {**scores, "passed": Score(value=0.0, grader=kind, evidence=f"not sound: {why}")}
    except (InfrastructureError, MachineDestroyed) as error:  # the latter only before anything of the agent's was in it
        failure = Failure(boundary=Boundary.GRADER, type=type(error).__name__, message=str(error))
        return Verdict(episode_id=episode_id, scores={}, reward=None, graded_at=now, error=failure)
    if not isinstance(scores, dict):
        scores = {"passed": Score(value=0.0, grader=task.grader.kind.value, evidence=scores)}
    return Verdict(episode_id=episode_id, scores=scores, reward=_reward(scores), graded_at=now)


def _imported(name: str) -> Callable[[Task, Machine], Awaitable[Any]]:
    module, _, function = name.partition(":")
    found: Callable[[Task, Machine], Awaitable[Any]] = getattr(import_module(module), function)
    return found


def _reward(scores: Mapping[str, Score]) -> float:
    return sum(score.value * score.weight for score in scores.values())


async def _in_fresh_machine(
    task: Task, changed: Mapping[str, str], make_machine: MakeMachine, judge: Callable[[Task, Machine], Awaitable[Any]]
) -> Any:
    """What `judge` answers; a text where the agent's files do not let it."""
    machine = make_machine(task.machine)
    try:
        await machine.start()
        try:
            for files in (carried(task.grader, changed, task.machine.files), _hidden(task.grader)):
                if files:
                    await machine.put(files)
            return await judge(task, machine)
        except MachineDestroyed as error:
            return f"the agent's files destroyed the grading machine: {error}"
        except (OSError, DoNotFit) as error:  # the pristine files did fit: it is the agent's that do not
            return f"the agent's files do not fit: {error}"
    finally:
        await machine.close()


def _hidden(grader: Grader) -> dict[str, bytes]:
    """A script grader's program and a migration's SQL go to their process only, a command grader lays out its own
    (instrument.py); all other hidden files are laid over the workspace."""
    if grader.kind in (GraderKind.COMMAND, GraderKind.MIGRATION):
        return {}
    private = grader.command[:1] if grader.kind is GraderKind.SCRIPT else ()
    return {path: text.encode() for path, text in grader.files.items() if path not in private}
