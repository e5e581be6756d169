"""A link of bounded speed and latency inside one process: what crosses takes the time it would take.

To simulate a far cluster from its own settings. Between processes, and with outages: `twinmill.store.proxy.shaping`.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable

from twinmill.store.requests import CHUNK_BYTES, Chunk, Place, Requests

from .config import LinkConfig


class Link:
    """Makes transfers take the time they would take. Transfers share the bandwidth by queueing."""

    def __init__(
        self,
        config: LinkConfig,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if config.bytes_per_s < 0 or config.latency_s < 0:
            raise ValueError(f"link of {config.bytes_per_s} bytes/s, {config.latency_s} s latency: want numbers >= 0")
        self.latency_s = config.latency_s
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.bytes = 0
        """bytes that have crossed"""

    def cross(self, size: int) -> None:
        """Wait for as long as a request of `size` bytes takes from now."""
        wait = self.queue(size) + self.latency_s
        if wait > 0:
            self._sleep(wait)

    def queue(self, size: int) -> float:
        """Take a place in the queue for `size` bytes: seconds until the last of them has left."""
        with self._lock:
            now = self._clock()
            self.bytes += size
            start = max(now, self._free_at)
            self._free_at = start + (size / self._config.bytes_per_s if self._config.bytes_per_s else 0.0)
            return self._free_at - now


class Far:
    """The store, at the other end of the link."""

    def __init__(self, source: Place, link: Link) -> None:
        self.url = source.url
        self._source = source
        self._link = link

    def requests(self) -> Requests:
        return _Crossing(self._source.requests(), self._link)


class _Crossing:
    """Requests that take as long as the link makes them."""

    def __init__(self, inner: Requests, link: Link) -> None:
        self.url = inner.url
        self._inner = inner
        self._link = link

    async def size(self, key: str) -> int:
        await self._wait(0)
        return await self._inner.size(key)

    async def write(self, key: str, data: memoryview) -> str:
        await self._wait(len(data))
        return await self._inner.write(key, data)

    async def read(self, key: str, offset: int, length: int, whole: int | None = None) -> AsyncGenerator[Chunk]:
        await asyncio.sleep(self._link.latency_s)
        async for chunk in self._inner.read(key, offset, length, whole):
            for at in range(0, len(chunk), CHUNK_BYTES):  # a folder gives all at once, a link does not
                part = chunk[at : at + CHUNK_BYTES]
                await asyncio.sleep(self._link.queue(len(part)))
                yield part

    async def delete(self, key: str) -> None:
        await self._wait(0)
        await self._inner.delete(key)

    async def _wait(self, size: int) -> None:
        await asyncio.sleep(self._link.queue(size) + self._link.latency_s)
