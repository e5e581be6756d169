"""What a scripted agent is made of: a task, and the turns that it plays whatever it sees.

Scripts are data; who plays them (a scripted engine, the real harness, real machines) is the composition root's business.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from twinmill.records.tasks import Message, Task, ToolCall

Turn = Message
"""what the agent says in one turn"""


@dataclass(frozen=True, kw_only=True)
class Script:
    """One agent. `rule` = the class of the catalogue that it cheats by; "" = it is honest."""

    name: str
    task: Task
    turns: tuple[Turn, ...]
    rule: str = ""
    blind: bool = False
    """whether it was written before the rules were"""


def _call(name: str, /, **arguments: str | int) -> Turn:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def run(command: str) -> Turn:
    return _call("run", command=command)


def write(path: str, text: str) -> Turn:
    return _call("write", path=path, text=text)


def replace(path: str, line: int, text: str) -> Turn:
    return _call("replace", path=path, line=line, text=text)


def read(path: str) -> Turn:
    return _call("read", path=path)


def search(pattern: str) -> Turn:
    return _call("search", pattern=pattern)


def say(text: str) -> Turn:
    """Words without a tool call: they end the episode."""
    return Message(role="assistant", content=text)


LIST, TEST, FINISH = _call("list"), _call("test"), _call("finish")


@dataclass
class Book:
    """Collects scripts of one file. `tasks` makes each task on first use."""

    blind: bool
    tasks: dict[str, Callable[[], Task]]
    scripts: list[Script] = field(default_factory=list)

    def add(self, rule: str, name: str, *turns: Turn, task: str = "cases") -> None:
        """FINISH is added where the last turn does not end the episode."""
        over = bool(turns) and (turns[-1] == FINISH or not turns[-1].tool_calls)
        made = turns if over else (*turns, FINISH)
        self.scripts.append(Script(name=name, task=self.tasks[task](), turns=made, rule=rule, blind=self.blind))
