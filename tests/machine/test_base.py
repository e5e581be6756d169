"""Infrastructure failures are one branch of their own, and nothing in it can become a reward."""

import asyncio

import pytest

from twinmill.env.machine import base
from twinmill.env.machine.fake import FakeMachine
from twinmill.env.reward.grading import grade
from twinmill.records.tasks import Budget, Case, Grader, GraderKind, MachineSpec, Task


def branch(root):
    return {root} | {x for child in root.__subclasses__() if child.__module__ == base.__name__ for x in branch(child)}


def test_the_tree_is_drawn_as_it_is():
    drawn = base.__doc__
    for error in branch(base.InfrastructureError) | {base.MachineDestroyed}:
        assert f" {error.__name__} " in drawn, f"{error.__name__} is not in the drawing"
    assert not issubclass(base.MachineDestroyed, base.InfrastructureError)
    assert not any(issubclass(error, OSError | ValueError) for error in branch(base.InfrastructureError))


@pytest.mark.parametrize("error", sorted(branch(base.InfrastructureError), key=lambda e: e.__name__))
@pytest.mark.parametrize("method", ["start", "put", "exec"])
def test_no_infrastructure_failure_becomes_a_reward(error, method):
    task = Task(
        id="t", taskset="t", messages=(), machine=MachineSpec(files={"main.py": "x = 1\n"}), tools=(), budget=Budget(),
        grader=Grader(kind=GraderKind.CASES, cases=(Case(id="a", module="main", call="x", expect="1"),)),
    )  # fmt: skip

    def make(spec):
        return FakeMachine(spec, fail={method: error("gone")})

    verdict = asyncio.run(grade(task, {"main.py": "x = 2\n"}, make, "e"))
    assert verdict.reward is None
