"""The HTTP side of a server of machines: routes, tokens, bounds of bodies, answers that show that the server lives.

An answer whose work takes long begins at once: status 200, then a zero byte every BEAT_S, then the packed record. So a
client knows a command that runs for minutes from a server, or a line, that is dead. Failures that are known before any
work have a status of their own (401, 404, 409, 413, 422, 429 with Retry-After); their body is a packed Answer, too.
"""

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from twinmill.records import wire
from twinmill.records.base import Record
from twinmill.records.machines import Answer, Beat, Beaten, Call, CreateMachine, Done, Failed

from .. import make_machine
from ..base import Exposable, InfrastructureError, MachineBusyError, MachineLostError, MachineRefused
from .host import Account, Host, HostConfig, Make, Tenant, failure, having
from .journal import Journal

BEAT_S = 5.0
"""between two signs of life within an answer"""
BODY_BYTES = 256 << 20
"""the largest body, by default: a snapshot, or the files of one put"""
PORT_CHUNK = 65536
KEY = re.compile(r"[A-Za-z0-9_-]{8,64}")
PACKED = "application/msgpack"
DEFAULTS = HostConfig()
R = TypeVar("R", bound=Record)
Endpoint = Callable[[Request, Account], Awaitable[Response]]


class Problem(Exception):
    """An answer with a status of its own."""

    def __init__(self, status: int, failed: Failed) -> None:
        super().__init__(failed.message)
        self.status, self.failed = status, failed


