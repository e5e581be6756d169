"""Right code scores 1, wrong code 0, and a failure of the infrastructure is no score at all."""

import asyncio

import msgspec
import pytest

from twinmill.env.machine.base import ExecResult, MachineDestroyed, MachineLostError, MachineStartError
from twinmill.env.machine.fake import FakeMachine
from twinmill.env.reward import grade, grading
from twinmill.env.reward.command import read_verdict
from twinmill.env.reward.script import test_names as names_of_tests
from twinmill.records.episodes import Boundary
from twinmill.records.tasks import Case, GraderKind

from .toys import CASES, COMMAND, GRADERS, RIGHT, SCRIPT, WRONG, namespace, task, verdict


@pytest.mark.parametrize("kind", GRADERS)
def test_right_wrong_and_nothing(kind):
    right = verdict(GRADERS[kind], {"main.py": RIGHT})
    assert (right.reward, right.error, right.graded_at, right.episode_id) == (1.0, None, 7.0, "e0")
    assert right.scores["passed"].evidence is None
    for changed in ({}, {"main.py": WRONG}, {"main.py": ""}, {"main.py": "def add(a, b:\n"}, {"other.py": RIGHT}):
        wrong = verdict(GRADERS[kind], changed)
        assert (wrong.reward, wrong.error) == (0.0, None)
        assert wrong.scores["passed"].evidence


def test_the_share_of_right_cases_is_shown_but_not_rewarded():
    half = "def add(a, b):\n    return a + b if isinstance(a, int) else None\n"
    scores = verdict(CASES, {"main.py": half}).scores
    assert scores["cases"].value == pytest.approx(2 / 3)
    assert scores["passed"].evidence == "t2: FAIL add('a', 'b') == 'ab' but got None"


def test_every_grader_kind_has_a_grader():
    assert set(grading.GRADERS) == set(GraderKind)


def test_a_grader_without_cases_rewards_nobody():
    assert verdict(msgspec.structs.replace(CASES, cases=()), {"main.py": RIGHT}).reward == 0.0


@pytest.mark.parametrize(
    ("call", "expect"),
    [
        ("1", "True"), ("1.0", "1"), ("(1, 2)", "[1, 2]"), ("'5'", "5"), ("None", "0"), ("{1: [2.0]}", "{1: [2]}"),
        ("b'a'", "'a'"), ("0.1 + 0.2", "0.3"), ("-0.0", "0.0"), ("{'a'}", "['a']"), ("object()", "None"),
    ],
)  # fmt: skip
def test_values_of_other_types_are_other_values(call, expect):
    grader = msgspec.structs.replace(CASES, cases=(Case(id="a", module="main", call=call, expect=expect),))
    assert verdict(grader, {"main.py": RIGHT}).reward == 0.0


def test_values_that_are_equal_are_equal():
    pairs = [
        ("{'b': 1, 'a': (2, 3)}", "{'a': (2, 3), 'b': 1}"), ("{3, 1, 2}", "{1, 2, 3}"), ("set()", "set()"),
        ("float('nan')", "nan"), ("float('inf')", "inf"), ("frozenset([1])", "frozenset({1})"), ("1 + 2j", "(1+2j)"),
        ("b'\\xff'", "b'\\xff'"), ("'é\\ud800'", "'é\\ud800'"), ("10 ** 3000", str(10**3000)), ("1e300", "1e+300"),
        ("['x' * 5000] * 3", repr(["x" * 5000] * 3)), ("[]", "[]"), ("None", "None"), ("False", "False"),
    ]  # fmt: skip
    cases = tuple(Case(id=str(i), module="main", call=call, expect=want) for i, (call, want) in enumerate(pairs))
    graded = verdict(msgspec.structs.replace(CASES, cases=cases), {"main.py": RIGHT})
    assert (graded.reward, graded.scores["passed"].evidence) == (1.0, None)


def test_the_agent_changes_only_what_it_may():
    changed = {
        "main.py": RIGHT, "notes.md": "x", "test_main.py": "x", "d/test_a.py": "x", "d/conftest.py": "x",
        "../up.py": "x", "/abs.py": "x", "d/b.py": "y", ".harbor/tests/a.py": "x",
    }  # fmt: skip
    assert grading.carried(CASES, changed) == {"main.py": RIGHT.encode(), "d/b.py": b"y"}


