"""`twinmill tasks list | show | validate | play`."""

import asyncio
import random
import shlex
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress
from rich.syntax import Syntax
from rich.table import Table

from twinmill.cli.blocks import ConfigError
from twinmill.data.tasks.base import TASKSETS, TaskSet, open_taskset
from twinmill.env.harness.loop import changed_files
from twinmill.env.harness.tools import SPECS, Scene, ToolError, use
from twinmill.env.machine import make_machine
from twinmill.env.machine.base import Machine, MachineDestroyed
from twinmill.env.reward import grade
from twinmill.records.tasks import MachineSpec, Task

console = Console()


def spec_of(task_id: str) -> str:
    """The task set that an id belongs to: "tinyrepo/0/train/7" -> "tinyrepo:0"."""
    name, _, rest = task_id.partition("/")
    if name not in TASKSETS:
        raise ConfigError(f"no task set {name!r}; an id begins with one of {', '.join(TASKSETS)}")
    return f"{name}:{rest.partition('/')[0]}" if name in ("tinyrepo", "dbmigrate") else name


def _open(task_id: str, taskset: str | None) -> tuple[TaskSet, Task]:
    found = open_taskset(taskset or spec_of(task_id))
    return found, found.load(task_id)


def list_(taskset: str = "tinyrepo:0", *, split: str = "train", count: int = 20) -> None:
    """List tasks of a set.

    Args:
        taskset: tinyrepo:LEVEL, unopened, dbmigrate:KIND, humaneval, or harbor:FOLDER
    """
    found = open_taskset(taskset)
    ids = found.ids(split)
    table = Table("id", "instruction", "tools", "tags", title=f"{taskset} {split}: {len(ids):,} tasks")
    for task_id in ids[:count]:
        task = found.load(task_id)
        first = task.messages[0].content.split("\n", 1)[0]
        table.add_row(task.id, first[:70], str(len(task.tools)), " ".join(task.tags))
    console.print(table)


def show_(task_id: str, *, taskset: str | None = None, oracle: bool = False) -> None:
    """Show one task: instruction, files, budget; with --oracle also the right patch."""
    found, task = _open(task_id, taskset)
    console.print(Panel(task.messages[0].content, title=task.id))
    for path, text in task.machine.files.items():
        console.print(Panel(Syntax(text, "python" if path.endswith(".py") else "text", line_numbers=True), title=path))
    console.print(
        f"tools {', '.join(task.tools)}; budget {task.budget.turns} turns, {task.budget.sampled_tokens} sampled tokens, "
        f"{task.budget.wall_s:.0f} s; {len(task.grader.cases)} hidden cases; tags {' '.join(task.tags)}"
    )
    if oracle:
        for path, text in found.oracle(task_id).items():
            console.print(Panel(Syntax(text, "python", line_numbers=True), title=f"oracle: {path}"))


def validate_(taskset: str = "tinyrepo:0", *, split: str = "train", count: int = 50, machine: str = "namespace") -> int:
    """Prove tasks: tests fail before, pass after the oracle, and an empty patch scores 0. Exit code 1 if one does not."""
    from twinmill.env.reward.validate import validate

    found = open_taskset(taskset)
    ids = list(found.ids(split)[:count])
    with Progress(console=console) as progress:
        bar = progress.add_task(f"{taskset} {split}", total=len(ids))
        rows = asyncio.run(
            validate(found, ids, lambda spec: make_machine(machine, spec), on_done=lambda _: progress.advance(bar))
        )
    bad = [row for row in rows if not row.ok]
    for row in bad[:20]:
        console.print(f"[red]{row.task_id}[/]: {row.problem}")
    console.print(
        f"{len(rows) - len(bad)} of {len(rows)} tasks hold: fail before, pass after the oracle, empty patch 0"
    )
    return 1 if bad else 0


def play_(
    task_id: Annotated[str, Parameter(help="e.g. tinyrepo/0/heldout/3; a set like tinyrepo:0 draws one")],
    *,
    taskset: str | None = None,
    machine: str = "namespace",
) -> None:
    """Act in a task by hand, with the agent's tools. `help` shows them; `finish` grades what you did."""
    if ":" in task_id or task_id in TASKSETS:
        found = open_taskset(task_id)
        ids = found.ids("train")
        task = found.load(ids[random.randrange(len(ids))])
    else:
        _, task = _open(task_id, taskset)
    asyncio.run(_play(task, machine))


async def _play(task: Task, backend: str) -> None:
    def make(spec: MachineSpec) -> Machine:
        return make_machine(backend, spec)

    console.print(Panel(task.messages[0].content, title=task.id))
    console.print("[dim]tools: " + ", ".join(_usage(name) for name in task.tools) + "[/]")
    machine = make(task.machine)
    try:
        await machine.start()
        after = await _session(Scene(machine, task), task)
    except MachineDestroyed as error:
        console.print(f"[red]you destroyed the machine[/]: {error}")
        after = {}
    finally:
        await machine.close()
    verdict = await grade(task, after, make, "play", 0.0)
    console.print(f"reward [bold]{verdict.reward}[/] (graded in a fresh machine)")


def _usage(name: str) -> str:
    return " ".join([name, *(p.upper() for p in SPECS[name].parameters)])


async def _session(scene: Scene, task: Task) -> dict[str, str]:
    while True:
        try:
            line = await asyncio.to_thread(console.input, "[bold]> [/]")
        except EOFError:
            line = "finish"
        name, _, rest = line.strip().partition(" ")
        if name == "finish":
            return await changed_files(task, scene.machine)
        if name in ("", "help"):
            for tool in task.tools:
                console.print(f"  {_usage(tool)}  [dim]{SPECS[tool].description}[/]")
            continue
        try:
            console.print(await use(scene, name, _arguments(name, rest, task)), markup=False, highlight=False)
        except ToolError as error:
            console.print(f"[yellow]{error}[/]")


def _arguments(name: str, rest: str, task: Task) -> dict[str, str | int]:
    """The last parameter takes the rest of the line as it stands (\\n is a new line); the ones before it are words."""
    if name not in task.tools:
        raise ToolError(f"no tool {name!r}; help shows them")
    parameters = SPECS[name].parameters
    if not parameters:
        return {}
    words = rest.split(" ", len(parameters) - 1) if rest else []
    if len(words) != len(parameters):
        raise ToolError(f"write: {_usage(name)}")
    found: dict[str, str | int] = {}
    for (key, kind), word in zip(parameters.items(), words):
        if kind == "integer" and not word.lstrip("-").isdecimal():
            raise ToolError(f"{key} must be an integer, not {shlex.quote(word)}")
        found[key] = int(word) if kind == "integer" else word.replace("\\n", "\n")
    return found