class App:
    """The routes over one host."""

    def __init__(self, host: Host, *, body_bytes: int = BODY_BYTES) -> None:
        self.host, self.body_bytes = host, body_bytes
        self._ports: dict[tuple[str, str, str], asyncio.StreamWriter] = {}
        """(tenant, key, ID) -> the connection to a port inside"""
        machine, port = "/v1/machines/{key}", "/v1/machines/{key}/ports/{port:int}/{id}"
        self.starlette = Starlette(
            routes=[
                Route("/v1/machines", self._for_tenants(self.create), methods=["POST"]),
                Route(machine, self._for_tenants(self.call), methods=["POST"]),
                Route(machine, self._for_tenants(self.close), methods=["DELETE"]),
                Route(port, self._for_tenants(self.from_port), methods=["GET"]),
                Route(port, self._for_tenants(self.to_port), methods=["POST"]),
                Route("/v1/leases", self._for_tenants(self.beat), methods=["POST"]),
                Route("/v1/status", self._for_tenants(self.status), methods=["GET"]),
                Route("/v1/health", self.health, methods=["GET"]),
            ]
        )

    # ---- endpoints

    async def create(self, request: Request, account: Account) -> Response:
        key = request.headers.get("idempotency-key", "")
        if KEY.fullmatch(key) is None:
            raise _bad("a create needs the header Idempotency-Key: 8 to 64 letters, digits, - and _")
        ask = await self._body(request, CreateMachine)
        return await _answered(asyncio.create_task(self.host.create(account, key, ask.spec, ask.lease_s)))

    async def call(self, request: Request, account: Account) -> Response:
        lease = self.host.find(account, request.path_params["key"])
        return await _answered(self.host.call(lease, await self._body(request, Call)))

    async def close(self, request: Request, account: Account) -> Response:
        async def closed() -> Done:
            await self.host.close(account, request.path_params["key"])
            return Done()

        return await _answered(asyncio.create_task(closed()))

    async def beat(self, request: Request, account: Account) -> Response:
        ask = await self._body(request, Beat)
        return _packed(Beaten(gone=self.host.beat(account, ask.keys)))

    async def status(self, request: Request, account: Account) -> Response:
        return _packed(self.host.status(account))

    async def health(self, request: Request) -> Response:
        return PlainTextResponse("draining\n", 503) if self.host.draining else PlainTextResponse("ok\n")

    async def from_port(self, request: Request, account: Account) -> Response:
        """A new connection to a port inside; what comes from it. Its end is the end of this answer."""
        lease = self.host.find(account, request.path_params["key"])
        if lease.machine is None:
            raise MachineLostError(f"the machine {lease.key} is not ready")
        port = request.path_params["port"]
        if port not in lease.ports:
            lease.ports[port] = await having(lease.machine, Exposable, "expose").expose(port)
        reader, writer = await asyncio.open_connection(*lease.ports[port])
        where = (account.tenant.name, lease.key, request.path_params["id"])
        self._ports[where] = writer

        async def bytes_from() -> AsyncIterator[bytes]:
            try:
                with contextlib.suppress(ConnectionError):
                    while data := await reader.read(PORT_CHUNK):
                        yield data
            finally:
                self._ports.pop(where, None)
                writer.close()

        return StreamingResponse(bytes_from(), media_type="application/octet-stream")

    async def to_port(self, request: Request, account: Account) -> Response:
        """What goes to it, as it comes."""
        where = (account.tenant.name, request.path_params["key"], request.path_params["id"])
        writer = self._ports.get(where)
        if writer is None:
            raise MachineLostError("there is no such connection to a port: ask for what comes from it first")
        with contextlib.suppress(ConnectionError, ClientDisconnect):
            async for data in request.stream():
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        return _packed(Done())

    # ---- what all of them share

    def _for_tenants(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def asked(request: Request) -> Response:
            try:
                return await endpoint(request, self._account(request))
            except Problem as problem:
                return _packed(problem.failed, problem.status)
            except MachineLostError as error:
                return _packed(failure(error), 404)
            except InfrastructureError as error:
                return _packed(failure(error), STATUS.get(type(error).__name__, 500))

        return asked

    def _account(self, request: Request) -> Account:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        account = self.host.account(token.strip()) if kind.lower() == "bearer" and token else None
        if account is None:
            what = "does not know this token" if token else "wants a token: Authorization: Bearer TOKEN"
            raise Problem(401, Failed(kind="MachineRefused", message=f"the server of machines {what}"))
        return account

    async def _body(self, request: Request, kind: type[R]) -> R:
        """Read no further than the bound, whatever the client said its length was."""
        data = bytearray()
        try:
            async for part in request.stream():
                data += part
                if len(data) > self.body_bytes:
                    raise Problem(
                        413,
                        Failed(
                            kind="MachineRefused",
                            message=f"the server of machines takes bodies of up to {self.body_bytes} bytes (--body-mib)",
                        ),
                    )
            return wire.unpack(bytes(data), kind)
        except wire.WireError as error:
            raise _bad(f"{error}. Client and server may be of different versions") from error
        except ClientDisconnect as error:
            raise _bad("the client went away") from error


STATUS = {"MachineBusyError": 429, "MachineRefused": 409}
"""exception -> what it is in HTTP, where it is known before any work"""


def _bad(message: str) -> Problem:
    return Problem(422, Failed(kind="MachineRefused", message=message))


def _packed(value: Any, status: int = 200) -> Response:
    headers = {"retry-after": str(max(1, round(value.retry_after_s)))} if status == 429 else None
    return Response(wire.pack(Answer(value=value)), status, media_type=PACKED, headers=headers)


async def _answered(work: "asyncio.Task[Any]") -> Response:
    """At once where the work takes less than a beat. It goes on when the client does not wait: who asks again gets it."""
    done, _ = await asyncio.wait({work}, timeout=BEAT_S)
    if done:
        error = work.exception()
        if isinstance(error, MachineBusyError | MachineRefused):
            raise error
        return _packed(_value(work))

    async def parts() -> AsyncIterator[bytes]:
        yield b"\0"
        while not (await asyncio.wait({work}, timeout=BEAT_S))[0]:
            yield b"\0"
        yield wire.pack(Answer(value=_value(work)))

    return StreamingResponse(parts(), media_type=PACKED)


def _value(work: "asyncio.Task[Any]") -> Any:
    error = work.exception()
    return work.result() if error is None else failure(error)


# ---- the process


class _Uvicorn(uvicorn.Server):
    """Told to end, it drains first; told again, it ends."""

    on_signal: Callable[[], bool] = staticmethod(lambda: False)
    """begin to drain; False = that was begun before"""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.on_signal():
            self.should_exit = True


async def serve(
    host: str,
    port: int,
    tenants: Sequence[Tenant],
    folder: Path,
    *,
    config: HostConfig = DEFAULTS,
    body_bytes: int = BODY_BYTES,
    drain_s: float = 30.0,
    make: Make | None = None,
    ready: Callable[[str, Host, Callable[[], object]], object] = lambda url, host, stop: None,
) -> None:
    """Until SIGTERM or SIGINT, which drains. `ready`: called with the URL, the host, and what else ends it."""
    sock = _listening(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"
    try:
        with Journal(folder) as journal:
            machines = Host(make or partial(make_machine, config.backend), tenants, journal, config)
            app = App(machines, body_bytes=body_bytes)
            server = _Uvicorn(
                uvicorn.Config(
                    app.starlette, log_level="warning", access_log=False, lifespan="off", ws="none",
                    timeout_graceful_shutdown=5, timeout_keep_alive=60, server_header=False,
                )
            )  # fmt: skip
            loop, draining = asyncio.get_running_loop(), list[asyncio.Task[None]]()

            def stop() -> bool:
                """From a signal's handler or another thread: the loop must wake up for it."""
                if draining:
                    return False
                loop.call_soon_threadsafe(begin)
                return True

            def begin() -> None:
                if not draining:
                    draining.append(asyncio.create_task(machines.drain(drain_s)))
                    draining[0].add_done_callback(lambda _: setattr(server, "should_exit", True))

            server.on_signal = stop  # type: ignore[method-assign]
            watching = asyncio.create_task(machines.watch())
            try:
                loop.call_soon(ready, url, machines, stop)
                await server.serve([sock])
            finally:
                watching.cancel()
                await machines.drain(0.0)
    finally:
        sock.close()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise MachineRefused(
            f"cannot listen at {host}:{port}: {error.strerror}; choose another --port (0 = any free one) or --host"
        ) from error


@contextlib.contextmanager
def serving(
    tenants: Sequence[Tenant], folder: Path, *, host: str = "127.0.0.1", port: int = 0, **more: Any
) -> Iterator[tuple[str, Host]]:
    """A server in a thread of this process, for tests and for who wants to try one: its URL, and what is behind it."""
    up, ends, found = threading.Event(), list[BaseException](), dict[str, Any]()

    def ready(url: str, behind: Host, stop: Callable[[], object]) -> None:
        found.update(url=url, behind=behind, stop=stop)
        up.set()

    def run() -> None:
        try:
            asyncio.run(serve(host, port, tenants, folder, ready=ready, **{"drain_s": 0.0, **more}))
        except BaseException as error:
            ends.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=run, name="machines", daemon=True)
    thread.start()
    up.wait()
    try:
        if ends:
            raise ends[0]
        yield found["url"], found["behind"]
    finally:
        if not ends:
            found["stop"]()
        thread.join(30)
    if ends:
        raise ends[0]
