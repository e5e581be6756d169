"""Grader `migration`: the agent's SQL is run on the live database of a fresh machine, and queries say what it made of it.

The fresh machine's services bring up the database as the agent found it. Rows that the agent never saw are added, then
its migration is run, then queries are asked in another connection, in which nothing temporary of the migration's is
there any more; each is rolled back. The right answers stay here and are compared here. The migration is SQL and nothing
else: it has no shell, no other file, and in PostgreSQL no more rights than the role that owns the database; so it can
reach neither the queries nor the answers' way out. What it leaves in the database to answer falsely (views for tables,
triggers, rules) is what task sets have queries for.

A database that never comes up, or does not take the hidden rows, is infrastructure's failure: nothing of the agent's has
run by then. One that the migration fills up, locks or brings down answers too little, and that is the agent's.
"""

from functools import cache

from twinmill.env.machine.base import Machine
from twinmill.env.machine.services.base import ServiceError
from twinmill.env.machine.services.base import guest as service_guest
from twinmill.records.episodes import Score
from twinmill.records.tasks import Case, Task

from .cases import failure_text, passed
from .channel import ask, guest

BEFORE = Case(id="before", module="", call="the hidden rows", expect="'done'")
DONE = Case(id="migration", module="", call="the migration", expect="'done'")


@cache
def _source() -> str:
    return service_guest("database") + "\n" + guest("values_guest", "migration_guest")


async def grade_migration(task: Task, machine: Machine) -> dict[str, Score]:
    grader, service = task.grader, task.machine.services[0]
    question = {
        "kind": service.kind,
        "before": "\n".join(text for _, text in sorted(grader.files.items())),
        "migration": grader.command[0],
        "queries": [[case.id, case.call] for case in grader.cases],
    }
    lines = await ask(machine, _source(), question, timeout_s=grader.timeout_s)
    if not passed(BEFORE, lines):
        raise ServiceError(f"service {service.kind} came up, and then: {failure_text(BEFORE, lines)}")
    cases = (DONE, *grader.cases)
    failed = [case for case in cases if not passed(case, lines)]
    evidence = f"{failed[0].id}: {failure_text(failed[0], lines)}" if failed else None
    return {
        "passed": Score(value=float(not failed), grader="migration", evidence=evidence),
        "cases": Score(value=1 - len(failed) / len(cases), weight=0.0, grader="migration"),
    }
