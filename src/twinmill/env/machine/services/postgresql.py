"""PostgreSQL: a server of the machine's own, with a database `app` that belongs to a role `app`.

It listens on /tmp and on localhost:5432 and asks for no password: whoever is inside is the machine's one user. Its data
directory is initialised once (`initdb` takes a second), kept as an image, and every machine starts as a fork of it.
What a crash could lose is not guarded against (no fsync): the machine's disk is memory, and ends with it.

Not covered: servers that lie outside of /usr, which machines do not see; a version of one's choice (the newest is taken).
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from twinmill.env.machine.base import Capability, MachineRefused, MachineStartError
from twinmill.records.tasks import Service

from .base import PROBE_S, Image, Serving, ask_database, until_up

DATA = "/tmp/postgresql"
LOG = "/tmp/postgresql.log"
SETTINGS = """
listen_addresses = 'localhost'
unix_socket_directories = '/tmp'
max_connections = 20
shared_buffers = 16MB
min_wal_size = 2MB
max_wal_size = 8MB
fsync = off
full_page_writes = off
synchronous_commit = off
wal_level = minimal
max_wal_senders = 0
max_logical_replication_workers = 0
huge_pages = off
autovacuum = off
jit = off
"""
DATABASE = "create role app login;\ncreate database app owner app;\n"
INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--wal-segsize=1", "-N")
MAKE_S = 120.0
"""deadline of each step of the image"""
MEND = "install the server, e.g. `apt-get install postgresql`; the sqlite variants of tasks need nothing"


def _folders() -> Iterator[Path]:
    versions = [path for glob in ("lib/postgresql/*/bin", "pgsql-*/bin") for path in Path("/usr").glob(glob)]
    yield from sorted(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))], reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


@cache
def find_postgres() -> tuple[Path, str]:
    """(folder of its programs, version). Raises MachineRefused that says what to install."""
    outside = ""
    for folder in _folders():
        if not all((folder / name).is_file() for name in ("postgres", "initdb")):
            continue
        if not folder.is_relative_to("/usr"):
            outside = f" ({folder} is there, but machines see only /usr)"
            continue
        try:
            shown = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if version := re.search(r"(\d+(?:\.\d+)*)", shown.stdout):
            return folder, version[1]
    raise MachineRefused(f"the task needs PostgreSQL, and this host has none{outside}: {MEND}")


class Postgresql:
    needs = frozenset({Capability.BACKGROUND, Capability.FORK})

    def image(self) -> Image:
        _, version = find_postgres()
        return Image(
            name=f"postgresql-{version}", recipe=" ".join(INITDB) + DATA + SETTINGS + DATABASE, make=self._make
        )

    async def _make(self, machine: Serving) -> None:
        folder, _ = find_postgres()
        await self._step(machine, [f"{folder}/initdb", "-D", DATA, *INITDB])
        await self._step(machine, ["sh", "-c", f"cat >> {DATA}/postgresql.conf"], SETTINGS)
        # A session without a server: each line is one statement, which is what `create database` asks for.
        await self._step(machine, [f"{folder}/postgres", "--single", "-j", "-D", DATA, "postgres"], _apart(DATABASE))

    async def _step(self, machine: Serving, argv: list[str], stdin: str = "") -> None:
        result = await machine.exec(argv, timeout_s=MAKE_S, stdin=stdin.encode())
        if result.return_code != 0 or "ERROR" in result.stderr:
            late = " (it ran out of time)" if result.timed_out else ""
            said = (result.stderr or result.stdout)[-500:].strip()
            raise MachineStartError(f"no data directory: `{argv[0]}` ended with {result.return_code}{late}: {said}")

    async def up(self, machine: Serving, service: Service) -> None:
        folder, _ = find_postgres()
        job = await machine.run_background(["sh", "-c", f"exec {folder}/postgres -D {DATA} >>{LOG} 2>&1"])

        async def said() -> str:
            return (await machine.exec(["tail", "-c", "500", LOG], timeout_s=PROBE_S)).stdout.strip()

        await until_up(machine, service, lambda: ask_database(machine, service), job, said)


def _apart(statements: str) -> str:
    """-j: a statement ends with an empty line."""
    return statements.replace("\n", "\n\n")
