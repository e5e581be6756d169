"""What a task set is, and which there are."""

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, runtime_checkable

from twinmill.records.tasks import Task

IMPOSSIBLE = "impossible"
"""tag, and name of the split, of tasks whose tests contradict their instruction: the right reward is 0"""


class TaskSet(Protocol):
    """Tasks by id. Loading is a pure function of the id."""

    name: str

    def ids(self, split: str) -> Sequence[str]:
        """All ids of a split, in a fixed order. ValueError names the splits there are."""
        ...

    def load(self, task_id: str) -> Task: ...

    def oracle(self, task_id: str) -> dict[str, str]:
        """path -> right text of what a solution changes. Never laid into an agent's machine."""
        ...


@runtime_checkable
class PlayedOracle(Protocol):
    """A task set whose solutions are commands: the oracle's files are laid into a machine of the task, the command
    runs, and what it changed is the solution."""

    def oracle_command(self, task_id: str) -> tuple[str, ...]: ...


TASKSETS = {
    "tinyrepo": "twinmill.data.tasks.tinyrepo:TinyRepo",
    "unopened": "twinmill.data.tasks.unopened:Unopened",
    "humaneval": "twinmill.data.tasks.humaneval:HumanEval",
    "harbor": "twinmill.data.tasks.harbor:Harbor",
    "exploitable": "twinmill.data.tasks.exploitable:Exploitable",
    "dbmigrate": "twinmill.data.tasks.dbmigrate:DbMigrate",
    "waiting": "twinmill.data.tasks.waiting:Waiting",
}


def open_taskset(spec: str) -> TaskSet:
    """ "tinyrepo:LEVEL", "unopened", "dbmigrate:KIND", "humaneval", "harbor:FOLDER", "waiting:MEDIAN_S:ANOTHER",
    "exploitable:LEVEL"."""
    name, _, argument = spec.partition(":")
    if name not in TASKSETS:
        raise ValueError(f"no task set {name!r}; there are {', '.join(TASKSETS)}")
    module, _, cls = TASKSETS[name].partition(":")
    made = getattr(import_module(module), cls)
    opened: TaskSet = made(argument) if argument else made()
    return opened
