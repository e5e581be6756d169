"""Grader `cases`: calls are evaluated in the candidate's process, and compared with the right values here.

The candidate's process has neither the right values nor a way to say "passed". A missing answer is a wrong one.
"""

import ast
from collections.abc import Sequence

from twinmill.env.machine.base import Machine
from twinmill.records.episodes import Score
from twinmill.records.tasks import Case, Task

from .channel import Lines, ask, guest
from .values_guest import NotPlain, canonical, encode

SHOWN = 80
"""characters of a value or message in a failure text"""


async def evaluate(machine: Machine, cases: Sequence[Case], *, timeout_s: float) -> Lines:
    question = {"cases": [[case.id, case.module, case.call] for case in cases]}
    return await ask(machine, guest("values_guest", "cases_guest"), question, timeout_s=timeout_s)


def passed(case: Case, lines: Lines) -> bool:
    """Equal in value and in every type. Where `expect` is no literal (nan, a frozenset), the texts are compared."""
    line = lines.by_id.get(case.id, {})
    if not isinstance(line.get("value"), str):
        return False
    try:
        return bool(line["value"] == canonical(encode(ast.literal_eval(case.expect))))
    except (ValueError, SyntaxError, NotPlain):
        return bool(line.get("shown") == case.expect)


def failure_text(case: Case, lines: Lines) -> str:
    """One line a person or a model can act on; byte-stable."""
    line = lines.by_id.get(case.id)
    if line is None:
        why = "but ran out of time" if lines.result.timed_out else "but the process ended"
    elif "syntax" in line:
        return short(str(line["syntax"]))
    elif "raised" in line:
        why = f"but raised {short(str(line['raised']))}"
    else:
        why = f"but got {short(str(line.get('shown', line.get('other'))))}"
    return f"FAIL {case.call} == {short(case.expect)} {why}"


def short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


async def grade_cases(task: Task, machine: Machine) -> dict[str, Score]:
    cases = task.grader.cases
    lines = await evaluate(machine, cases, timeout_s=task.grader.timeout_s)
    failed = [case for case in cases if not passed(case, lines)]
    frac = 1 - len(failed) / len(cases) if cases else 0.0
    evidence = f"{failed[0].id}: {failure_text(failed[0], lines)}" if failed else None
    return {
        "passed": Score(value=float(bool(cases) and not failed), grader="cases", evidence=evidence),
        "cases": Score(value=frac, weight=0.0, grader="cases"),
    }
