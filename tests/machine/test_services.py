"""Services: up before the first turn, or infrastructure's failure. What needs PostgreSQL is skipped where there is none."""

import asyncio
import os
import sys
import time

import pytest

from twinmill.env.machine import make_machine, native
from twinmill.env.machine.base import InfrastructureError, MachineDestroyed, MachineRefused
from twinmill.env.machine.fake import FakeMachine
from twinmill.env.machine.leftovers import leftovers
from twinmill.env.machine.services import ServiceError, base, bring_up, postgresql, template
from twinmill.records.tasks import MachineSpec, Service

from .machines import Machines

MACHINES = Machines("native")
FILL = "create table t (id integer primary key, what text); insert into t values (1, 'one'), (2, 'two');"
WEB = Service(
    kind="command",
    command=("python3", "-m", "http.server", "8000"),
    health=("python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 8000))"),
)


def postgres():
    try:
        return postgresql.find_postgres()
    except MachineRefused as missing:
        pytest.skip(str(missing))


@pytest.fixture(autouse=True)
def _native_machines():
    if native.supported():
        pytest.skip(f"native machines: {native.supported()}")


def asked(sql, **spec):
    """What psql says inside, as the first thing that happens there."""
    psql = f"{postgres()[0]}/psql"
    return MACHINES.command(psql, "-h", "localhost", "-U", "app", "-Atc", sql, "app", **spec)


def test_sqlite_is_there_before_the_first_command():
    program = "import sqlite3; print(sqlite3.connect('app.db').execute('select what from t order by id').fetchall())"
    for backend in ("native", "bubblewrap"):
        seen = Machines(backend).command("python3", "-c", program, services=(Service(kind="sqlite", script=FILL),))
        assert seen.stdout == "[('one',), ('two',)]\n", seen


def test_postgresql_answers_before_the_first_command():
    seen = asked("select what from t order by id", services=(Service(kind="postgresql", script=FILL),))
    assert (seen.stdout, seen.stderr, seen.return_code) == ("one\ntwo\n", "", 0)


def test_every_machine_has_a_database_of_its_own_and_leaves_nothing():
    postgres()
    service = Service(kind="postgresql", script=FILL)

    async def one(n):
        machine = MACHINES.make(services=(service,), files={"n": str(n)})
        await machine.start()
        try:
            psql = [f"{postgresql.find_postgres()[0]}/psql", "-h", "/tmp", "-U", "app", "-Atc"]
            await machine.exec([*psql, f"insert into t values ({n + 10}, 'mine')", "app"], timeout_s=20)
            late = await machine.exec(["sleep", "9"], timeout_s=0.2)  # the end of a command is not the end of a service
            found = await machine.exec([*psql, "select count(*), max(id) from t", "app"], timeout_s=20)
            return late.timed_out, found.stdout
        finally:
            await machine.close()

    def groups():  # of machines; processes would have the forge's spares among them
        return {what for what in leftovers(os.getpid()) if what.startswith("control group")}

    async def several():
        await one(9)  # makes forge and template, which stay
        before = groups()
        found = await asyncio.gather(*[one(n) for n in range(3)])
        await one(9)  # takes away what was still busy at its end
        return found, groups() - before

    found, left = asyncio.run(several())
    assert found == [(True, f"3|{n + 10}\n") for n in range(3)]
    assert len(left) <= 1, left  # the last one may be busy


def test_any_program_can_be_a_service():
    fetch = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/a.txt').read())"
    assert MACHINES.command("python3", "-c", fetch, services=(WEB,), files={"a.txt": "hi"}).stdout == "b'hi'\n"


