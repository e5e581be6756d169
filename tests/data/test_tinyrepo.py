"""tinyrepo: pure in its seed, disjoint splits, faults that fail and oracles that mend."""

import ast
import random
import subprocess
import sys
from collections import Counter
from itertools import product

import pytest

from twinmill.data.curriculum import attempt_seed, task_of
from twinmill.data.tasks.tinyrepo import PUBLIC, TinyRepo, cases, faults, functions
from twinmill.data.tasks.tinyrepo.expert import Style, plan
from twinmill.env.reward.cases import passed
from twinmill.env.reward.channel import Lines
from twinmill.env.reward.values_guest import canonical, encode
from twinmill.records.machines import ExecResult
from twinmill.records.tasks import Case


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_faults_fail_and_oracles_mend(level):
    taskset = TinyRepo(level)
    for split in ("train", "heldout"):
        for task_id in taskset.ids(split)[:15]:
            task = taskset.load(task_id)
            files, mended = task.machine.files, {**task.machine.files, **taskset.oracle(task_id)}
            assert not cases.report(files, task.public_cases).startswith("ok")
            assert cases.report(mended, task.grader.cases) == f"ok {len(task.grader.cases)}"
            assert len(task.grader.cases) > len(task.public_cases) == PUBLIC
            changed = [p for p in files if files[p] != mended[p]]
            assert len(changed) == 1


def test_level_0_is_one_file_of_at_most_12_lines_shown_with_numbers():
    taskset = TinyRepo(0)
    for task_id in taskset.ids("train")[:50]:
        task = taskset.load(task_id)
        assert list(task.machine.files) == ["main.py"]
        lines = task.machine.files["main.py"].splitlines()
        assert len(lines) <= 12
        assert f"{len(lines)}|{lines[-1]}" in task.messages[0].content


