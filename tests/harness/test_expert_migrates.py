"""A scripted expert on dbmigrate, by the real harness in real machines: it looks, writes, tries, finishes, and is paid."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.reward.test_migration import kind  # noqa: F401 (a fixture)
from twinmill.cli.scripted import TOKENS, play_scripts
from twinmill.data.render import open_renderer
from twinmill.data.tasks.dbmigrate import FILE, DbMigrate
from twinmill.env.audit.cheaters.script import FINISH, Script, run, write
from twinmill.records.episodes import Boundary, StopReason
from twinmill.records.tasks import Budget

ROOMY = Budget(turns=20, sampled_tokens=50_000, context_tokens=200_000, wall_s=0)


def tried(question):
    return run(f"python3 db.py --try {FILE} '{question}'")


def script(kind, number, *, split="train", turns=None, change_task=lambda task: task):  # noqa: F811
    tasks = DbMigrate(kind)
    task_id = tasks.ids(split)[number]
    change = tasks.change(task_id)
    table = next(iter(change.seen))
    ask = f"select count(*) from {table}"
    steps = turns or (run(f"python3 db.py '{ask}'"), write(FILE, change.migration), tried(ask), FINISH)
    return Script(name=task_id, task=change_task(replace(tasks.load(task_id), budget=ROOMY)), turns=tuple(steps))


def played(*scripts):
    return asyncio.run(play_scripts(scripts, open_renderer(TOKENS), at_once=2))


def test_experts_are_paid_and_not_flagged(kind):  # noqa: F811
    scripts = [script(kind, n) for n in range(2)] + [script(kind, 0, split="heldout")]
    for done in played(*scripts):
        assert done.episode.stop is StopReason.FINISHED
        looked, wrote, tried_it = (turn.observation for turn in done.episode.segments[0].turns[:3])
        count = len(next(iter(DbMigrate(kind).change(done.script.name).seen.values())))
        assert looked == f"{count}\nexit 0", "the database was up before the first turn"
        assert wrote == "ok" and tried_it.startswith("ok\n") and tried_it.endswith("exit 0")
        assert done.verdict.reward == 1.0, done.verdict
        assert not done.flagged, done.findings


def test_a_migration_of_the_agents_own_database_alone_earns_nothing():
    change = DbMigrate("sqlite").change(DbMigrate("sqlite").ids("train")[0])
    by_hand = (
        f"python3 - <<'END'\nimport sqlite3\nsqlite3.connect('app.db').executescript('''{change.migration}''')\nEND"
    )
    [done] = played(script("sqlite", 0, turns=(run(by_hand), FINISH)))
    assert done.episode.segments[0].turns[0].observation.endswith("exit 0")
    assert done.verdict.reward == 0.0


def test_an_attempt_whose_service_fails_is_no_attempt():
    def spoil(task):
        [service] = task.machine.services
        return replace(task, machine=replace(task.machine, services=(replace(service, script="no sql"),)))

    with pytest.raises(RuntimeError, match=rf"{Boundary.MACHINE.value}: ServiceError: .*refused its script"):
        played(script("sqlite", 0, change_task=spoil))
