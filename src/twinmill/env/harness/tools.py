"""The agent's tools: what the model sees (SPECS) and what each does to a machine (TOOLS).

A tool either answers with text, or raises one of two kinds of error: `ToolError` is the model's own mistake, told to it
in words; an InfrastructureError of the machine passes through and ends the episode ungraded. Text is byte-stable: no
timings, no temporary paths.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from twinmill.env.machine.base import Machine
from twinmill.records.tasks import Task, ToolSpec


class ToolError(Exception):
    """The model's own mistake: a path that is not there, a line out of range. Counted, never infrastructure."""


SPECS = {
    spec.name: spec
    for spec in (
        ToolSpec(name="read", description="Show a file with numbered lines.", parameters={"path": "string"}),
        ToolSpec(
            name="replace",
            description="Replace one line of a file, counted from 1, by the given text (which may hold several lines).",
            parameters={"path": "string", "line": "integer", "text": "string"},
        ),
        ToolSpec(name="write", description="Write a whole file.", parameters={"path": "string", "text": "string"}),
        ToolSpec(name="list", description="List the files of the workspace.", parameters={}),
        ToolSpec(
            name="search",
            description="Lines of all files that match a regular expression.",
            parameters={"pattern": "string"},
        ),
        ToolSpec(name="run", description="Run a shell command in the workspace.", parameters={"command": "string"}),
        ToolSpec(name="test", description="Run the tests.", parameters={}),
        ToolSpec(name="finish", description="Say that the task is done.", parameters={}),
    )
}


@dataclass(frozen=True)
class Scene:
    """What a tool may touch."""

    machine: Machine
    task: Task
    deadline_s: float = 10.0
    """of one command"""
    waits: Iterator[float] | None = None
    """seconds that each call waits before its work (Task.tool_wait); None = no call waits"""


OUTPUT_CHARS = 4000
_LISTED = 200


def _clip(text: str) -> str:
    return (
        text if len(text) <= OUTPUT_CHARS else text[:OUTPUT_CHARS] + f"\n... {len(text) - OUTPUT_CHARS} more characters"
    )


async def _text(scene: Scene, path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path:
        raise ToolError(f"path must lie in the workspace: {path}")
    files = await scene.machine.get([_literal(path)])
    if path not in files:
        raise ToolError(f"no file {path}")
    try:
        return files[path].decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not text") from None


def _literal(path: str) -> str:
    """A glob that matches this path only."""
    return re.sub(r"([*?\[])", r"[\1]", path)


async def read(scene: Scene, path: str) -> str:
    lines = (await _text(scene, path)).rstrip("\n").split("\n")
    return _clip("\n".join(f"{i}|{line}" for i, line in enumerate(lines, 1)))


async def replace(scene: Scene, path: str, line: int, text: str) -> str:
    lines = (await _text(scene, path)).rstrip("\n").split("\n")
    if not 1 <= line <= len(lines):
        raise ToolError(f"{path} has {len(lines)} lines")
    if lines[line - 1] == text:  # whoever repeats an edit that did not help should hear it
        raise ToolError(f"line {line} reads so already")
    lines[line - 1] = text
    await _put(scene, path, "\n".join(lines) + "\n")
    return "ok"


async def write(scene: Scene, path: str, text: str) -> str:
    await _put(scene, path, text)
    return "ok"


async def _put(scene: Scene, path: str, text: str) -> None:
    try:
        await scene.machine.put({path: text.encode()})
    except (ValueError, OSError) as error:
        raise ToolError(str(error)) from None


async def list_files(scene: Scene) -> str:
    paths = sorted(await scene.machine.get(["**"]))
    return "\n".join(paths[:_LISTED]) or "(empty)"


async def search(scene: Scene, pattern: str) -> str:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ToolError(f"bad pattern: {error}") from None
    hits = []
    for path, data in sorted((await scene.machine.get(["**"])).items()):
        for i, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            if wanted.search(line):
                hits.append(f"{path}:{i}|{line}")
    return _clip("\n".join(hits[:_LISTED])) or "no match"


async def run(scene: Scene, command: str) -> str:
    result = await scene.machine.exec(["sh", "-c", command], timeout_s=scene.deadline_s)
    tail = "timed out" if result.timed_out else f"exit {result.return_code}"
    return _clip(result.stdout + result.stderr) + tail


async def test(scene: Scene) -> str:
    from twinmill.env.reward.public import run_public_cases

    return await run_public_cases(scene.machine, scene.task.public_cases, timeout_s=scene.deadline_s)


async def finish(scene: Scene) -> str:
    return ""


Tool = Callable[..., Awaitable[str]]
TOOLS: dict[str, Tool] = {
    "read": read, "replace": replace, "write": write, "list": list_files, "search": search, "run": run, "test": test,
    "finish": finish,
}  # fmt: skip


async def use(scene: Scene, name: str, arguments: dict[str, Any]) -> str:
    """One call. Raises ToolError for the model's mistakes; infrastructure errors pass through."""
    if scene.waits is not None:
        await asyncio.sleep(next(scene.waits))
    return await TOOLS[name](scene, **arguments)
