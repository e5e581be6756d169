"""A gateway on a socket, from start to a graceful end.

SIGTERM and SIGINT: no further connection is taken, calls at work are answered (at most `drain_s`), then open sessions are
logged as lost and the process ends with code 0. A second signal does not wait for calls.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn

from .app import Gateway

HANDLED = (signal.SIGTERM, signal.SIGINT)


def listen(host: str, port: int) -> socket.socket:
    """Port 0 = any free one. OSError when it cannot be had: better said before an engine is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512)


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    gateway: Gateway, listener: socket.socket, *, drain_s: float, ready: Callable[["Server"], None] | None = None
) -> None:
    """Until a signal comes, or `Server.drain`. `ready` is called when requests are taken. OSError where it cannot be."""
    await gateway.claim()
    config = uvicorn.Config(
        gateway.app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=max(1, round(drain_s)),
        timeout_keep_alive=30, h11_max_incomplete_event_size=64 * 2**10, server_header=False,
    )  # fmt: skip
    server = Server(config, gateway, ready)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ValueError, RuntimeError):  # signals belong to a process's main thread
        for number in HANDLED:
            loop.add_signal_handler(number, server.drain)
    try:
        await server.serve(sockets=[listener])
    finally:
        with contextlib.suppress(ValueError, RuntimeError):
            for number in HANDLED:
                loop.remove_signal_handler(number)
    if server.lifespan.should_exit:
        raise OSError(f"the gateway {'did not end in order' if server.started else 'could not start'}; see above")


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, gateway: Gateway, ready: Callable[["Server"], None] | None) -> None:
        super().__init__(config)
        self._gateway, self._ready = gateway, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready(self)

    def drain(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = self._gateway.draining = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Not uvicorn's way, which ends the process by the signal after a graceful end."""
        yield
