"""What a machine is: single-use, isolated, with a deadline on everything. Backends: `BACKENDS` in machine/__init__."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from twinmill.records.base import Record

# InfrastructureError                 never becomes a reward
# ├── MachineStartError               could not be made
# ├── MachineLostError                was there and is gone, by no act of the agent
# └── MachineBusyError                no capacity; try later
# MachineDestroyed                    the agent ended it (killed its init, filled its memory): the agent's own failure


class InfrastructureError(Exception):
    """Nobody's fault in the episode: excluded from statistics, counted, retried with the same seed."""


class MachineStartError(InfrastructureError): ...


class MachineLostError(InfrastructureError): ...


class MachineBusyError(InfrastructureError): ...


class MachineDestroyed(Exception):
    """The agent destroyed its own machine: the episode ends with StopReason.MACHINE and is graded on what is left."""


class ExecResult(Record):
    stdout: str
    stderr: str
    return_code: int
    timed_out: bool = False
    truncated: bool = False
    """output beyond the cap was discarded"""
    duration_s: float = 0.0


class Machine(Protocol):
    """Five methods. Paths are relative to the workspace; a path that leaves it raises ValueError."""

    async def start(self) -> None: ...

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", output_bytes: int = 65536
    ) -> ExecResult:
        """Run to its end or its deadline; then the whole process tree of the command is killed."""
        ...

    async def put(self, files: Mapping[str, bytes]) -> None: ...

    async def get(self, patterns: Sequence[str]) -> dict[str, bytes]:
        """Regular files whose workspace-relative path matches a glob ("**/*.py"); links are never followed."""
        ...

    async def close(self) -> None:
        """Idempotent; afterwards no process, mount or file of the machine is left."""
        ...
