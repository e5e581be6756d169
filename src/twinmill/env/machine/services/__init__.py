"""Services of a machine: databases and the like, up before the first turn. Kinds are named by a literal map.

in start():   open the machine (a fork of the image's template, where a kind has one), lay out the task's files,
              then `bring_up`: start each, ask until it answers, run its script; everything below one deadline
"""

import asyncio
from collections.abc import Sequence
from importlib import import_module

from twinmill.env.machine.base import Capability, MachineDestroyed, MachineRefused
from twinmill.records.tasks import Service

from .base import Image, Kind, ServiceError, Serving

KINDS = {
    "sqlite": "twinmill.env.machine.services.sqlite:Sqlite",
    "postgresql": "twinmill.env.machine.services.postgresql:Postgresql",
    "command": "twinmill.env.machine.services.command:Command",
}
"""kind -> module:class"""


def kind_of(service: Service) -> Kind:
    if service.kind not in KINDS:
        raise MachineRefused(f"no service {service.kind!r}: one of {', '.join(KINDS)}")
    module, _, name = KINDS[service.kind].partition(":")
    kind: Kind = getattr(import_module(module), name)()
    return kind


def needs(services: Sequence[Service]) -> set[Capability]:
    return {capability for service in services for capability in kind_of(service).needs}


def image_of(services: Sequence[Service]) -> Image | None:
    """The one image that the machine starts from. Raises MachineRefused."""
    images = {image.name: image for service in services if (image := kind_of(service).image()) is not None}
    if len(images) > 1:
        raise MachineRefused(f"a machine starts from one image; the task's services have {', '.join(images)}")
    return next(iter(images.values()), None)


async def bring_up(machine: Serving, services: Sequence[Service]) -> None:
    """One after the other. Raises ServiceError: whatever stops a service before the first turn is nobody's doing."""
    for service in services:
        try:
            async with asyncio.timeout(service.deadline_s + 1):
                await kind_of(service).up(machine, service)
        except TimeoutError:
            raise ServiceError(f"service {service.kind} did not come up within {service.deadline_s:g} s") from None
        except (MachineDestroyed, OSError) as error:
            raise ServiceError(f"service {service.kind} did not come up: {error}") from error