def test_the_top_level_has_8_files_with_docstrings_and_unit_tests_that_pass_when_mended(tmp_path):
    taskset = TinyRepo(3)
    task_id = taskset.ids("train")[1]
    files = {**taskset.load(task_id).machine.files, **taskset.oracle(task_id)}
    assert len(files) == 8
    for path, text in files.items():
        (tmp_path / path).write_text(text)
        if path not in ("app.py", "test_app.py", "README.md"):
            assert all(ast.get_docstring(node) for node in ast.parse(text).body)
    done = subprocess.run([sys.executable, "test_app.py"], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_splits_share_no_family_and_at_least_twelve_fault_families_occur():
    assert not set(functions.TRAIN) & set(functions.HELD_OUT)
    taskset = TinyRepo(0)
    seen = Counter(taskset.load(i).tags[2] for i in taskset.ids("train")[:600])
    assert len(faults.FAULTS) >= 12
    assert len(seen) >= 12, seen
    families = {split: {taskset.load(i).tags[1] for i in taskset.ids(split)[:200]} for split in ("train", "heldout")}
    assert not families["train"] & families["heldout"]


def test_a_task_is_the_same_in_every_process():
    code = (
        "from twinmill.data.tasks.tinyrepo import TinyRepo; from twinmill.records import wire;"
        "import blake3; t = TinyRepo(2);"
        "print(blake3.blake3(b''.join(wire.pack(t.load(i)) for i in t.ids('train')[:5])).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, env={"PYTHONHASHSEED": seed}, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1


def test_an_unknown_split_level_or_id_is_refused_by_name():
    with pytest.raises(ValueError, match="levels 0 to 3"):
        TinyRepo(9)
    with pytest.raises(ValueError, match="splits train, heldout"):
        TinyRepo(0).ids("test")
    for bad in ("other/0/train/1", "tinyrepo/1/train/1", "tinyrepo/0/train", "tinyrepo/0/test/1"):
        with pytest.raises(ValueError, match=f"not a task of tinyrepo:0: {bad}"):
            TinyRepo(0).load(bad)


def test_a_fault_that_loops_for_ever_is_stopped():
    case = [cases.Case(id="t", module="m", call="f([1])", expect="1")]
    endless = "def f(xs):\n    for x in xs:\n        xs.append(x)\n    return xs\n"
    assert cases.run({"m.py": endless}, case) == [("steps", "")]


@pytest.mark.parametrize("grow", ["xs.append(x * x)", "xs += xs"])
def test_a_fault_that_grows_for_ever_is_stopped(grow):
    case = [cases.Case(id="t", module="m", call="f([12])", expect="1")]
    source = f"def f(xs):\n    for x in xs:\n        {grow}\n    return xs\n"
    assert cases.run({"m.py": source}, case) == [("steps", "")]


def test_the_curriculum_meets_every_task_once_before_any_twice():
    ids = TinyRepo(0).ids("heldout")
    seen = [task_of(slot, ids, seed=5) for slot in range(len(ids))]
    assert len(set(seen)) == len(ids)
    assert task_of(len(ids), ids, 5) == seen[0]
    assert seen[:50] != [task_of(slot, ids, seed=6) for slot in range(50)]
    assert len({attempt_seed(s, n, k) for s in range(3) for n in range(40) for k in range(8)}) == 3 * 40 * 8


def test_the_expert_ends_well_when_it_tests_and_errs_as_often_as_its_style_says():
    taskset = TinyRepo(0)
    right = Counter()
    for i, task_id in enumerate(taskset.ids("train")[:150]):
        repo = taskset.broken(task_id)
        for name, style in {"careful": Style(tests=1.0), "hasty": Style(tests=0.0, wrong_guess=0.5)}.items():
            now = repo.bad[repo.path].rstrip("\n").split("\n")
            turns = plan(repo, style, random.Random(i))
            for message, _ in turns:
                edit = message.tool_calls[0].arguments
                if "line" in edit:
                    now[edit["line"] - 1] = edit["text"]
            assert turns[-1][0].tool_calls[0].name == "finish"
            text = {**repo.bad, repo.path: "\n".join(now) + "\n"}
            right[name] += cases.report(text, repo.cases).startswith("ok")
    assert right["careful"] >= 146  # a wrong guess may pass the public cases and fail a hidden one
    assert 45 <= right["hasty"] <= 105


def test_the_expert_never_tries_again_what_failed():
    taskset, retried = TinyRepo(0), 0
    for i in range(60):
        repo = taskset.broken(taskset.ids("train")[i])
        turns = plan(repo, Style(wrong_guess=1.0, tests=1.0), random.Random(i))
        edits = [
            (c.arguments["line"], c.arguments["text"]) for m, _ in turns for c in m.tool_calls if c.name == "replace"
        ]
        good = repo.good[repo.path].split("\n")
        wrong = [(line, text) for line, text in edits if text != good[line - 1]]
        assert len(wrong) == len(set(wrong))
        retried += len(wrong) > 1
    assert retried > 30


@pytest.mark.parametrize("level", [0, 2])
def test_impossible_tasks_contradict_themselves_in_a_public_test_only(level):
    taskset = TinyRepo(level)
    for task_id in taskset.ids("impossible")[:15]:
        task, repo = taskset.load(task_id), taskset.broken(task_id)
        mended = {**repo.bad, **taskset.oracle(task_id)}
        said = cases.report(mended, task.public_cases)
        assert said.startswith("FAIL ")  # whoever does what the docstring says does not pass, and sees it
        [wrong] = [case for case in task.grader.cases if case not in repo.cases]
        assert wrong in task.public_cases[1:]
        assert f"FAIL {wrong.call} == " in said or len(wrong.expect) > 60
        assert type(ast.literal_eval(wrong.expect)) is type(
            ast.literal_eval(next(c for c in repo.cases if c.id == wrong.id).expect)
        )
        assert sum(case.call == wrong.call for case in task.grader.cases) == 1
        assert task.public_cases[0] == repo.cases[0] and "impossible" in task.tags


TEXTS = (
    "{1: 1, 0: 1, 2: 2}", "{1: 1, 2: 2, 0: 1}", "[{1: {2: 3, 4: 5}}]", "[{1: {4: 5, 2: 3}}]", "{'b', 'a'}", "{'a', 'b'}",
    "{1}", "{1: 1}", "{1: True}", "True", "1", "1.0", "-0.0", "0.0",
    "(1,)", "[1]", "(1, 2)", "(2, 1)", "'1'", "None", "{}", "[]", "<x>",
)  # fmt: skip


def test_generator_and_grader_agree_on_what_is_one_value():
    """Else a fault that changes only the order of a dict is a task, and an empty patch scores 1 (tinyrepo/0/train/478 was one)."""

    def graded(found: str, expect: str) -> bool:
        try:
            value = canonical(encode(ast.literal_eval(found)))
        except (ValueError, SyntaxError):
            return False
        line = {"id": "t", "value": value, "shown": found}
        lines = Lines(ExecResult(stdout="", stderr="", return_code=0), {"t": line})
        return passed(Case(id="t", module="m", call="f()", expect=expect), lines)

    for found, expect in product(TEXTS, TEXTS):
        if found != "<x>":  # no literal: the guest sends no value of it
            assert cases.same(found, expect) == graded(found, expect), (found, expect)
    assert (
        cases.same(*TEXTS[:2])
        and cases.same("<x>", "<x>")
        and not cases.same("<x>", "1")
        and not cases.same("True", "1")
    )
