"""Grader `script`: a Python test program (as HumanEval's `check(candidate)`) that runs apart from the candidate.

`grader.command` = (name of the program among `grader.files`, module, entry). The program's functions `check` and
`test_*` are the tests; one that takes an argument gets the candidate, a stand-in that calls `module.entry` in another
process and takes back plain values only; `entry` means it, too. The program is never a file in the machine.
"""

import ast

from twinmill.env.machine.base import Machine
from twinmill.records.episodes import Score
from twinmill.records.tasks import Task

from .channel import ask, guest


def test_names(program: str) -> list[str]:
    """The tests of a program, in its order. Every one must be recorded, whatever happens in the machine."""
    functions = [node.name for node in ast.parse(program).body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name == "check" or name.startswith("test_")]


async def grade_script(task: Task, machine: Machine) -> dict[str, Score]:
    name, module, entry = task.grader.command
    program = task.grader.files[name]
    tests = test_names(program)
    question = {"program": program, "tests": tests, "module": module, "entry": entry}
    source = guest("values_guest", "script_guest")
    lines = await ask(machine, source, question, timeout_s=task.grader.timeout_s)
    ok = [test for test in tests if lines.by_id.get(test, {}).get("ok") is True]
    whole = bool(tests) and len(ok) == len(tests) == lines.ended and not lines.result.timed_out
    evidence = None
    if not whole:
        first = next((test for test in tests if test not in ok), "the end")
        record = lines.by_id.get(first)
        ended = "ran out of time" if lines.result.timed_out else f"no record (status {lines.result.return_code})"
        evidence = f"{first}: {record.get('error') if record else ended}"
    return {
        "passed": Score(value=float(whole), grader="script", evidence=evidence),
        "tests": Score(value=len(ok) / len(tests) if tests else 0.0, weight=0.0, grader="script"),
    }
