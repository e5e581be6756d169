"""Grader `command`: Harbor's way. A command judges the workspace and leaves its verdict in a file.

The hidden files (tests/test.sh and what it needs) are laid into a fresh machine in which the agent has never been, and
the folder for the verdict is made after everything of the agent's was laid out, directly before the command.

Code of the candidate that the command itself runs has the command's rights: it could write the verdict in the
command's stead, answer `==` with yes, patch the test library, or end the tests early with status 0. So Python tests are
laid out with records and run a second time as a control, in another fresh machine (instrument.py); a run that is not
sound earns 0. Nothing of the candidate lives on when the command has ended.

Not covered: all that, where tests are no Python functions named test*. Prefer `cases` where there is a choice.
"""

import json
import math

from twinmill.env.machine.base import ExecResult, Machine
from twinmill.records.episodes import Score
from twinmill.records.tasks import Task

from .instrument import Instrumented, instrument, unsound

WORK = "/work"
"""where every machine's workspace lies"""
HOME = ".harbor"
"""what the absolute paths /tests, /logs and /solution point into"""
VERDICT = f"{HOME}/logs/verifier"
_FRESH = f'rm -rf {HOME}/logs && mkdir -p {VERDICT} {HOME}/logs/agent {HOME}/logs/artifacts && exec "$@"'


async def grade_command(task: Task, machine: Machine) -> dict[str, Score]:
    run = instrument(task.grader.files, WORK)
    result, reward, evidence, record = await _run(task, machine, run)
    if reward > 0 and (why := unsound(run, record, reward)):
        reward, evidence = 0.0, f"not sound: {why}"
    elif result.timed_out:
        reward, evidence = 0.0, f"the tests ran out of time ({task.grader.timeout_s:g} s)"
    elif evidence is None and reward < 1:
        evidence = f"the tests gave {reward:g}"
    elif evidence is not None:
        evidence += f"; the tests ended with status {result.return_code}: {result.stderr[-200:]}"
    return {"passed": Score(value=reward, grader="command", evidence=evidence)}


async def control_command(task: Task, machine: Machine) -> str | None:
    """Why a verdict that was good cannot be believed, by a second run in which every expectation is impossible."""
    run = instrument(task.grader.files, WORK, impossible=True)
    if not run.impossible:
        return None
    _, reward, _, record = await _run(task, machine, run)
    return unsound(run, record, reward)


async def _run(task: Task, machine: Machine, run: Instrumented) -> tuple[ExecResult, float, str | None, str]:
    """(result, reward, why there is none, the records)"""
    await machine.put({path: text.encode() for path, text in run.files.items()})
    argv = ["sh", "-c", _FRESH, "sh", *task.grader.command]
    result = await machine.exec(argv, timeout_s=task.grader.timeout_s)
    files = await machine.get([f"{VERDICT}/reward.txt", f"{VERDICT}/reward.json", run.record])
    record = files.pop(run.record, b"").decode(errors="replace")
    reward, evidence = read_verdict({path.rpartition("/")[2]: data for path, data in files.items()})
    return result, reward, evidence, record


def read_verdict(files: dict[str, bytes]) -> tuple[float, str | None]:
    """(reward, why it is not one) from reward.txt (a number) or reward.json (a number, or an object with `reward` or
    with one number). No verdict is no reward."""
    try:
        if "reward.txt" in files:
            value = float(files["reward.txt"].decode())
        elif "reward.json" in files:
            content = json.loads(files["reward.json"])
            if isinstance(content, dict):
                (content,) = [content["reward"]] if "reward" in content else content.values()
            value = float(content)
        else:
            return 0.0, "no verdict was written"
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return 0.0, f"the verdict cannot be read: {type(error).__name__}: {error}"
    if not math.isfinite(value):
        return 0.0, f"the verdict is {value}"
    return value, None
