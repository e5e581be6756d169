"""The task set dbmigrate: tasks follow from their ids alone, and the right answers hold in a real database."""

import ast
import sqlite3

import pytest

from twinmill.data.tasks.base import open_taskset
from twinmill.data.tasks.dbmigrate import FILE, DbMigrate
from twinmill.data.tasks.dbmigrate.families import HELD_OUT, TRAIN, inserts
from twinmill.env.machine.services.base import guest

GUEST = {}
exec(guest("database"), GUEST)


def answers(change, migration):
    """id -> what each query answers after `migration`, as the grader would see it."""
    database = GUEST["Sqlite"](":memory:")
    database.script(change.tables + inserts(change.seen) + inserts(change.hidden))
    database.script(migration)
    found = {}
    for id, sql, _ in change.queries:
        database.rows("begin")
        try:
            found[id] = database.rows(sql)
        except GUEST["Refused"] as error:
            found[id] = {"refused": error.constraint} if error.constraint else str(error)
        database.rows("rollback")
    return found


@pytest.mark.parametrize("split", ["train", "heldout", "seeds"])
def test_oracles_give_the_right_answers_and_nothing_gives_wrong_ones(split):
    tasks = DbMigrate("sqlite")
    for task_id in tasks.ids(split)[:60]:
        change = tasks.change(task_id)
        right = {id: answer for id, _, answer in change.queries}
        assert answers(change, change.migration) == right, task_id
        assert answers(change, "") != right, task_id


def test_a_task_is_a_pure_function_of_its_id():
    one, other = DbMigrate("sqlite"), open_taskset("dbmigrate:sqlite")
    task_id = one.ids("train")[17]
    assert one.load(task_id) == other.load(task_id)
    assert one.load(task_id) != one.load(one.ids("train")[18])


def test_every_family_occurs_and_held_out_ones_are_not_trained_on():
    tasks = DbMigrate("sqlite")
    seen = {split: {tasks.change(id).family for id in tasks.ids(split)[:80]} for split in ("train", "heldout", "seeds")}
    assert seen["train"] == seen["seeds"] == {family.__name__ for family in TRAIN}
    assert seen["heldout"] == {family.__name__ for family in HELD_OUT}
    assert not seen["train"] & seen["heldout"]


def test_the_agent_sees_neither_hidden_rows_nor_answers():
    for kind in ("sqlite", "postgresql"):
        tasks = DbMigrate(kind)
        task = tasks.load(tasks.ids("train")[3])
        change = tasks.change(task.id)
        scripts = [service.script for service in task.machine.services]
        shown = "\n".join([task.messages[0].content, *task.machine.files.values(), *scripts])
        for row in next(iter(change.hidden.values())):
            assert f"({row[0]}, '" not in shown
        assert change.migration not in shown
        assert task.grader.allow == (FILE,)
        assert all(isinstance(ast.literal_eval(case.expect), list | dict) for case in task.grader.cases)


@pytest.mark.parametrize("name", ["dbmigrate/oracle/train/1", "dbmigrate/sqlite/train", "dbmigrate/sqlite/test/1"])
def test_a_wrong_id_is_refused_with_a_right_one(name):
    with pytest.raises(ValueError, match="dbmigrate/sqlite/train/0"):
        DbMigrate().load(name)


def test_an_unknown_kind_or_split_is_refused_by_name():
    with pytest.raises(ValueError, match="sqlite and postgresql"):
        open_taskset("dbmigrate:mysql")
    with pytest.raises(ValueError, match="train, heldout, seeds"):
        DbMigrate().ids("test")


def test_sqlite_here_knows_what_migrations_use():
    assert sqlite3.sqlite_version_info >= (3, 35), "drop column and returning"
