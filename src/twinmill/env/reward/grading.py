"""Grading: what the agent left is judged in a fresh machine in which the agent has never been.

    pristine task files  +  the agent's changes, as far as the grader's allow and deny lists let them  +  hidden files

Three outcomes and no fourth: a reward; a reward of 0 because the agent's files broke the machine or do not fit; no
reward (`Verdict.reward` None with a `Failure`) because the infrastructure failed.
"""

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module

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
}
"""kind -> module:function"""
NEVER = (".harbor/**", ".put")
"""paths that no agent's change may have, whatever a task allows: what graders use"""
FILE_BYTES = 1 << 20
TOTAL_BYTES = 8 << 20
FILES = 2000
"""an agent's changes beyond these are its own failure"""


class DoNotFit(Exception):
    """The agent's changes cannot be laid out."""


def carried(grader: Grader, changed: Mapping[str, str]) -> dict[str, bytes]:
    """What of the agent's changes goes into the grading machine. Raises DoNotFit."""
    files = {}
    for path, text in changed.items():
        try:
            check_path(path)
        except ValueError:
            continue
        if matches(path, grader.allow) and not matches(path, (*grader.deny, *NEVER)):
            files[path] = text.encode(errors="replace")
    total = sum(map(len, files.values()))
    if len(files) > FILES or total > TOTAL_BYTES or any(len(data) > FILE_BYTES for data in files.values()):
        raise DoNotFit(f"{len(files)} changed files with {total} bytes: at most {FILES} and {TOTAL_BYTES} are carried")
    return files


async def grade(
    task: Task, changed: Mapping[str, str], make_machine: MakeMachine, episode_id: str, now: float = 0.0
) -> Verdict:
    """The verdict over an attempt that changed `changed` (path -> text). Raises nothing that a machine can cause."""
    module, name = GRADERS[task.grader.kind].split(":")
    judge: Grade = getattr(import_module(module), name)
    machine = make_machine(task.machine)
    try:
        try:
            await machine.start()
            scores = await _judge(task, changed, machine, judge)
        finally:
            await machine.close()
    except (InfrastructureError, MachineDestroyed) as error:  # the latter only before anything of the agent's was in it
        failure = Failure(boundary=Boundary.GRADER, type=type(error).__name__, message=str(error))
        return Verdict(episode_id=episode_id, scores={}, reward=None, graded_at=now, error=failure)
    reward = sum(score.value * score.weight for score in scores.values())
    return Verdict(episode_id=episode_id, scores=scores, reward=reward, graded_at=now)


async def _judge(task: Task, changed: Mapping[str, str], machine: Machine, judge: Grade) -> dict[str, Score]:
    try:
        for files in (carried(task.grader, changed), _hidden(task.grader)):
            if files:
                await machine.put(files)
        return await judge(task, machine)
    except MachineDestroyed as error:
        why = f"the agent's files destroyed the grading machine: {error}"
    except (OSError, DoNotFit) as error:  # the pristine files did fit: it is the agent's that do not
        why = f"the agent's files do not fit: {error}"
    return {"passed": Score(value=0.0, grader=task.grader.kind.value, evidence=why)}


def _hidden(grader: Grader) -> dict[str, bytes]:
    """A script grader's program goes to its process only; all other hidden files are laid over the workspace."""
    private = grader.command[:1] if grader.kind is GraderKind.SCRIPT else ()
    return {path: text.encode() for path, text in grader.files.items() if path not in private}
