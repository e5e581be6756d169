"""The `test` tool's words are short, byte-stable, and the same as the task generator's."""

import asyncio

import pytest

from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.data.tasks.tinyrepo.cases import report
from twinmill.env.machine import make_machine
from twinmill.env.reward.public import run_public_cases
from twinmill.records.tasks import Case, MachineSpec

CASES = (
    Case(id="a", module="main", call="add(2, 3)", expect="5"),
    Case(id="b", module="main", call="add([1], [2])", expect="[1, 2]"),
)


def said(files, cases=CASES, timeout_s=5.0):
    async def body():
        machine = make_machine("namespace", MachineSpec(files=files))
        await machine.start()
        try:
            text = await run_public_cases(machine, cases, timeout_s=timeout_s)
            assert sorted(await machine.get(["**"])) == sorted(files)  # the tool leaves nothing behind
            return text
        finally:
            await machine.close()

    return asyncio.run(body())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def add(a, b): return a + b", "ok 2"),
        ("def add(a, b): return 1", "FAIL add(2, 3) == 5 but got 1"),
        ("def add(a, b): return a + b if a == 2 else a", "FAIL add([1], [2]) == [1, 2] but got [1]"),
        ("def add(a, b): return x", "FAIL add(2, 3) == 5 but raised NameError: name 'x' is not defined"),
        ("def add(a, b): exit(1)", "FAIL add(2, 3) == 5 but raised SystemExit: 1"),
        ("import os\ndef add(a, b): os._exit(1)", "FAIL add(2, 3) == 5 but the process ended"),
        ("def add(a, b):\n    while 1: pass", "FAIL add(2, 3) == 5 but ran out of time"),
        ("x = 1\n\ndef add(a, b)\n    return a", "SyntaxError: expected ':' line 3"),
        ("if 1:\nx", "IndentationError: expected an indented block after 'if' statement on line 1 l..."),
        ("for i in 1:\n" + " " * 8 + "x =", "SyntaxError: invalid syntax line 2"),
        ("import nothing", "FAIL add(2, 3) == 5 but raised ModuleNotFoundError: No module named 'nothing'"),
        ("", "FAIL add(2, 3) == 5 but raised NameError: name 'add' is not defined"),
        ("class A: pass\ndef add(a, b): return A()", "FAIL add(2, 3) == 5 but got an object of type A"),
        ("def add(a, b): raise ValueError(object())", "FAIL add(2, 3) == 5 but raised ValueError: <object object>"),
        ("def add(a, b): return 'x' * 500", "FAIL add(2, 3) == 5 but got '" + "x" * 76 + "..."),
        ("def add(a, b): return 5.0", "FAIL add(2, 3) == 5 but got 5.0"),
    ],
)  # fmt: skip
def test_words(source, text):
    assert said({"main.py": source}, timeout_s=1.0 if "while" in source else 5.0) == text


def test_without_cases_the_workspaces_own_tests_run():
    test = (
        "import unittest\nfrom main import add\n"
        "class T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
    )
    good = said({"main.py": "def add(a, b): return a + b", "test_main.py": test}, ())
    assert good.startswith("-" * 70 + "\nRan 1 test")
    assert good.endswith("OK")
    assert "Ran 1 test\n" in good  # without the time it took
    bad = said({"main.py": "def add(a, b): return 1", "test_main.py": test}, ())
    assert "AssertionError: 1 != 5" in bad


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_generator_says_the_same_without_a_machine(level):
    found = TinyRepo(level)
    for task_id in list(found.ids("train")[:8]) + list(found.ids("heldout")[:4]):
        task = found.load(task_id)
        good = {**task.machine.files, **found.oracle(task_id)}
        assert said(task.machine.files, task.public_cases) == report(task.machine.files, task.public_cases)
        assert said(good, task.public_cases) == f"ok {len(task.public_cases)}"
