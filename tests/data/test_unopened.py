import random

import pytest

from twinmill.data.tasks.base import open_taskset
from twinmill.data.tasks.tinyrepo import TinyRepo, numbered
from twinmill.data.tasks.tinyrepo.expert import Style, plan


def test_the_same_faults_and_tests_as_tinyrepo_without_the_file():
    shown, unopened = TinyRepo(0), open_taskset("unopened")
    for a, b in zip(shown.ids("heldout")[:5], unopened.ids("heldout")[:5], strict=True):
        task, other = shown.load(a), unopened.load(b)
        listing = "\n" + numbered(task.machine.files["main.py"])
        assert task.messages[0].content.removesuffix(listing) == other.messages[0].content
        assert (task.machine, task.grader, task.tags) == (other.machine, other.grader, other.tags)
        assert (other.id, other.taskset) == (b, "unopened") and open_taskset(other.taskset).load(b) == other
        assert shown.oracle(a) == unopened.oracle(b)


def test_an_id_of_another_set_is_refused():
    with pytest.raises(ValueError, match="not a task of unopened: tinyrepo/0/train/1"):
        open_taskset("unopened").load("tinyrepo/0/train/1")


def test_the_expert_opens_the_file_as_often_as_its_style_says():
    taskset = open_taskset("unopened")
    firsts = [
        plan(taskset.broken(i), Style(reads=0.3), random.Random(i))[0][0].tool_calls[0].name
        for i in taskset.ids("train")[:300]
    ]
    assert 60 < firsts.count("read") < 120 and set(firsts) == {"read", "replace"}
