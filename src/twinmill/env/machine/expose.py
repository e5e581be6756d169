"""A port inside of a machine, reached from outside: a listener on this host whose connections are passed on."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

Connect = Callable[[], Awaitable[socket.socket]]
"""a new connection to the port inside; raises OSError where nothing listens, and what machines raise"""
CHUNK = 65536


class Listener:
    """On the loopback of this host. One task and two descriptors for each connection, none of them the machine's own."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            inside = await asyncio.open_connection(sock=await self._connect())
            try:
                await asyncio.gather(_pass_on(reader, inside[1]), _pass_on(inside[0], writer))
            finally:
                inside[1].close()
        except Exception:  # whoever connected sees a connection that ends: it is not told why
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
