"""The `remote` backend: machines of a server on another host, with the protocol and the exceptions of a local one.

What can go wrong between, and what it is called here. All of it is infrastructure, so none of it becomes a reward:

    the server cannot be reached, or falls silent, for patience_s   MachineStartError at start, then MachineLostError
    it was started anew, or ended the machine                       MachineLostError, with the server's reason
    no sign of life of ours reached it for lease_s                  MachineLostError: the lease has run out
    it does not know our token, or takes no body of this size       MachineRefused
    it is full, or our quota is used up, for longer than busy_s     MachineBusyError

Only an OSError, a ValueError or a MachineDestroyed that the *machine* raised comes out as such: errors of the line are
no OSErrors here, since an OSError at a put means "the agent's files do not fit" to who grades.

Whatever is asked is asked again while patience lasts: creates carry a key, calls a number, so nothing is done twice.
All machines of one event loop on one server share a connection pool and a heartbeat, in a Link.
"""

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx2 as httpx

from twinmill.records import wire
from twinmill.records.base import Record
from twinmill.records.machines import (
    Answer,
    Beat,
    Beaten,
    Call,
    CreateMachine,
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
)
from twinmill.records.tasks import MachineSpec

from ..base import (
    Capability,
    InfrastructureError,
    Machine,
    MachineBusyError,
    MachineLostError,
    MachineRefused,
    MachineStartError,
)
from ..expose import Listener
from ..paths import check_path, matches
from .config import Server
from .failures import exception_of

SILENCE_S = 15.0
"""three beats of the server without one: it, or the line, is dead"""
CONNECT_S = 5.0
CLOSE_S = 5.0
"""patience of a close: if it does not arrive, the lease ends the machine"""
BEATS_PER_LEASE = 4
R = TypeVar("R", bound=Record)


class Unreachable(MachineLostError):
    """The server does not answer; whether the machine is still there, nobody knows."""


_links: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Server, Link]]" = WeakKeyDictionary()


class Link:
    """One event loop's connections to one server, and the heartbeat of its machines there. Opened with the first
    machine, closed with the last."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.machines: dict[str, RemoteMachine] = {}
        """those that the heart beats for"""
        self._users: set[RemoteMachine] = set()
        self.lease_s = server.config.lease_s
        self.http = httpx.AsyncClient(
            base_url=server.url,
            headers={"authorization": f"Bearer {server.token}"},
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30.0),
            trust_env=False,
        )
        self.tunnels: set[asyncio.Task[None]] = set()
        self._heart: asyncio.Task[None] | None = None

    @staticmethod
    def of(server: Server) -> "Link":
        links = _links.setdefault(asyncio.get_running_loop(), {})
        if server not in links:
            links[server] = Link(server)
        return links[server]

    def enter(self, machine: "RemoteMachine") -> None:
        self._users.add(machine)

    def beat_for(self, machine: "RemoteMachine", lease_s: float) -> None:
        """From now on, and as often as the shortest lease wants."""
        self.machines[machine.key] = machine
        self.lease_s = min(self.lease_s, lease_s)
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())

    async def leave(self, machine: "RemoteMachine") -> None:
        self.machines.pop(machine.key, None)
        self._users.discard(machine)
        if not self._users and _links.get(asyncio.get_running_loop(), {}).pop(self.server, None) is self:
            ending = [*self.tunnels, *([self._heart] if self._heart is not None else [])]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            await self.http.aclose()

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, patience_s: float | None = None, key: str = ""
    ) -> Any:
        """What the server answers, asked again while it is out of reach. Raises what it says, or Unreachable."""
        loop = asyncio.get_running_loop()
        patience_s = self.server.config.patience_s if patience_s is None else patience_s
        failing_since, pause_s = None, 0.05
        while True:
            asked_at = loop.time()
            try:
                response = await self.http.request(
                    method, path, content=body, headers={"idempotency-key": key} if key else None
                )
                return self._read(response)
            except httpx.HTTPError as error:
                why = f"{type(error).__name__} {error}".strip()
            except _NoAnswer as error:
                why = str(error)
            now = loop.time()
            if failing_since is None or now - asked_at > SILENCE_S + CONNECT_S:  # so long a try heard from it meanwhile
                failing_since, pause_s = now, 0.05
            if now + pause_s - failing_since > patience_s:
                raise Unreachable(
                    f"the server of machines at {self.server.url} did not answer for {patience_s:g} s ({why}); is it running?"
                ) from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _read(self, response: httpx.Response) -> Any:
        try:
            value = wire.unpack(response.content.lstrip(b"\0"), Answer).value
        except wire.WireError as error:
            if response.status_code < 500 and response.content.strip(b"\0"):
                raise MachineRefused(
                    f"{self.server.url} answers with status {response.status_code} and no packed record: is it a "
                    f"`twinmill machines serve` of this version? ({error})"
                ) from None
            raise _NoAnswer(f"status {response.status_code}, and no record") from None
        if isinstance(value, Failed):
            raise exception_of(value)
        return value

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            await asyncio.sleep(self.lease_s / BEATS_PER_LEASE)
            keys = tuple(self.machines)
            try:
                beaten: Beaten = await self.ask(
                    "POST", "/v1/leases", wire.pack(Beat(keys=keys)), patience_s=self.lease_s / BEATS_PER_LEASE
                )
                heard = loop.time()
                for key, why in beaten.gone.items():
                    self._lose(key, why)
            except InfrastructureError as error:
                if loop.time() - heard > self.lease_s:
                    for key in keys:
                        self._lose(key, f"no sign of life reached the server for {self.lease_s:g} s: {error}")

    def _lose(self, key: str, why: str) -> None:
        if key in self.machines:
            self.machines[key].lost(why)


async def status_of(server: Server) -> MachinesStatus:
    """What the server shows to the owner of this token."""
    link = Link(server)
    try:
        status: MachinesStatus = await link.ask("GET", "/v1/status")
        return status
    finally:
        await link.http.aclose()


class _NoAnswer(Exception):
    """A cut answer, or a gateway's own error: as good as none."""


