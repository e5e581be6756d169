"""What stands behind a server of machines: tenants and their quotas, machines and their leases. Knows no HTTP.

A lease's life, and who ends it:

    admitted ─journal─► starting ─► ready ⇄ working ─► ending ─journal─► gone
                                    CLOSED by its client · EXPIRED without a sign of life from it for lease_s ·
                                    FAILED to be made · DRAINED with the server · KILLED with it, found by the next one

Every request counts as a sign of life. `Lease.ending` is made once, whoever asks for the end, so a lease has one end.
"""

import asyncio
import hmac
import itertools
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from twinmill.records.machines import (
    Call,
    Done,
    Exec,
    ExecResult,
    Failed,
    Files,
    Fork,
    Forked,
    Get,
    JobNumber,
    Jobs,
    JobStates,
    LeaseEnd,
    LeaseEnded,
    LeaseOpened,
    LeaseRow,
    MachineMade,
    MachinesStatus,
    Pause,
    Put,
    Restore,
    Resume,
    RunBackground,
    Snapshot,
    SnapshotTaken,
    StopJob,
    TenantRow,
)
from twinmill.records.tasks import MachineSpec

from ..base import (
    Background,
    Forkable,
    InfrastructureError,
    Machine,
    MachineBusyError,
    MachineLostError,
    MachineRefused,
    MachineStartError,
    Pausable,
    Snapshotable,
)
from .config import check_token
from .failures import failure
from .journal import Journal

ANSWER_KEPT_S = 60.0
"""how long an answer is kept for a client that lost it; its next call frees it, too"""
REMEMBERED = 4096
"""ended leases of which the reason is kept for those who ask late"""
SWEEP_S = 0.5
"""between two looks at the leases"""
Value = MachineMade | Failed | Done | ExecResult | Files | Forked | SnapshotTaken | JobNumber | JobStates
Make = Callable[[MachineSpec], Machine]
T = TypeVar("T")
log = logging.getLogger("twinmill.machines")


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """Who may ask, and for how much."""

    name: str
    token: str = field(repr=False)
    machines: int = 64
    """most at once"""
    creates_per_minute: int = 600
    """forks count, too; so many may come at once, and then evenly"""
    operator: bool = False
    """may see the machines of all tenants (not use them)"""

    def __post_init__(self) -> None:
        check_token(self.token, f"tenant {self.name}")
        if self.machines < 1 or self.creates_per_minute < 1:
            raise ValueError(f"tenant {self.name}: machines and creates_per_minute must be at least 1")


@dataclass(frozen=True, kw_only=True)
class HostConfig:
    backend: str = "namespace"
    """of the machines"""
    machines: int = 256
    """most at once, of all tenants together"""
    starts: int = 8
    """machines that start at the same time; more wait their turn"""
    lease_s: float = 600.0
    """the longest lease that a client can get"""


class Bucket:
    """`per_minute` at once, refilled evenly."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = per_minute / 60, float(per_minute), clock
        self._left, self._at = self._most, clock()

    def take(self) -> float:
        """0 when one was taken, else the seconds until there is one."""
        now = self._clock()
        self._left, self._at = min(self._most, self._left + (now - self._at) * self._rate), now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0


@dataclass(eq=False)
class Account:
    """What one tenant has used since the server's start."""

    tenant: Tenant
    bucket: Bucket
    alive: int = 0
    created: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    recent: deque[float] = field(default_factory=deque)
    """times of the creates of the last minute"""

    def last_minute(self) -> int:
        while self.recent and self.recent[0] < time.monotonic() - 60:
            self.recent.popleft()
        return len(self.recent)


@dataclass(eq=False)
class Lease:
    id: str
    account: Account
    key: str
    spec: MachineSpec
    seconds: float
    opened: float
    until: float
    machine: Machine | None = None
    making: "asyncio.Task[MachineMade] | None" = None
    """shared by all that ask with this key"""
    ending: "asyncio.Task[None] | None" = None
    reason: LeaseEnd | None = None
    """why it is ending"""
    number: int = -1
    """of the last call"""
    answer: "asyncio.Task[Value] | None" = None
    """to the last call; None = freed"""
    answered: float = 0.0
    calls: int = 0
    ports: dict[int, tuple[str, int]] = field(default_factory=dict)
    """port inside -> where it is on this host, as far as it was asked for"""

    def beat(self) -> None:
        self.until = max(self.until, time.monotonic() + self.seconds)

    @property
    def state(self) -> str:
        if self.ending is not None:
            return "ending"
        if self.making is not None and not self.making.done():
            return "starting"
        return "working" if self.answer is not None and not self.answer.done() else "ready"


