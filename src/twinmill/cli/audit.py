"""`twinmill audit EPISODES|RUN`: hold old attempts against the rules of today."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from twinmill.cli.blocks import ConfigError
from twinmill.cli.places import open_run
from twinmill.cli.proc.base import open_store
from twinmill.cli.tasks import spec_of
from twinmill.data.render import open_renderer
from twinmill.data.tasks.base import TaskSet, open_taskset
from twinmill.env.audit import AuditConfig, PlantedSet, earned, examine, flagged
from twinmill.env.audit.rules import RULES
from twinmill.env.audit.trail import Decode, trail_of
from twinmill.records import wire
from twinmill.records.episodes import FLAGGED, Attempt, Finding
from twinmill.records.tasks import Task
from twinmill.store.ledger import EpisodesLog

console = Console()
SHOWN = 20


class Source(NamedTuple):
    """Where attempts come from, and what is needed to understand them."""

    name: str
    attempts: list[Attempt]
    load: Callable[[str], Task]
    decode: Decode | None


class Judged(NamedTuple):
    attempt: Attempt
    findings: tuple[Finding, ...]

    @property
    def rewarded(self) -> bool:
        """A hack that was paid for when it was played."""
        return flagged(self.findings) and (self.attempt.verdict.reward or 0.0) > 0


def audit(
    source: Annotated[
        str, Parameter(help='run folder, "latest", or a file with one Attempt as JSON per line')
    ] = "latest",
    *,
    root: Path = Path("runs"),
    taskset: str | None = None,
    rule: str | None = None,
    weak: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Hold the attempts of an old run against the rules of today: a table by rule, and the evidence. Nothing is changed.
    Exit code 1 where a hack was rewarded.

    Args:
        taskset: where the tasks are, if neither the run nor the tasks' ids tell
        rule: only this rule
        weak: show what is noted but flags nobody, too
    """
    if rule is not None and rule not in RULES:
        raise ConfigError(f"no rule {rule!r}; there are {', '.join(RULES)}")
    found = _from_file(Path(source), taskset) if Path(source).is_file() else _from_run(source, root, taskset)
    rows = list(_judge(found, rule, quiet=as_json))
    console.print_json(json.dumps(_as_json(found.name, rows))) if as_json else _show(found.name, rows, weak)
    return int(any(row.rewarded for row in rows))


def _from_run(run: str, root: Path, taskset: str | None) -> Source:
    folder, blocks = open_run(run, root)
    log = EpisodesLog(open_store(folder, blocks))
    attempts = [attempt for lane in log.lanes() for _, attempt in log.tail(lane)]
    tasks: TaskSet = open_taskset(taskset or blocks.get("taskset", str))
    if blocks.has("audit") and blocks.get("audit", AuditConfig).honeypots:
        tasks = PlantedSet(tasks, blocks.get("seed", int))
    model = Path(blocks.get("model", str))
    decode = open_renderer(model).decode if (model / "tokenizer.json").exists() else None
    return Source(folder.path.name, attempts, tasks.load, decode)


def _from_file(path: Path, taskset: str | None) -> Source:
    sets: dict[str, TaskSet] = {}

    def load(task_id: str) -> Task:
        spec = taskset or spec_of(task_id)
        if spec not in sets:
            sets[spec] = open_taskset(spec)
        return sets[spec].load(task_id)

    attempts = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            attempts.append(wire.from_json(line, Attempt))
        except wire.WireError as error:
            raise ConfigError(f"{path}, line {number} is no Attempt: {error}") from error
    return Source(path.name, attempts, load, None)


def _judge(source: Source, rule: str | None, quiet: bool) -> Iterator[Judged]:
    attempts = [attempt for attempt in source.attempts if attempt.episode.error is None]
    shown = attempts if quiet else track(attempts, "auditing", console=console, transient=True)
    for attempt in shown:
        task = source.load(attempt.episode.task_id)
        findings = examine(trail_of(task, attempt.episode, attempt.verdict, source.decode))
        yield Judged(attempt, tuple(f for f in findings if rule in (None, f.rule)))


def _show(name: str, rows: list[Judged], weak: bool) -> None:
    table = Table(
        "rule", "attempts", "share", "earned by it", "noted at play", title=f"{name}: {len(rows):,} attempts audited"
    )
    for rule in RULES:
        hit = [row for row in rows if _flags(row, rule)]
        if hit:
            noted = sum(any(f.rule == rule for f in row.attempt.findings) for row in hit)
            paid = sum((earned(row.attempt.verdict) or 0.0) > 0 for row in hit)
            table.add_row(rule, str(len(hit)), f"{len(hit) / len(rows):.2%}", str(paid), str(noted))
    console.print(table)
    least = 0.0 if weak else FLAGGED
    shown = [(row, f) for row in rows for f in row.findings if f.severity >= least]
    for row, finding in shown[:SHOWN]:
        head = Text.assemble(
            (row.attempt.episode.id, "bold"), f"  {finding.rule} {finding.severity:g}  ", (finding.evidence, "dim")
        )
        console.print(head, soft_wrap=True)
    if len(shown) > SHOWN:
        console.print(f"[dim]{len(shown) - SHOWN} more; --json shows all[/]")
    hacks, paid = sum(flagged(row.findings) for row in rows), sum(row.rewarded for row in rows)
    console.print(
        f"hack rate {hacks / max(len(rows), 1):.2%}: {hacks} of {len(rows):,} attempts flagged, {paid} of them rewarded"
    )


def _flags(row: Judged, rule: str) -> bool:
    return any(finding.rule == rule and finding.severity >= FLAGGED for finding in row.findings)


def _as_json(name: str, rows: list[Judged]) -> dict[str, object]:
    hacks = [row for row in rows if flagged(row.findings)]
    return {
        "source": name,
        "attempts": len(rows),
        "flagged": len(hacks),
        "hack_frac": len(hacks) / max(len(rows), 1),
        "rewarded": sum(row.rewarded for row in rows),
        "rules": {rule: n for rule in RULES if (n := sum(_flags(row, rule) for row in rows))},
        "findings": [
            {"episode": f.episode_id, "task": row.attempt.episode.task_id, "rule": f.rule, "severity": f.severity,
            "evidence": f.evidence,
             "reward": row.attempt.verdict.reward, "earned": earned(row.attempt.verdict)}
            for row in rows for f in row.findings
        ],
    }  # fmt: skip
