"""Task set `dbmigrate:KIND`: write a migration of a live database. KIND is sqlite (nothing to install) or postgresql.

The machine's service holds a small database, filled from a seed; the agent writes migration.sql. It is judged in a fresh
machine whose database has further rows (env/reward/migration.py): schema, rows, and what constraints refuse, so neither
tables that were dropped nor rows that were written down pass. A task id says all: dbmigrate/<kind>/<split>/<seed>;
loading it is a pure function, and asks no database. `heldout` is made of families that `train` never sees.
Not covered: migrations back, locks and other users at work, performance.
"""

import random
from collections.abc import Sequence
from functools import lru_cache

from twinmill.data.tasks.ids import Numbered
from twinmill.records.tasks import Budget, Case, Grader, GraderKind, MachineSpec, Message, Service, Task

from .families import HELD_OUT, KINDS, TRAIN, Change, inserts

SPLITS = {"train": (TRAIN, 100_000), "heldout": (HELD_OUT, 2_000), "seeds": (TRAIN, 2_000)}
"""split -> (families, number of tasks)"""
FILE = "migration.sql"
EMPTY = "-- the migration\n"
TOOLS = ("read", "replace", "write", "list", "run", "finish")
BUDGET = Budget(turns=16, sampled_tokens=2048, context_tokens=6144, wall_s=180)
GRADE_S = 60.0
"""all of it takes a fraction of a second; only a migration that does not end should meet this, not a busy host"""
DATABASES = {
    "sqlite": "a SQLite database, app.db",
    "postgresql": "a PostgreSQL database, app, on localhost with role app",
}
_HELPERS = {
    "sqlite": '''"""python3 db.py "SQL": ask the database. ... --try FILE ["SQL"]: run a file on a copy, then ask the copy."""

import shutil
import sqlite3
import sys

words, path = sys.argv[1:], "app.db"
try:
    if words[:1] == ["--try"]:
        path = shutil.copy(path, "/tmp/copy.db")
        with open(words[1]) as file:
            sqlite3.connect(path).executescript(file.read())
        print("ok")
        words = words[2:]
    database = sqlite3.connect(path, isolation_level=None)
    for sql in words:
        for row in database.execute(sql):
            print("|".join("" if value is None else str(value) for value in row))
except (sqlite3.Error, OSError, IndexError) as error:
    sys.exit(str(error))
''',
    "postgresql": '''"""python3 db.py "SQL": ask the database. ... --try FILE ["SQL"]: run a file on a copy, then ask the copy."""

import glob
import shutil
import subprocess
import sys

PSQL = [*sorted(glob.glob("/usr/lib/postgresql/*/bin/psql")), *glob.glob("/usr/pgsql-*/bin/psql"), shutil.which("psql")][0]


def psql(role, database, *more):
    command = [PSQL, "-X", "-h", "/tmp", "-U", role, "-v", "ON_ERROR_STOP=1", "-Atq", *more, database]
    if subprocess.run(command).returncode:
        sys.exit(1)


words, database = sys.argv[1:], "app"
if words[:1] == ["--try"]:
    psql("postgres", "postgres", "-c", "drop database if exists copy", "-c", "create database copy template app owner app")
    psql("app", "copy", "-f", words[1])
    print("ok", flush=True)
    words, database = words[2:], "copy"
for sql in words:
    psql("app", database, "-c", sql)
''',
}
"""what the agent asks the database with; the graders do not"""


class DbMigrate:
    name = "dbmigrate"

    def __init__(self, kind: str = "sqlite") -> None:
        if kind not in KINDS:
            raise ValueError(f"dbmigrate has kinds {' and '.join(KINDS)}, not {kind!r}")
        self.kind = kind

    def ids(self, split: str) -> Sequence[str]:
        if split not in SPLITS:
            raise ValueError(f"dbmigrate has splits {', '.join(SPLITS)}, not {split!r}")
        return Numbered(f"dbmigrate/{self.kind}/{split}/", SPLITS[split][1])

    def change(self, task_id: str) -> Change:
        return _change(*_parse(task_id))

    def load(self, task_id: str) -> Task:
        kind, split, _ = _parse(task_id)
        change = self.change(task_id)
        text = (
            f"This machine has {DATABASES[kind]}:\n\n{change.tables}\n{change.wanted}\n\nWrite {FILE}: SQL that will be run "
            "once on the live database, which may have more rows by then. Keep all other data, and leave no other tables, "
            'views or triggers behind. python3 db.py "SQL" asks the database; '
            f'python3 db.py --try {FILE} "SQL" runs the file on a copy, then asks the copy.'
        )
        return Task(
            id=task_id,
            taskset=f"dbmigrate:{kind}",
            messages=(Message(role="user", content=text),),
            machine=MachineSpec(
                files={FILE: EMPTY, "db.py": _HELPERS[kind]},
                disk_bytes=128 << 20,
                services=(Service(kind=kind, script=change.tables + inserts(change.seen)),),
            ),
            tools=TOOLS,
            budget=BUDGET,
            grader=Grader(
                kind=GraderKind.MIGRATION,
                cases=tuple(Case(id=id, module=kind, call=sql, expect=repr(answer)) for id, sql, answer in change.queries),
                files={"hidden.sql": inserts(change.hidden)},
                command=(FILE,),
                allow=(FILE,),
                timeout_s=GRADE_S,
            ),
            tags=(split, change.family),
        )  # fmt: skip

    def oracle(self, task_id: str) -> dict[str, str]:
        return {FILE: self.change(task_id).migration}


def _parse(task_id: str) -> tuple[str, str, int]:
    name, kind, split, seed = (task_id.split("/") + [""] * 4)[:4]
    if name != "dbmigrate" or kind not in KINDS or split not in SPLITS or not seed.isdecimal():
        raise ValueError(f"not a dbmigrate task: {task_id}; one is dbmigrate/sqlite/train/0")
    return kind, split, int(seed)


@lru_cache(maxsize=1024)
def _change(kind: str, split: str, seed: int) -> Change:
    rng = random.Random(f"dbmigrate/{split}/{seed}")
    return rng.choice(SPLITS[split][0])(rng, kind)