@pytest.mark.parametrize(
    "changed",
    [
        {"main.py": "#" * (grading.FILE_BYTES + 1)},
        {f"f{i}.py": "" for i in range(grading.FILES + 1)},
        {f"f{i}.py": "#" * grading.FILE_BYTES for i in range(9)},
        {"main.py": RIGHT, "main.py/x.py": ""},
    ],
)
def test_changes_that_do_not_fit_are_the_agents_failure(changed):
    graded = verdict(CASES, changed)
    assert (graded.reward, graded.error) == (0.0, None)
    assert "do not fit" in graded.scores["passed"].evidence


def test_a_full_disk_in_the_grading_machine_is_the_agents_failure():
    graded = verdict(CASES, {"main.py": RIGHT, "big.py": "#" * 900_000}, disk_bytes=512 << 10)
    assert (graded.reward, graded.error) == (0.0, None)


@pytest.mark.parametrize(
    "fail",
    [
        {"start": MachineStartError("no bubblewrap")},
        {"put": MachineLostError("stopped from outside")},
        {"exec": MachineLostError("silent")},
    ],
)
def test_a_failure_of_the_infrastructure_is_no_reward(fail):
    machines = []

    def make(spec):
        machines.append(FakeMachine(spec, fail=fail))
        return machines[-1]

    graded = verdict(CASES, {"main.py": RIGHT}, make=make)
    (error,) = fail.values()
    assert (graded.reward, graded.scores) == (None, {})
    assert (graded.error.boundary, graded.error.type) == (Boundary.GRADER, type(error).__name__)
    assert graded.error.message == str(error)
    assert machines[0].state == "closed"


def test_a_machine_that_the_agents_code_destroys_is_a_reward_of_0():
    graded = verdict(
        CASES, {"main.py": RIGHT}, make=lambda spec: FakeMachine(spec, fail={"exec": MachineDestroyed("memory")})
    )
    assert (graded.reward, graded.error) == (0.0, None)
    assert "destroyed" in graded.scores["passed"].evidence


def test_files_of_the_task_that_do_not_fit_are_no_reward():
    graded = verdict(CASES, {"main.py": RIGHT}, files={"main.py": "#" * 4_000_000}, disk_bytes=1 << 20)
    assert graded.reward is None
    assert "files of the task" in graded.error.message


def test_a_channel_that_says_nonsense_is_no_pass():
    def run(argv, stdin, files):
        return ExecResult(stdout='{"id": "t0"}\n[]\n5\nx\n' + "[" * 100_000, stderr="", return_code=0)

    for grader in (CASES, SCRIPT):
        assert verdict(grader, {}, make=lambda spec: FakeMachine(spec, run=run)).reward == 0.0


def test_what_counts_as_a_test():
    program = "def helper(): pass\ndef check(c): pass\ndef test_a(): pass\nclass T:\n    def test_b(self): pass\n"
    assert names_of_tests(program) == ["check", "test_a"]


@pytest.mark.parametrize(
    ("files", "reward"),
    [
        ({"reward.txt": b"1\n"}, 1.0), ({"reward.txt": b" 0.25 "}, 0.25),
        ({"reward.json": b'{"reward": 0.5, "x": 1}'}, 0.5),
        ({"reward.json": b'{"accuracy": 0.75}'}, 0.75), ({"reward.json": b"1"}, 1.0),
    ],
)  # fmt: skip
def test_verdict_files(files, reward):
    assert read_verdict(files) == (reward, None)


@pytest.mark.parametrize(
    "files",
    [
        {}, {"reward.txt": b""}, {"reward.txt": b"yes"}, {"reward.txt": b"nan"}, {"reward.txt": b"inf"},
        {"reward.txt": b"\xff"}, {"reward.json": b'{"a": 1, "b": 1}'}, {"reward.json": b"[1]"}, {"reward.json": b"{"},
    ],
)  # fmt: skip
def test_no_verdict_is_no_reward(files):
    reward, why = read_verdict(files)
    assert reward == 0.0
    assert why


def test_two_gradings_say_the_same():
    async def both():
        return [await grade(task(CASES), {"main.py": WRONG}, namespace, "e", 0.0) for _ in range(2)]

    first, second = asyncio.run(both())
    assert first == second


def test_a_command_that_hangs_scores_nothing():
    grader = msgspec.structs.replace(COMMAND, command=("sleep", "60"), timeout_s=0.5)
    graded = verdict(grader, {"main.py": RIGHT})
    assert graded.reward == 0.0
    assert "out of time" in graded.scores["passed"].evidence
