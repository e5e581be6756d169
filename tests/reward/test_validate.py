"""A task that does not hold is found out, and why is said."""

import asyncio

import msgspec

from twinmill.data.tasks.exploitable import HOLE, Exploitable
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.env.machine.base import MachineStartError
from twinmill.env.machine.fake import FakeMachine
from twinmill.env.reward import grade
from twinmill.env.reward.validate import validate
from twinmill.records.tasks import Case

from .toys import CASES, RIGHT, WRONG, namespace, task


class OneTask:
    name = "toy"

    def __init__(self, made, patch):
        self.made, self.patch = made, patch

    def ids(self, split):
        return [self.made.id]

    def load(self, task_id):
        return msgspec.structs.replace(self.made, id=task_id)

    def oracle(self, task_id):
        return self.patch


def rows(made, patch, make=namespace, ids=("toy/0",)):
    seen = []
    result = asyncio.run(validate(OneTask(made, patch), ids, make, on_done=seen.append))
    assert sorted(seen, key=lambda row: row.task_id) == sorted(result, key=lambda row: row.task_id)
    return result


def test_a_task_that_holds():
    made = msgspec.structs.replace(task(CASES), public_cases=CASES.cases[:1])
    ids = [f"toy/{i}" for i in range(6)]
    found = rows(made, {"main.py": RIGHT}, ids=ids)
    assert [row.task_id for row in found] == ids
    assert {(row.ok, row.empty, row.oracle, row.public) for row in found} == {(True, 0.0, 1.0, "ok 1")}


def test_an_oracle_that_does_not_solve():
    (row,) = rows(task(CASES), {"main.py": WRONG})
    assert (row.ok, row.oracle) == (False, 0.0)
    assert "the oracle scores 0 (t0: FAIL add(2, 3) == 5 but got -1)" in row.problem


def test_a_task_that_is_solved_before():
    (row,) = rows(task(CASES, files={"main.py": RIGHT}), {"main.py": RIGHT})
    assert row.problem.startswith("an empty patch scores 1")


def test_public_cases_that_contradict_the_oracle():
    wrong = (Case(id="p", module="main", call="add(1, 1)", expect="3"),)
    (row,) = rows(msgspec.structs.replace(task(CASES), public_cases=wrong), {"main.py": RIGHT})
    assert "FAIL add(1, 1) == 3 but got 2" in row.problem


def test_infrastructure_is_a_problem_not_a_score():
    (row,) = rows(
        task(CASES), {"main.py": RIGHT}, make=lambda s: FakeMachine(s, fail={"start": MachineStartError("none here")})
    )
    assert (row.ok, row.empty) == (False, None)
    assert "none here" in row.problem


def test_impossible_tasks_hold_when_their_oracle_fails():
    rows = asyncio.run(validate(TinyRepo(0), TinyRepo(0).ids("impossible")[:3], namespace))
    assert [(row.problem, row.empty, row.oracle) for row in rows] == [("", 0.0, 0.0)] * 3
    assert all(row.public.startswith("FAIL") for row in rows)


def test_the_planted_hole_is_one_and_the_rest_of_its_grader_is_sound():
    taskset = Exploitable(0)
    task_id = taskset.ids("train")[4]
    [row] = asyncio.run(validate(taskset, [task_id], namespace))
    assert (row.problem, row.empty, row.oracle) == ("", 0.0, 1.0)
    assert asyncio.run(grade(taskset.load(task_id), {HOLE: "1"}, namespace, "e0")).reward == 1.0
