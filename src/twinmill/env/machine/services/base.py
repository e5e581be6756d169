"""What a service is to the machine that it runs in.

A service that does not come up is an infrastructure failure: `ServiceError`. So is a machine that ends on the way, for
nothing of an agent's has been in it yet.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from twinmill.env.machine.base import Background, Capability, Machine, MachineStartError
from twinmill.records.tasks import Service

PROBE_S = 1.0
"""of one look at whether it answers; between two looks it is seen whether it still lives"""
GRACE_S = 10.0
"""an answer may come this much after a probe's own deadline: SQL of a service's script runs in it"""


class ServiceError(MachineStartError):
    """A service did not come up in time, or ended, or refused its script."""


class Serving(Machine, Background, Protocol):
    """The started machine that a service comes up in."""


@dataclass(frozen=True)
class Image:
    """Files that a service starts from: made once, in a machine, and kept. See template.py."""

    name: str
    """with the version of what made it, e.g. postgresql-15.12"""
    recipe: str
    """everything else that they follow from; another recipe is another image"""
    make: Callable[[Serving], Awaitable[None]]


class Kind(Protocol):
    """One kind of service. `up` returns when it has answered and taken its script."""

    needs: frozenset[Capability]

    def image(self) -> Image | None:
        """None = it starts from nothing. Raises MachineRefused that says what to install."""
        ...

    async def up(self, machine: Serving, service: Service) -> None: ...


@cache
def guest(*names: str) -> str:
    """The source of a guest program: its files, one behind the other. What it imports is not of the workspace."""
    first = "import sys; sys.path[:] = [place for place in sys.path if place]\n"
    return first + "\n".join((Path(__file__).parent / f"{name}_guest.py").read_text() for name in names)


async def until_up(
    machine: Serving,
    service: Service,
    probe: Callable[[], Awaitable[str]],
    job: int,
    said: Callable[[], Awaitable[str]],
) -> None:
    """Probe until there is nothing to say against it. `said`: the end of what the service wrote. Raises ServiceError."""
    clock = asyncio.get_running_loop().time
    started = clock()
    while why := await probe():
        code = (await machine.jobs()).get(job)
        if code is not None:
            raise ServiceError(f"service {service.kind} ended with status {code}: {await said() or 'it said nothing'}")
        if clock() - started > service.deadline_s:
            late = f"service {service.kind} did not answer within {service.deadline_s:g} s"
            raise ServiceError(f"{late} ({why}); it said: {await said() or 'nothing'}")


async def ask_database(machine: Machine, service: Service, path: str = "") -> str:
    """Wait a moment until it answers, then run the script. Why it does not answer yet; "" = it did. Raises ServiceError
    for a script that it refuses."""
    question = {"kind": service.kind, "path": path, "script": service.script, "patience_s": PROBE_S}
    result = await machine.exec(
        ["python3", "-c", guest("database", "up")],
        timeout_s=min(service.deadline_s, PROBE_S) + GRACE_S,
        stdin=json.dumps(question).encode(),
    )
    try:
        answer: dict[str, Any] = json.loads(result.stdout)
    except ValueError:
        return f"its probe ended with status {result.return_code}: {result.stderr[-300:].strip()}"
    if answer["refused"]:
        raise ServiceError(f"service {service.kind} refused its script: {answer['refused']}; mend the task's SQL")
    return str(answer["why"])
