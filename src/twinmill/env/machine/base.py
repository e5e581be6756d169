"""What a machine is: single-use, isolated, with a deadline on everything. Backends: `BACKENDS` in machine/__init__.

Whose failure it is, is in the type:

    InfrastructureError                 nobody's: never becomes a reward, excluded from statistics, counted, tried again
    ├── MachineStartError               could not be made
    │   └── MachineRefused              the task asks for what the backend lacks, named
    ├── MachineLostError                was there and is gone, by no act of the agent
    └── MachineBusyError                no capacity; try later
    MachineDestroyed                    the agent's: it ended its machine (filled its memory); graded on what is left
    ValueError, OSError                 the caller's: a path outside of the workspace; a file that does not fit

Only `env.reward` makes verdicts, and it makes none of an InfrastructureError: tests/machine/test_base.py walks the tree.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from twinmill.records.machines import ExecResult


class InfrastructureError(Exception):
    """Nobody's fault in the episode: excluded from statistics, counted, retried with the same seed."""


class MachineStartError(InfrastructureError): ...


class MachineRefused(MachineStartError):
    """Nothing is silently downgraded: what the task needs and the backend lacks is said by name."""


class MachineLostError(InfrastructureError): ...


class MachineBusyError(InfrastructureError):
    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class MachineDestroyed(Exception):
    """The agent destroyed its own machine: the episode ends with StopReason.MACHINE and is graded on what is left."""


class Capability(StrEnum):
    """What a task may need of its machine beyond the five methods (`MachineSpec.needs`), and what a backend may have."""

    FORK = "fork"
    """Forkable"""
    SNAPSHOT = "snapshot"
    """Snapshotable"""
    PAUSE = "pause"
    """Pausable; only where control groups can be made"""
    BACKGROUND = "background"
    """Background"""
    EXPOSE = "expose"
    """Exposable"""
    ACCESS_TIMES = "access-times"
    """whoever reads a file moves its access time, in forks, too; what the host reads (get, snapshot, fork) does not"""
    SECCOMP = "seccomp"
    """system calls are filtered"""
    LANDLOCK = "landlock"
    """a second fence around what can be written"""
    MEMORY_GROUP = "memory-group"
    """the kernel itself holds all memory of the machine below its bound"""
    NETWORK = "network"
    """a way to other hosts"""
    SERVICES = "services"
    """databases and the like are up before the first turn"""


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


@runtime_checkable
class Forkable(Protocol):
    async def fork(self, count: int) -> "list[Machine | InfrastructureError]":
        """`count` started machines with this one's files, one outcome per child: a machine, or why there is none.

        Files only: processes are not carried over, and a machine with background jobs raises ValueError."""
        ...


@runtime_checkable
class Snapshotable(Protocol):
    async def snapshot(self) -> bytes:
        """What can be written, as one tar; equal files give equal bytes. Files only."""
        ...

    async def restore(self, snapshot: bytes) -> None:
        """Into a started machine of any backend, in place of what its workspace holds. Raises ValueError for a tar that
        cannot be unpacked."""
        ...


@runtime_checkable
class Pausable(Protocol):
    """While paused, nothing in the machine uses CPU; every request but close() raises ValueError."""

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...


@runtime_checkable
class Background(Protocol):
    """Jobs live on between commands, until they end, are stopped, or the machine is closed."""

    async def run_background(self, argv: Sequence[str], *, log: str = "") -> int:
        """Returns its number. `log`: file of the workspace that takes its output; "" = nowhere. Raises OSError when it
        cannot be started."""
        ...

    async def jobs(self) -> dict[int, int | None]:
        """number -> exit code, negative for a signal; None = alive"""
        ...

    async def stop(self, job: int) -> None:
        """Kill it with all its descendants."""
        ...


@runtime_checkable
class Exposable(Protocol):
    async def expose(self, port: int) -> tuple[str, int]:
        """(host, port) of a listener on this host that leads to 127.0.0.1:`port` inside, until close()."""
        ...
