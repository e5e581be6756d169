"""Task set `waiting:MEDIAN_S:OTHER`: the tasks of another set, whose tools wait as well.

The tools of the sets that this package ships answer in milliseconds. Those of real products do not: builds, databases,
queues, other people's services. `waiting:0.5:tinyrepo:0` is tinyrepo:0 in which every call of a tool takes, beside its
work, a lognormal time of median 0.5 s and p99/p50 = 20. The time is declared in the task and a pure function of the
attempt's seed, so the same slots wait the same in every run; it counts against the attempt's wall-clock budget.
Not covered: sets whose solutions are commands (PlayedOracle).
"""

from collections.abc import Sequence

import msgspec

from twinmill.records.tasks import Task, ToolWait

from .base import open_taskset

P99_OVER_P50 = 20.0


class Waiting:
    name = "waiting"

    def __init__(self, argument: str = ""):
        median, _, other = argument.partition(":")
        try:
            self.wait = ToolWait(median_s=float(median), p99_over_p50=P99_OVER_P50)
        except ValueError as error:
            raise ValueError(
                f"not waiting:SECONDS:TASKSET, as in waiting:0.5:tinyrepo:0: {argument!r} ({error})"
            ) from None
        self.other = open_taskset(other)

    def ids(self, split: str) -> Sequence[str]:
        """Those of the other set."""
        return self.other.ids(split)

    def load(self, task_id: str) -> Task:
        task = self.other.load(task_id)
        return msgspec.structs.replace(
            task, taskset=f"waiting:{self.wait.median_s:g}:{task.taskset}", tool_wait=self.wait
        )

    def oracle(self, task_id: str) -> dict[str, str]:
        return self.other.oracle(task_id)
