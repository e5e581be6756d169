"""SQLite: the file app.db in the workspace, made by the script before the first turn. Needs nothing installed."""

from twinmill.env.machine.base import Capability
from twinmill.records.tasks import Service

from .base import Image, ServiceError, Serving, ask_database

FILE = "app.db"
"""the graders' guest says so, too"""


class Sqlite:
    needs: frozenset[Capability] = frozenset()

    def image(self) -> Image | None:
        return None

    async def up(self, machine: Serving, service: Service) -> None:
        if why := await ask_database(machine, service, FILE):
            raise ServiceError(f"service sqlite made no {FILE}: {why}")
