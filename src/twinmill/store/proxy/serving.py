"""A TCP server in a thread of its own, in front of another. Synchronous outside, one event loop inside."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

START_S = 10.0
"""seconds within which the thread must listen, and end"""
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Use as a context manager. `upstream` is (host, port); listens at 127.0.0.1:`port`, 0 = any free one."""

    def __init__(self, upstream: tuple[str, int], *, port: int = 0, buffer_bytes: int = 1 << 16) -> None:
        self.upstream = upstream
        self.port = port
        self._buffer_bytes = buffer_bytes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._stop: asyncio.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(START_S) or self._failed is not None:
            raise RuntimeError(f"the proxy to {self.upstream} did not start within {START_S:g} s") from self._failed
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._soon(lambda: self._stop.set() if self._stop else None)
        self._thread.join(START_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, from its first byte to its last."""
        raise NotImplementedError

    async def _script(self) -> None:
        """What happens by itself, from the start on."""

    def _soon(self, work: Callable[[], object]) -> None:
        """Do `work` in the loop; nothing when that has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:
            self._failed = error
        finally:
            self._loop.close()
            self._ready.set()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        listening = socket.create_server(("127.0.0.1", self.port))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer_bytes)
        self.port = listening.getsockname()[1]
        server = await asyncio.start_server(self._accepted, sock=listening, limit=self._buffer_bytes)
        script = asyncio.ensure_future(self._script())
        self._ready.set()
        await self._stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in (script, *tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            reset(writer)  # either side has gone
        except asyncio.CancelledError:
            if self._stop is None or not self._stop.is_set():
                raise
        finally:
            self._writers.discard(writer)
            writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side sees "connection reset", not an end."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