class RemoteMachine:
    """See machine.base. One request at a time; a cancelled one leaves the machine unusable."""

    def __init__(self, spec: MachineSpec, *, server: Server | None = None) -> None:
        if server is None:
            raise ValueError("the remote backend needs a server: a run names it with remote.url and remote.token_env")
        self.spec, self.server = spec, server
        self.key = uuid.uuid4().hex
        self._link: Link | None = None
        self._made: MachineMade | None = None
        self._end: Exception | None = None
        self._number = 0
        self._turn = asyncio.Lock()
        self._listeners: list[Listener] = []

    async def start(self) -> None:
        if self._made is not None or self._end is not None:
            raise MachineStartError("a machine is started once")
        self._link = link = self._link or Link.of(self.server)
        link.enter(self)
        try:
            made = await self._create(link)
        except InfrastructureError:
            self._link = None
            await link.leave(self)
            raise
        self._begin(link, made)

    async def _create(self, link: Link) -> MachineMade:
        """Where the last answer is lost there may be a machine: nobody beats for it, and its lease ends it."""
        config, loop = self.server.config, asyncio.get_running_loop()
        body = wire.pack(CreateMachine(spec=self.spec, lease_s=config.lease_s))
        deadline = loop.time() + config.busy_s
        while True:
            try:
                made: MachineMade = await link.ask("POST", "/v1/machines", body, key=self.key)
                return made
            except MachineBusyError as busy:
                wait_s = max(0.05, min(busy.retry_after_s, 5.0))
                if loop.time() + wait_s > deadline:
                    raise
                await asyncio.sleep(wait_s)
            except MachineLostError as error:
                raise MachineStartError(str(error)) from error

    def _begin(self, link: Link, made: MachineMade) -> None:
        self._link, self._made = link, made
        link.enter(self)
        link.beat_for(self, made.lease_s)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Of this started machine: what the server's has."""
        return frozenset(map(Capability, self._there().capabilities))

    @property
    def limits_in_force(self) -> dict[str, str]:
        """What really binds this machine on the server's host, by resource."""
        return dict(self._there().limits_in_force)

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", output_bytes: int = 65536
    ) -> ExecResult:
        if not argv or timeout_s <= 0:
            raise ValueError(f"exec needs a command and a deadline above 0, not {list(argv)!r} and {timeout_s}")
        ask = Exec(argv=tuple(argv), timeout_s=timeout_s, stdin=bytes(stdin), output_bytes=output_bytes)
        return await self._call(ask, ExecResult)

    async def put(self, files: Mapping[str, bytes]) -> None:
        await self._call(Put(files={check_path(path): bytes(data) for path, data in files.items()}), Done)

    async def get(self, patterns: Sequence[str]) -> dict[str, bytes]:
        matches("", patterns)  # a pattern that leaves the workspace is refused before anything is asked
        return (await self._call(Get(patterns=tuple(patterns)), Files)).files

    async def close(self) -> None:
        """Where the server cannot be reached the lease ends the machine, since nobody beats for it any more."""
        link, self._link = self._link, None
        self._end = self._end or MachineLostError("the machine was closed")
        for listener in self._listeners:
            await listener.close()
        if link is not None:
            try:
                with contextlib.suppress(InfrastructureError):
                    patience_s = 0.0 if isinstance(self._end, Unreachable) else CLOSE_S
                    await link.ask("DELETE", f"/v1/machines/{self.key}", patience_s=patience_s)
                async with self._turn:  # a request in flight is answered by the machine's end
                    pass
            finally:
                await link.leave(self)

    def lost(self, why: str) -> None:
        """Told by the heart."""
        self._end = self._end or MachineLostError(why)

    # ---- capabilities

    async def fork(self, count: int) -> list[Machine | InfrastructureError]:
        if count < 1:
            raise ValueError(f"fork needs a count of at least 1, not {count}")
        children = [RemoteMachine(self.spec, server=self.server) for _ in range(count)]
        forked = await self._call(Fork(keys=tuple(child.key for child in children)), Forked)
        outcomes = list[Machine | InfrastructureError]()
        for child, made in zip(children, forked.children, strict=True):
            if isinstance(made, MachineMade):
                child._begin(Link.of(self.server), made)
                outcomes.append(child)
            else:
                error = exception_of(made)
                lost = error if isinstance(error, InfrastructureError) else MachineStartError(str(error))
                outcomes.append(lost)
        return outcomes

    async def snapshot(self) -> bytes:
        return (await self._call(Snapshot(), SnapshotTaken)).tar

    async def restore(self, snapshot: bytes) -> None:
        await self._call(Restore(tar=snapshot), Done)

    async def pause(self) -> None:
        await self._call(Pause(), Done)

    async def resume(self) -> None:
        await self._call(Resume(), Done)

    async def run_background(self, argv: Sequence[str], *, log: str = "") -> int:
        if not argv:
            raise ValueError("a background job needs a command")
        return (await self._call(RunBackground(argv=tuple(argv), log=log and check_path(log)), JobNumber)).job

    async def jobs(self) -> dict[int, int | None]:
        return dict((await self._call(Jobs(), JobStates)).jobs)

    async def stop(self, job: int) -> None:
        await self._call(StopJob(job=job), Done)

    async def expose(self, port: int) -> tuple[str, int]:
        """A listener on *this* host; each of its connections is two streams to the server, one for each direction."""
        if Capability.EXPOSE not in self.capabilities:
            raise MachineRefused("the server's machine has no expose; ask for it in the spec's `needs`")
        assert self._link is not None
        link = self._link

        async def connect() -> socket.socket:
            return await tunnel(link, f"/v1/machines/{self.key}/ports/{port}/{uuid.uuid4().hex}")

        listener = Listener(connect)
        self._listeners.append(listener)
        return await listener.start()

    # ---- the other end

    def _there(self) -> MachineMade:
        if self._end is not None:
            raise self._end
        if self._made is None:
            raise MachineStartError("the machine was not started")
        return self._made

    async def _call(self, ask: Any, kind: type[R]) -> R:
        async with self._turn:
            self._there()
            assert self._link is not None
            body = wire.pack(Call(number=self._number, ask=ask))
            self._number += 1
            try:
                value = await self._link.ask("POST", f"/v1/machines/{self.key}", body)
            except Unreachable as error:
                self._end = self._end or error
                raise self._end from None
            except asyncio.CancelledError:
                self._end = self._end or MachineLostError(f"a request ({type(ask).__name__}) was cancelled half-way")
                raise
            if not isinstance(value, kind):
                raise MachineLostError(f"the server answered {type(ask).__name__} with {type(value).__name__}")
            return value


