"""Shared by the tests of this folder: one small task for each grader kind, graded in real machines."""

import asyncio

from twinmill.env.machine import make_machine
from twinmill.env.reward import grade
from twinmill.records.tasks import Budget, Case, Grader, GraderKind, MachineSpec, Message, Task

RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
SECRET = "the-answer-" + "9b1c4e"

CASES = Grader(
    kind=GraderKind.CASES,
    cases=(
        Case(id="t0", module="main", call="add(2, 3)", expect="5"),
        Case(id="t1", module="main", call="[add(i, 1) for i in range(3)]", expect="[1, 2, 3]"),
        Case(id="t2", module="main", call="add('a', 'b')", expect="'ab'"),
    ),
    timeout_s=2.0,
)
SCRIPT = Grader(
    kind=GraderKind.SCRIPT,
    files={
        "check.py": (
            "def check(candidate):\n"
            "    assert candidate(2, 3) == 5\n"
            f"    assert candidate('the-answer-', {SECRET[11:]!r}) == {SECRET!r}\n"
            "    assert candidate([1], [2]) == [1, 2]\n"
            "def test_types():\n    assert isinstance(candidate(1, 1), int)\n"
        )
    },
    command=("check.py", "main", "add"),
    timeout_s=2.0,
)
COMMAND = Grader(
    kind=GraderKind.COMMAND,
    files={
        ".harbor/tests/test.sh": "cd /app\necho 0 > /logs/verifier/reward.txt\npython3 /tests/check.py\n",
        ".harbor/tests/check.py": (
            "import sys; sys.path.insert(0, '/app')\n"
            "from main import add\n"
            "assert add(2, 3) == 5 and add('a', 'b') == 'ab'\n"
            "open('/logs/verifier/reward.txt', 'w').write('1')\n"
        ),
    },
    command=("bash", "/tests/test.sh"),
    allow=("**",),
    deny=(".harbor/**",),
    timeout_s=2.0,
)
GRADERS = {"cases": CASES, "script": SCRIPT, "command": COMMAND}


def task(grader, **spec):
    return Task(
        id="toy/0",
        taskset="toy",
        messages=(Message(role="user", content="Fix main.py."),),
        machine=MachineSpec(**{"files": {"main.py": WRONG}, "memory_bytes": 256 << 20, **spec}),
        tools=(),
        budget=Budget(),
        grader=grader,
    )


def namespace(spec):
    return make_machine("namespace", spec)


def verdict(grader, changed, *, make=namespace, **spec):
    return asyncio.run(grade(task(grader, **spec), changed, make, "e0", 7.0))
