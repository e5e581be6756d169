"""What the rules look at: an attempt laid out as acts, the code it added, and what it left. Built once per episode."""

import ast
import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from twinmill.env.machine.paths import matches
from twinmill.records.episodes import Episode, Traces, Turn, Verdict
from twinmill.records.tasks import Task

from .plain import inline_python, parsed, plain

Decode = Callable[[Sequence[int]], str]

TEST_FILES = ("test_*.py", "**/test_*.py", "*_test.py", "**/*_test.py", "tests/**", "**/tests/**")
TEST_SURFACE = (
    *TEST_FILES, "**/conftest.py", "**/pytest.ini", "**/.pytest.ini", "**/pyproject.toml", "**/setup.cfg", "**/tox.ini",
    "**/.coveragerc", "**/noxfile.py", ".github/**", ".gitlab-ci.yml",
)  # fmt: skip
"""files that decide which tests run, and what counts as passing"""
QUOTE = 160
"""characters of a quotation in evidence"""


@dataclass(frozen=True)
class Act:
    """One tool call."""

    turn: int
    name: str
    arguments: dict[str, str]
    observation: str
    """what its turn saw: of all calls of the turn together"""

    @cached_property
    def plain(self) -> str:
        """Everything it says, made plain, for patterns."""
        return plain("\n".join(self.arguments.values()))

    @property
    def shell(self) -> str:
        """Its command, made plain; "" = it is no command."""
        return self.plain if self.name == "run" else ""

    @property
    def path(self) -> str:
        """The file it names, workspace-relative where that is meant; "" = none."""
        return re.sub(r"^(\./|/work/|/app/)+", "", self.arguments.get("path", ""))

    def quote(self, found: str) -> str:
        return f"turn {self.turn}, {self.name}: {shorten(found)}"


@dataclass(frozen=True)
class Source:
    """Python that the attempt left, beside what was there."""

    path: str
    text: str
    before: str | None
    """None = a new file"""

    @cached_property
    def is_test(self) -> bool:
        return matches(self.path, TEST_FILES)

    @cached_property
    def added(self) -> frozenset[int]:
        """Numbers, from 1, of the lines that were not there."""
        if self.before is None:
            return frozenset(range(1, self.text.count("\n") + 2))
        blocks = difflib.SequenceMatcher(None, self.before.split("\n"), self.text.split("\n"), autojunk=False)
        return frozenset(
            line
            for tag, _, _, start, end in blocks.get_opcodes()
            if tag != "equal"
            for line in range(start + 1, end + 1)
        )

    @cached_property
    def tree(self) -> ast.Module | None:
        """None = it is no Python."""
        return parsed(self.text)

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Nodes of these kinds that begin on an added line, or hold one (functions, classes, loops)."""
        for node in ast.walk(self.tree) if self.tree else ():
            if isinstance(node, kinds) and not self.added.isdisjoint(
                range(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) + 1)
            ):
                yield node

    def quote(self, node: ast.AST) -> str:
        found = ast.get_source_segment(self.text, node) or ""
        return f"left in {self.path}:{getattr(node, 'lineno', 0)}: {shorten(found)}"

    @cached_property
    def added_text(self) -> str:
        """The added lines, made plain."""
        lines = self.text.split("\n")
        return plain("\n".join(lines[i - 1] for i in sorted(self.added) if i <= len(lines)))


@dataclass(frozen=True)
class Trail:
    task: Task
    episode: Episode
    verdict: Verdict
    acts: tuple[Act, ...]
    said: tuple[tuple[int, str], ...]
    """(turn, words) of the turns without a tool call; empty without a decoder"""
    sources: tuple[Source, ...]
    """Python files that differ at the end, tests included"""
    traces: Traces

    @property
    def changed(self) -> dict[str, str]:
        return self.episode.machine_after or {}

    @cached_property
    def written(self) -> dict[str, str]:
        """path -> text of everything that differs at the end, carried over or not."""
        return {**self.traces.written, **self.changed}

    @property
    def code(self) -> Iterator[Source]:
        """Sources that are no tests."""
        return (source for source in self.sources if not source.is_test)

    def new(self, path: str) -> bool:
        """Whether the task came without this file."""
        return path not in self.task.machine.files

    def programs(self) -> Iterator[tuple[str, Source]]:
        """(where, source) of every Python program, left behind or only run: `python3 -c`, here-documents, written files
        that are gone again."""
        for source in self.code:
            yield f"left in {source.path}", source
        for act in self.acts:
            texts = inline_python(act.arguments.get("command", "")) if act.name == "run" else []
            if act.name == "write" and act.path.endswith(".py") and not matches(act.path, TEST_FILES):
                texts = [act.arguments["text"]]
            for text in texts:
                before = self.task.machine.files.get(act.path) if act.name == "write" else None
                yield f"turn {act.turn}, {act.name}", Source(act.path or "<command>", text, before)


def trail_of(task: Task, episode: Episode, verdict: Verdict, decode: Decode | None = None) -> Trail:
    turns = [turn for segment in episode.segments for turn in segment.turns]
    before = task.machine.files
    after = {**(episode.traces.written if episode.traces else {}), **(episode.machine_after or {})}
    return Trail(
        task=task,
        episode=episode,
        verdict=verdict,
        acts=tuple(act for i, turn in enumerate(turns) for act in _acts(i, turn)),
        said=tuple(
            (i, decode(turn.sampled_ids)) for i, turn in enumerate(turns) if decode is not None and not turn.tool_calls
        ),
        sources=tuple(Source(path, text, before.get(path)) for path, text in after.items() if path.endswith(".py")),
        traces=episode.traces or Traces(),
    )


def _acts(number: int, turn: Turn) -> Iterator[Act]:
    for call in turn.tool_calls:
        if call.name != "finish":
            arguments = {name: str(value) for name, value in call.arguments.items()}
            yield Act(number, call.name, arguments, turn.observation or "")


def shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= QUOTE else text[: QUOTE - 3] + "..."
