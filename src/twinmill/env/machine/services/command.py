"""Any program of the task's own as a service: a command in the background, and another one that says whether it is up."""

from twinmill.env.machine.base import Capability
from twinmill.records.tasks import Service

from .base import PROBE_S, Image, ServiceError, Serving, until_up

PAUSE_S = 0.02
"""between two looks"""


class Command:
    needs = frozenset({Capability.BACKGROUND})

    def image(self) -> Image | None:
        return None

    async def up(self, machine: Serving, service: Service) -> None:
        if not service.command or not service.health:
            raise ServiceError("a service of kind command needs both `command` and `health`; the task leaves one out")
        log = "/tmp/service.log"
        job = await machine.run_background(["sh", "-c", f'exec "$@" >>{log} 2>&1', "sh", *service.command])

        async def probe() -> str:
            argv = ["sh", "-c", f'"$@" || {{ s=$?; sleep {PAUSE_S}; exit $s; }}', "sh", *service.health]
            result = await machine.exec(argv, timeout_s=PROBE_S)
            return f"its health command gave status {result.return_code}" if result.return_code else ""

        async def said() -> str:
            return (await machine.exec(["tail", "-c", "500", log], timeout_s=PROBE_S)).stdout.strip()

        await until_up(machine, service, probe, job, said)
