"""The pool of one host: every machine of a process goes through it, is in its journal, and starts when there is room.

    pool = Pool(partial(make_machine, "namespace"), folder, PoolConfig(machines=16))
    machine = pool.machine(spec)        as from make_machine: start() waits for its turn, close() gives the room back
    ...
    await pool.close()                  ends what is left

A create that fails is tried again by the scheduler's rules; what no retry can change (MachineRefused) is raised at once.
Whoever gives up waiting gives up the place; a machine that comes to life after that is ended, by its own create.
Not covered: machines that outlive their process, and pausing a machine while its model thinks.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twinmill.env.machine.base import (
    InfrastructureError,
    Machine,
    MachineBusyError,
    MachineLostError,
    MachineRefused,
    MachineStartError,
)
from twinmill.records.tasks import MachineSpec

from .journal import Journal
from .scheduler import Ask, PoolConfig, Scheduler, Start

HERE = "here"
SENSE_S = 0.5
"""between two looks at the host's memory, while somebody waits"""
ENOUGH = 1 << 60
SHARE = 4
"""a machine is promised this part of what it may use: few use all of it, and the free memory is looked at besides"""


def memory() -> tuple[int, int]:
    """(all, available) of this host in bytes; where it cannot be known, more than enough."""
    try:
        rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(rows["MemTotal"].split()[0]) << 10, int(rows["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError):
        return ENOUGH, ENOUGH


def elsewhere() -> tuple[int, int]:
    """Where machines use another host's memory: more than enough. That host admits by its own."""
    return ENOUGH, ENOUGH


class Pool:
    def __init__(
        self,
        make: Callable[[MachineSpec], Machine],
        folder: Path,
        config: PoolConfig,
        memory: Callable[[], tuple[int, int]] = memory,
    ) -> None:
        """`folder` holds the journal; `memory` = (all, available) bytes where the machines are. Raises MachineStartError where
        what a dead pool left does not end."""
        self.make, self.config, self._memory = make, config, memory
        self.journal = Journal(folder)
        self.scheduler = Scheduler({HERE: memory()[0]}, config)
        self.most_alive = 0
        self._made = 0
        self._turns: dict[int, asyncio.Future[Start]] = {}
        """ask -> resolved when it may start"""
        self._leased: dict[int, Machine] = {}
        self._waker: asyncio.TimerHandle | None = None
        self._closed = False

    def machine(self, spec: MachineSpec, group: str = "") -> "PooledMachine":
        return PooledMachine(self, spec, group)

    async def close(self) -> None:
        """End every machine that is left. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._waker is not None:
            self._waker.cancel()
        for turn in self._turns.values():
            if not turn.done():
                turn.set_exception(MachineLostError("the pool was closed"))
        await asyncio.gather(*[self.give_back(id) for id in list(self._leased)])
        self.journal.close()

    async def take(self, spec: MachineSpec, group: str) -> tuple[int, Machine]:
        """A started machine, when it is its turn. Raises what its start raises when there is no further try."""
        if self._closed:
            raise MachineLostError("the pool was closed")
        self._made += 1
        id = self._made
        clock = asyncio.get_running_loop().time
        promised = spec.memory_bytes // SHARE
        self.scheduler.ask(Ask(id=id, group=group or str(id), promised_bytes=promised))
        while True:
            turn = self._turns[id] = asyncio.get_running_loop().create_future()
            try:
                self._stir()
                start = await turn
            except BaseException:
                self.scheduler.withdraw(id)
                if turn.done() and not turn.cancelled() and turn.exception() is None:  # its turn came just then
                    self.scheduler.started(turn.result(), clock())
                    self.scheduler.ended(id)
                self._stir()
                raise
            finally:
                del self._turns[id]
            machine: Machine | None = None
            try:
                machine = self.make(spec)
                self._write_down(id)
                await machine.start()
                if self._closed:
                    raise MachineLostError("the pool was closed")
            except BaseException as error:
                with contextlib.suppress(InfrastructureError):
                    if machine is not None:
                        await machine.close()
                    self._write_off(id)
                if self._closed or isinstance(error, MachineRefused) or not isinstance(error, InfrastructureError):
                    self.scheduler.started(start, clock())  # no sign of congestion, and no use in another try
                    self.scheduler.ended(id)
                    self._stir()
                    raise
                wait = error.retry_after_s if isinstance(error, MachineBusyError) else 0.0
                if not self.scheduler.failed(start, clock(), wait):
                    self._stir()
                    raise
                continue
            self.scheduler.started(start, clock())
            self._leased[id] = machine
            self.most_alive = max(self.most_alive, len(self._leased))
            self._stir()
            return id, machine

    async def give_back(self, id: int) -> None:
        machine = self._leased.pop(id, None)
        if machine is None:
            return
        try:
            await machine.close()
            self._write_off(id)  # not where close() says that it does not end: the next life looks after it
        finally:
            self.scheduler.ended(id)
            self._stir()

    def _write_down(self, id: int) -> None:
        if self._closed:
            raise MachineLostError("the pool was closed")
        try:
            self.journal.create(id)
        except OSError as error:
            raise MachineStartError(f"no machine without a journal: {error}") from error

    def _write_off(self, id: int) -> None:
        if id in self.journal.open:
            with contextlib.suppress(OSError):  # a full disk: the next life looks after one more that has ended
                self.journal.end(id)

    def _stir(self) -> None:
        """Let start what may start, and look again when something may change by itself."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        if self._turns:
            total, free = self._memory()
            self.scheduler.sense(HERE, free / total)
        while starts := list(self.scheduler.next(loop.time())):
            self._grant(starts, loop.time())
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        if any(not turn.done() for turn in self._turns.values()):
            at = self.scheduler.wake()
            wait = SENSE_S if at is None else min(SENSE_S, max(0.0, at - loop.time()))
            self._waker = loop.call_later(wait, self._stir)

    def _grant(self, starts: list[Start], now: float) -> None:
        for start in starts:
            turn = self._turns.get(start.ask.id)
            if turn is not None and not turn.done():
                turn.set_result(start)
            else:  # whoever asked was cancelled in this very moment, and has not been able to say so
                self.scheduler.started(start, now)
                self.scheduler.ended(start.ask.id)


class PooledMachine:
    """The machine that the pool gives, behind the same methods; capabilities are its own."""

    def __init__(self, pool: Pool, spec: MachineSpec, group: str) -> None:
        self.spec, self._pool, self._group = spec, pool, group
        self._id: int | None = None
        self._machine: Machine | None = None

    async def start(self) -> None:
        self._id, self._machine = await self._pool.take(self.spec, self._group)

    async def close(self) -> None:
        if self._id is not None:
            await self._pool.give_back(self._id)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the machine's own; before start() there is none, and its class says what it would say."""
        machine = self.__dict__.get("_machine")
        if machine is None:
            machine = self.__dict__["_machine"] = self.__dict__["_pool"].make(self.__dict__["spec"])
        return getattr(machine, name)
