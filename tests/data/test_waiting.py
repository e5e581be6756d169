"""The task set `waiting` changes nothing of another set's tasks but how long their tools take."""

import msgspec
import pytest

from twinmill.data.tasks.base import open_taskset
from twinmill.records.tasks import ToolWait


def test_tasks_are_the_other_sets_with_a_declared_wait():
    waiting, other = open_taskset("waiting:0.5:tinyrepo:0"), open_taskset("tinyrepo:0")
    task_id = other.ids("heldout")[3]
    assert waiting.ids("heldout")[3] == task_id
    task, plain = waiting.load(task_id), other.load(task_id)
    assert task.tool_wait == ToolWait(median_s=0.5, p99_over_p50=20.0)
    assert task.taskset == "waiting:0.5:tinyrepo:0"
    assert msgspec.structs.replace(task, tool_wait=None, taskset=plain.taskset) == plain
    assert waiting.oracle(task_id) == other.oracle(task_id)


@pytest.mark.parametrize("spec", ["waiting", "waiting:tinyrepo:0", "waiting:-1:tinyrepo:0"])
def test_a_set_without_a_time_is_refused_by_name(spec):
    with pytest.raises(ValueError, match="waiting:SECONDS:TASKSET"):
        open_taskset(spec)
