"""Migrations graded on live databases: the oracle passes, and every way round the work scores 0."""

import asyncio

import pytest

from twinmill.data.tasks.dbmigrate import DbMigrate
from twinmill.data.tasks.dbmigrate.families import inserts
from twinmill.env.machine import make_machine, native
from twinmill.env.machine.base import MachineRefused
from twinmill.env.machine.services import postgresql
from twinmill.env.reward import grade
from twinmill.env.reward.validate import validate


def namespace(spec):
    return make_machine("namespace", spec)


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request):
    if request.param == "postgresql":
        if native.supported():
            pytest.skip(native.supported())
        try:
            postgresql.find_postgres()
        except MachineRefused as missing:
            pytest.skip(str(missing))
    return request.param


def cents(kind):
    """(task set, a task of family cents, its change, its table, its column)"""
    tasks = DbMigrate(kind)
    task_id = next(id for id in tasks.ids("train") if tasks.change(id).family == "cents")
    change = tasks.change(task_id)
    [table] = change.seen
    column = change.tables.rpartition(" text not null")[0].rpartition(", ")[2]
    return tasks, tasks.load(task_id), change, table, column


def verdicts(task, migrations, **more):
    """One verdict each."""

    async def all_of_them():
        changes = [{"migration.sql": sql, **more} for sql in migrations]
        return [await grade(task, changed, namespace, "e") for changed in changes]

    return asyncio.run(all_of_them())


def test_tasks_hold(kind):
    tasks = DbMigrate(kind)
    for split in ("train", "heldout"):
        rows = asyncio.run(validate(tasks, tasks.ids(split)[:5], namespace))
        assert [row.problem for row in rows if not row.ok] == []


def ways_round(kind, change, table, column):
    """name -> SQL that passes for a migration and is none."""
    new, made = (
        f"{column}_cents",
        f"create table made (id integer primary key, name text not null, {column}_cents integer not null);",
    )
    right, swap = change.migration, f"drop table {table};\nalter table made rename to {table};"
    front = f"create table front.{table} as select id, name, 1 as {new} from {table}"
    seen = ", ".join(f"({i}, '{name}', {int(text.replace('.', ''))})" for i, name, text in change.seen[table])
    ways = {
        "the tables, empty": f"{made}\n{swap}",
        "the rows it saw, written down": f"{made}\ninsert into made values {seen};\n{swap}",
        "rows that are hard are deleted": f"delete from {table} where id > 100;\n{right}",
        "zeros": f"alter table {table} add column {new} integer not null default 0;\nalter table {table} drop column {column};",
        "the old column stays": right.rpartition("alter table")[0],
        "a view for the table": f"{right}\nalter table {table} rename to away;\ncreate view {table} as select * from away;",
        "only in this connection": f"create temporary table {table} as select id, name, 1 as {new} from {table};",
        "an error after the work": f"{right}\nselect no_such_thing;",
        "nothing that ends": "with recursive n (i) as (select 1 union all select i + 1 from n) select max(i) from n;",
        "a shell command": f"\\! touch /tmp/pwned\n{right}",
        "it is not text": "\x00\x01\x02",
        "a table more": f"{right}\ncreate table checker (ok integer);",
    }  # fmt: skip
    if kind == "sqlite":
        refuse = "begin select raise(abort, 'no'); end"
        ways |= {
            "another file": f"attach '/work/other.db' as other;\n{right}",
            "a trigger that refuses": f"{right}\ncreate trigger no before insert on {table} {refuse};",
            "schema by hand": f"pragma writable_schema = on;\nupdate sqlite_master set sql = replace(sql, '{column} text', "
            f"'{new} integer') where name = '{table}';",
        }  # fmt: skip
    else:
        ways |= {
            "a program of the server": f"copy {table} to program 'touch /tmp/pwned';\n{right}",
            "a file of the server": f"copy {table} to '/tmp/stolen';\n{right}",
            "another role": f"set role postgres;\n{right}",
            "another schema stands in front": f"create schema front;\n{front};\nalter role app set search_path = front, public;",
            "operators of its own": "create function public.yes(text, text) returns boolean language sql as 'select true';\n"
            "create operator public.= (function = public.yes, leftarg = text, rightarg = text);\n"
            "alter role app set search_path = public, pg_catalog;",
            "a policy that hides": f"{right}\ncreate policy p on {table} using (id < 100);\n"
            f"alter table {table} enable row level security;\nalter table {table} force row level security;",
            "a rule that swallows": f"{right}\ncreate rule no as on insert to {table} do instead nothing;",
        }  # fmt: skip
    return ways


def test_every_way_round_the_work_scores_nothing(kind):
    _, task, change, table, column = cents(kind)
    from msgspec.structs import replace

    quick = replace(task, grader=replace(task.grader, timeout_s=20.0))
    ways = ways_round(kind, change, table, column)
    judged = dict(zip(ways, verdicts(quick, ways.values())))
    assert {name: v.error for name, v in judged.items() if v.error} == {}, (
        "a cheat is graded; it is no infrastructure failure"
    )
    assert [name for name, v in judged.items() if v.reward != 0.0] == []
    [sound] = verdicts(task, [change.migration])
    assert sound.reward == 1.0, sound


def test_only_the_migration_is_carried_over(kind):
    """Its own checker, its own helper, a database that it changed by hand: none of them is there when it is judged."""
    _, task, change, *_ = cents(kind)
    liar = 'import json, sys; print(json.dumps({"id": "migration", "value": "done"}))'
    more = {
        name: liar
        for name in ("db.py", "sqlite3.py", "json.py", "sitecustomize.py", ".harbor/logs/verifier/reward.txt")
    }
    done = asyncio.run(grade(task, {**more, "app.db": "x"}, namespace, "e"))
    assert done.reward == 0.0 and done.error is None
    done = asyncio.run(grade(task, {**more, "migration.sql": change.migration}, namespace, "e"))
    assert done.reward == 1.0, done


def test_evidence_names_what_was_wrong(kind):
    _, task, change, *_ = cents(kind)
    wrong, broken = verdicts(task, [change.migration.replace("* 100", "* 10"), "alter tabel x;"])
    assert wrong.scores["passed"].evidence.startswith("rows: FAIL select id, name, ")
    assert "syntax error" in broken.scores["passed"].evidence
    assert wrong.scores["cases"].value > 0.5


def test_a_task_whose_own_rows_are_refused_gives_no_reward(kind):
    from msgspec.structs import replace

    _, task, change, *_ = cents(kind)
    spoilt = replace(
        task, grader=replace(task.grader, files={"hidden.sql": inserts(change.hidden) + "insert into nobody;"})
    )
    done = asyncio.run(grade(spoilt, {"migration.sql": change.migration}, namespace, "e"))
    assert done.reward is None and done.error.type == "ServiceError" and "the hidden rows" in done.error.message


def test_a_service_that_does_not_come_up_gives_no_reward():
    from msgspec.structs import replace

    _, task, change, *_ = cents("sqlite")
    [service] = task.machine.services
    spoilt = replace(task, machine=replace(task.machine, services=(replace(service, script="no sql"),)))
    done = asyncio.run(grade(spoilt, {"migration.sql": change.migration}, namespace, "e"))
    assert done.reward is None and done.error.type == "ServiceError"