async def tunnel(link: Link, path: str) -> socket.socket:
    """A socket whose other end is the port behind `path`, by two streams of HTTP. Raises OSError when there is none."""
    ours, theirs = socket.socketpair()
    try:
        request = link.http.build_request("GET", path, timeout=httpx.Timeout(None, connect=CONNECT_S))
        response = await link.http.send(request, stream=True)
    except httpx.HTTPError as error:
        ours.close()
        theirs.close()
        raise ConnectionError(str(error)) from error
    reader, writer = await asyncio.open_connection(sock=theirs)

    async def down() -> None:
        try:
            if response.status_code == 200:
                async for data in response.aiter_raw():
                    writer.write(data)
                    await writer.drain()
        finally:
            await response.aclose()
            writer.close()

    async def up() -> None:
        async def parts():  # type: ignore[no-untyped-def]
            while data := await reader.read(65536):
                yield data

        await link.http.post(path, content=parts(), timeout=httpx.Timeout(None, connect=CONNECT_S))

    async def both() -> None:
        sending = asyncio.create_task(up())
        try:
            await down()
        except (httpx.HTTPError, ConnectionError):
            writer.close()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    task = asyncio.create_task(both())
    link.tunnels.add(task)
    task.add_done_callback(link.tunnels.discard)
    return ours