FAILING = {
    "never answers": (Service(kind="command", command=("sleep", "60"), health=("false",), deadline_s=0.4), "within 0.4 s"),
    "ends": (Service(kind="command", command=("sh", "-c", "echo no port; exit 3"), health=("false",)), "status 3: no port"),
    "is not there": (Service(kind="command", command=("nobody",), health=("false",)), "status 127"),
    "declares half": (Service(kind="command", command=("true",)), "both `command` and `health`"),
    "refuses its script": (Service(kind="sqlite", script="create tabel t;"), "refused its script.*syntax.*mend the task's SQL"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_what_does_not_come_up_is_an_infrastructure_failure_that_says_why(name):
    service, words = FAILING[name]
    with pytest.raises(ServiceError, match=words):
        MACHINES.command("true", services=(service,))
    assert issubclass(ServiceError, InfrastructureError)


def test_postgresql_that_does_not_come_up_says_what_it_said(monkeypatch):
    postgres()
    monkeypatch.setattr(postgresql, "DATA", "/tmp/nowhere")
    monkeypatch.setattr(postgresql.Postgresql, "image", lambda self: None)
    with pytest.raises(ServiceError, match=r"ended with status .*nowhere"):
        MACHINES.command("true", services=(Service(kind="postgresql"),))


def test_a_machine_that_ends_while_services_come_up_is_nobodys_doing():
    async def body():
        machine = FakeMachine(MachineSpec(), fail={"exec": MachineDestroyed("its memory was filled")})
        await machine.start()
        await bring_up(machine, (Service(kind="sqlite"),))

    with pytest.raises(ServiceError, match="its memory was filled"):
        asyncio.run(body())


def test_a_silent_probe_meets_the_deadline():
    class Silent(FakeMachine):
        async def exec(self, argv, **more):
            await asyncio.sleep(60)

    async def body():
        machine = Silent(MachineSpec())
        await machine.start()
        await bring_up(machine, (Service(kind="sqlite", deadline_s=0.1),))

    started = time.monotonic()
    with pytest.raises(ServiceError, match=r"within 0\.1 s"):
        asyncio.run(body())
    assert time.monotonic() - started < 20


def test_an_unknown_service_is_refused_by_name():
    with pytest.raises(MachineRefused, match=r"'redis'.*sqlite, postgresql, command"):
        MACHINES.command("true", services=(Service(kind="redis"),))


def test_a_backend_without_background_jobs_refuses_what_needs_them():
    with pytest.raises(MachineRefused, match="background"):
        Machines("bubblewrap").command("true", services=(WEB,))


def test_where_postgresql_is_missing_the_refusal_says_what_to_install(monkeypatch):
    monkeypatch.setattr(postgresql, "_folders", lambda: iter(()))
    postgresql.find_postgres.cache_clear()
    with pytest.raises(MachineRefused, match="apt-get install postgresql"):
        MACHINES.command("true", services=(Service(kind="postgresql"),))
    postgresql.find_postgres.cache_clear()


def test_postgresql_outside_of_what_machines_see_is_refused_by_place(monkeypatch, tmp_path):
    for name in ("postgres", "initdb"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(postgresql, "_folders", lambda: iter([tmp_path]))
    postgresql.find_postgres.cache_clear()
    with pytest.raises(MachineRefused, match=f"{tmp_path}.*only /usr"):
        postgresql.find_postgres()
    postgresql.find_postgres.cache_clear()


class TestImages:
    """A small image: one file, made in a machine."""

    @pytest.fixture(autouse=True)
    def _place(self, monkeypatch, tmp_path):
        monkeypatch.setattr(template, "folder", tmp_path)
        self.folder, self.made = tmp_path, 0

    def image(self, name, recipe="r"):
        async def make(machine):
            self.made += 1
            await machine.put({"made": b"x" * 1000})

        return base.Image(name=name, recipe=recipe, make=make)

    def open(self, image, forget=True):
        if forget:
            template._templates.clear()

        async def body():
            new = lambda spec: make_machine("native", spec)  # noqa: E731
            return await template.template(image, new)

        return asyncio.run(body())

    def test_it_is_made_once_and_read_from_its_file_afterwards(self):
        image = self.image("a-1.0")
        self.open(image)
        assert self.open(image, forget=False) is self.open(image, forget=False), "the template itself is kept, too"
        self.open(image)
        assert self.made == 1
        [file] = self.folder.iterdir()
        assert file.name.startswith("a-1.0-") and file.name.endswith(".tar.zst")

    def test_another_version_or_recipe_is_another_image(self):
        for image in (self.image("b-1.0"), self.image("b-1.1"), self.image("b-1.0", recipe="s")):
            self.open(image)
        assert self.made == 3 == len(list(self.folder.iterdir()))

    @pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:90] + b"!" + data[91:]])
    def test_a_damaged_file_is_said_and_made_again(self, damage):
        image = self.image("c-1.0")
        self.open(image)
        [file] = self.folder.iterdir()
        sound = file.read_bytes()
        file.write_bytes(damage(sound))
        with pytest.warns(RuntimeWarning, match="damaged.*made again"):
            self.open(image)
        assert self.made == 2 and len(file.read_bytes()) > len(sound) // 2

    def test_a_template_whose_forge_is_gone_is_not_used(self):
        from twinmill.env.machine import cells

        image = self.image("d-1.0")
        first = self.open(image)
        cells.close_all()
        assert self.open(image, forget=False) is not first

    def test_an_image_that_cannot_be_made_leaves_no_file(self):
        async def fail(machine):
            raise ServiceError("no data directory")

        with pytest.raises(ServiceError, match="no data directory"):
            self.open(base.Image(name="e-1.0", recipe="", make=fail))
        assert list(self.folder.iterdir()) == []


def test_the_guest_that_speaks_postgresql_is_plain_python():
    """It is sent into machines as text; a syntax error would only show there."""
    compile(base.guest("database", "up"), "guest", "exec")
    assert sys.version_info >= (3, 11)