class Host:
    """The machines of one server. All of it runs in one event loop."""

    def __init__(self, make: Make, tenants: Sequence[Tenant], journal: Journal, config: HostConfig) -> None:
        """`make`: spec -> a machine that is not started yet."""
        if not tenants:
            raise ValueError("a server of machines needs at least one tenant, or nobody could ask it")
        for what, values in {"names": [t.name for t in tenants], "tokens": [t.token for t in tenants]}.items():
            if len(set(values)) != len(values):
                raise ValueError(f"two tenants share one of their {what}; each needs its own")
        self._make, self._journal, self.config = make, journal, config
        self._accounts = [Account(t, Bucket(t.creates_per_minute)) for t in tenants]
        self._leases: dict[tuple[str, str], Lease] = {}
        self._past: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._numbers = itertools.count()
        self._room = asyncio.Semaphore(config.starts)
        self._draining: asyncio.Event = asyncio.Event()
        self.started_at = time.time()
        self.found = journal.ended_before
        """leases that a killed server left, ended by now"""

    # ---- what is asked

    def account(self, token: str) -> Account | None:
        """Whose token it is. Every one is compared, in a time that tells nothing."""
        found = [a for a in self._accounts if hmac.compare_digest(a.tenant.token.encode(), token.encode())]
        return found[0] if found else None

    async def create(self, account: Account, key: str, spec: MachineSpec, lease_s: float) -> MachineMade:
        """The machine of this key, made if there is none. Raises what machines raise at their start."""
        where = account.tenant.name, key
        lease = self._leases.get(where)
        while lease is not None and lease.ending is not None:
            await asyncio.shield(lease.ending)
            lease = self._leases.get(where)  # another request for this key may have been faster
        if lease is None:
            lease = self._admit(account, key, spec, lease_s)
            lease.making = asyncio.create_task(self._start(lease))
        elif lease.spec != spec:
            raise MachineRefused(
                f"{key} is the key of a machine with another spec: every machine needs a key of its own"
            )
        lease.beat()
        assert lease.making is not None
        return await _result(lease.making)

    def find(self, account: Account, key: str) -> Lease:
        """Raises MachineLostError that says what became of it."""
        lease = self._leases.get((account.tenant.name, key))
        if lease is None or lease.ending is not None:
            raise MachineLostError(self._why(account, key))
        lease.beat()
        return lease

    def call(self, lease: Lease, call: Call) -> "asyncio.Task[Value]":
        """The answer, which outlives whoever waits for it: who lost it asks again with the same number."""
        if call.number == lease.number and lease.answer is not None:
            return lease.answer
        if call.number <= lease.number:
            raise MachineLostError(
                f"machine {lease.key} was asked for call {call.number} after {lease.number}: two clients have one key"
            )
        lease.number, lease.calls = call.number, lease.calls + 1
        lease.answer = asyncio.create_task(self._answer(lease, call))
        lease.answer.add_done_callback(lambda _: setattr(lease, "answered", time.monotonic()))
        return lease.answer

    def beat(self, account: Account, keys: Sequence[str]) -> dict[str, str]:
        """key -> why it is no more."""
        gone = {}
        for key in keys:
            try:
                self.find(account, key)
            except MachineLostError as error:
                gone[key] = str(error)
        return gone

    async def close(self, account: Account, key: str) -> None:
        lease = self._leases.get((account.tenant.name, key))
        if lease is not None:
            await asyncio.shield(self._end(lease, LeaseEnd.CLOSED))

    def status(self, account: Account) -> MachinesStatus:
        seen = [a for a in self._accounts if a is account or account.tenant.operator]
        now = time.monotonic()
        leases = sorted((x for x in self._leases.values() if x.account in seen), key=lambda x: x.opened)
        return MachinesStatus(
            backend=self.config.backend,
            started_at=self.started_at,
            alive=len(self._leases),
            machines=self.config.machines,
            draining=self._draining.is_set(),
            tenants=tuple(
                TenantRow(
                    name=a.tenant.name, alive=a.alive, machines=a.tenant.machines, creates_last_minute=a.last_minute(),
                    creates_per_minute=a.tenant.creates_per_minute, created=a.created, ended=dict(a.ended),
                )
                for a in seen
            ),
            leases=tuple(
                LeaseRow(
                    lease=x.id, tenant=x.account.tenant.name, key=x.key, state=x.state, age_s=round(now - x.opened, 1),
                    left_s=round(x.until - now, 1), calls=x.calls,
                )
                for x in leases
            ),
        )  # fmt: skip

    # ---- what goes on by itself

    async def watch(self) -> None:
        """End what ran out, free what nobody will ask for again. For ever.

        A host that stood still (stopped, or its lid closed) heard nobody meanwhile: all leases get that time on top."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            stood_still, before = max(0.0, now - before - 2 * SWEEP_S), now
            for lease in list(self._leases.values()):
                lease.until += stood_still
                if lease.until <= now and lease.state != "starting":  # that has a deadline of its own
                    self._end(lease, LeaseEnd.EXPIRED)
                if lease.answer is not None and lease.answer.done() and now - lease.answered > ANSWER_KEPT_S:
                    lease.answer = None

    @property
    def draining(self) -> bool:
        return self._draining.is_set()

    async def drain(self, within_s: float) -> None:
        """No new machine; those that are there may end by themselves within `within_s`, then they are ended."""
        self._draining.set()
        deadline = time.monotonic() + within_s
        while self._leases and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await asyncio.gather(*[self._end(lease, LeaseEnd.DRAINED) for lease in list(self._leases.values())])

    # ---- leases

    def _admit(self, account: Account, key: str, spec: MachineSpec, lease_s: float) -> Lease:
        """A lease, on disk before its machine is made. Raises MachineBusyError."""
        tenant = account.tenant
        if self.draining:
            raise MachineBusyError("the server of machines is about to end and makes no more", retry_after_s=2.0)
        if len(self._leases) >= self.config.machines:
            raise MachineBusyError(f"the server has {len(self._leases)} machines, its most", retry_after_s=1.0)
        if account.alive >= tenant.machines:
            raise MachineBusyError(f"tenant {tenant.name} has {account.alive} machines, its most", retry_after_s=1.0)
        if wait_s := account.bucket.take():
            raise MachineBusyError(
                f"tenant {tenant.name} may make {tenant.creates_per_minute} machines a minute", retry_after_s=wait_s
            )
        now, seconds = time.monotonic(), min(lease_s, self.config.lease_s)
        lease = Lease(f"{next(self._numbers):06}", account, key, spec, seconds, now, now + seconds)
        try:
            self._journal.write(LeaseOpened(lease=lease.id, tenant=tenant.name, key=key))
        except OSError as error:
            raise MachineStartError(f"the server cannot write its journal, and so makes no machine: {error}") from error
        self._leases[tenant.name, key] = lease
        account.alive, account.created = account.alive + 1, account.created + 1
        account.last_minute()  # forgets older ones
        account.recent.append(now)
        return lease

    async def _start(self, lease: Lease) -> MachineMade:
        try:
            async with self._room:
                lease.machine = self._make(lease.spec)
                await lease.machine.start()
        except Exception:
            self._end(lease, LeaseEnd.FAILED)
            raise
        lease.beat()
        return made(lease)

    def _end(self, lease: Lease, reason: LeaseEnd) -> "asyncio.Task[None]":
        if lease.ending is None:
            lease.reason = reason
            lease.ending = asyncio.create_task(self._ended(lease, reason))
        return lease.ending

    async def _ended(self, lease: Lease, reason: LeaseEnd) -> None:
        note, where = "", (lease.account.tenant.name, lease.key)
        try:
            if lease.making is not None and reason is not LeaseEnd.FAILED:
                lease.making.cancel()  # a start that is under way; it leaves nothing
                await asyncio.wait({lease.making})
            if lease.machine is not None:
                await lease.machine.close()
        except Exception as error:
            note = f"{type(error).__name__}: {error}"
            log.error("the machine of lease %s could not be closed: %s", lease.id, note)
        finally:
            try:
                self._journal.write(LeaseEnded(lease=lease.id, reason=reason, note=note))
            except OSError as error:  # the next life writes it
                log.error("the end of lease %s could not be written: %s", lease.id, error)
            del self._leases[where]
            lease.account.alive -= 1
            lease.account.ended[reason.value] += 1
            self._past[where] = _ended_as(lease)
            while len(self._past) > REMEMBERED:
                self._past.popitem(last=False)

    def _why(self, account: Account, key: str) -> str:
        what = self._past.get((account.tenant.name, key))
        return f"there is no machine {key}: " + (
            what or "the server was started anew, and what the earlier one had ended"
        )

    # ---- calls

    async def _answer(self, lease: Lease, call: Call) -> Value:
        try:
            if lease.making is not None:
                await _result(lease.making)
            assert lease.machine is not None
            return await self._ask(lease, lease.machine, call.ask)
        except asyncio.CancelledError:
            return failure(MachineLostError("the server ended"))
        except Exception as error:
            if isinstance(error, MachineLostError) and lease.reason is not None:
                error = MachineLostError(f"the machine is no more: {_ended_as(lease)}")
            return failure(error)

    async def _ask(self, lease: Lease, machine: Machine, ask: Any) -> Value:
        """The literal list of what can be asked."""
        match ask:
            case Exec(argv=argv, timeout_s=timeout_s, stdin=stdin, output_bytes=most):
                return await machine.exec(argv, timeout_s=timeout_s, stdin=stdin, output_bytes=most)
            case Put(files=files):
                await machine.put(files)
            case Get(patterns=patterns):
                return Files(files=await machine.get(patterns))
            case Fork(keys=keys):
                return await self._fork(lease, having(machine, Forkable, "fork"), keys)
            case Snapshot():
                return SnapshotTaken(tar=await having(machine, Snapshotable, "snapshot").snapshot())
            case Restore(tar=tar):
                await having(machine, Snapshotable, "snapshot").restore(tar)
            case Pause():
                await having(machine, Pausable, "pause").pause()
            case Resume():
                await having(machine, Pausable, "pause").resume()
            case RunBackground(argv=argv, log=log):
                return JobNumber(job=await having(machine, Background, "background").run_background(argv, log=log))
            case Jobs():
                jobs = await having(machine, Background, "background").jobs()
                return JobStates(jobs=tuple(jobs.items()))
            case StopJob(job=job):
                await having(machine, Background, "background").stop(job)
        return Done()

    async def _fork(self, parent: Lease, machine: Forkable, keys: Sequence[str]) -> Forked:
        """Each child has a lease of its own, or the reason why not, as any other machine has."""
        leases: dict[str, Lease] = {}
        outcomes: dict[str, MachineMade | Failed] = {}
        for key in keys:
            try:
                if (parent.account.tenant.name, key) in self._leases:
                    raise MachineRefused(f"{key} is the key of another machine: every machine needs a key of its own")
                leases[key] = self._admit(parent.account, key, parent.spec, parent.seconds)
            except InfrastructureError as error:
                outcomes[key] = failure(error)
        try:
            children = await machine.fork(len(leases)) if leases else []
        except BaseException:
            for lease in leases.values():
                self._end(lease, LeaseEnd.FAILED)
            raise
        for (key, lease), child in zip(leases.items(), children, strict=True):
            if isinstance(child, InfrastructureError):
                outcomes[key] = failure(child)
                self._end(lease, LeaseEnd.FAILED)
            elif lease.ending is not None:  # while it was being made
                await child.close()
                outcomes[key] = failure(MachineLostError(f"the machine is no more: {_ended_as(lease)}"))
            else:
                lease.machine = child
                outcomes[key] = made(lease)
        return Forked(children=tuple(outcomes[key] for key in keys))


_ENDS = {
    LeaseEnd.CLOSED: "it was closed",
    LeaseEnd.EXPIRED: "its lease ran out, without a sign of life from its client for {seconds:g} s",
    LeaseEnd.FAILED: "it could not be made",
    LeaseEnd.DRAINED: "the server ended it, being told to end",
}


def _ended_as(lease: Lease) -> str:
    assert lease.reason is not None
    return _ENDS[lease.reason].format(seconds=lease.seconds)


def having(machine: object, protocol: type[T], name: str) -> T:
    """The machine, if its backend has this at all."""
    if not isinstance(machine, protocol):
        raise MachineRefused(f"the server's {type(machine).__name__} has no {name}")
    return machine


def made(lease: Lease) -> MachineMade:
    machine: Any = lease.machine
    have = set(getattr(machine, "capabilities", ()))
    return MachineMade(
        key=lease.key,
        lease_s=lease.seconds,
        capabilities=tuple(sorted(have)),
        limits_in_force=dict(getattr(machine, "limits_in_force", {})),
    )


async def _result(making: "asyncio.Task[MachineMade]") -> MachineMade:
    """Of a start that others wait for, too."""
    await asyncio.wait({making})
    if making.cancelled():
        raise MachineLostError("the machine was ended before it was ready")
    return making.result()
