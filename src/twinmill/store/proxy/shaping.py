"""A link of bounded bandwidth and some length, with outages, in front of a store: a far cluster on one machine.

    client ──► at most window_bytes per connection, not yet acknowledged ──► one queue for all, at the link's speed ──► half
    the round trip ──► store; and the same way back.

So one connection gets at most window_bytes per round trip, as over a real distance: only many in flight fill the link.
Opening a connection takes a round trip. Bytes of all connections share the speed chunk by chunk, in turn.

Not modelled: loss and what TCP does about it (use netem where the host has it).
"""

import argparse
import asyncio
import threading
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from twinmill.store.flight import Room

from .serving import Proxy, reset

_AHEAD_S = 0.02
"""how far ahead a queue may be filled, and how much lost time it may make up: above a busy machine's timer jitter"""
_CHUNK_S = 0.002
_CHUNK_BYTES = (4 << 10, 256 << 10)


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    up_bytes_per_s: float = 0.0
    """from client to store; 0 = unbounded"""
    down_bytes_per_s: float = 0.0
    """from store to client; 0 = unbounded"""
    rtt_s: float = 0.0
    """seconds there and back; 0 = none"""
    window_bytes: int = 4 << 20
    """bytes of one connection and direction on their way; 0 = unbounded"""

    def __post_init__(self) -> None:
        if min(self.up_bytes_per_s, self.down_bytes_per_s, self.rtt_s, self.window_bytes) < 0:
            raise ValueError(f"{self}: want numbers >= 0")


class Fall(Enum):
    """How a link is down."""

    SILENT = "silent"
    """connections stay, nothing moves"""
    CUT = "cut"
    """connections are reset, new ones too"""


class Outage(NamedTuple):
    at_s: float
    """seconds after the proxy's start"""
    seconds: float
    fall: Fall = Fall.CUT


class Carried(NamedTuple):
    """What one direction has carried since the start, or since `forget`."""

    bytes: int
    busy_s: float
    """from when the first byte left to when the last one did"""

    def use(self, bytes_per_s: float) -> float:
        """Share of the link that was used meanwhile."""
        return self.bytes / (bytes_per_s * self.busy_s) if self.busy_s else 0.0


class _Way:
    """One direction of the link. Belongs to the proxy's loop; the counts may be read from elsewhere."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._turn = asyncio.Lock()
        self._free_at = 0.0
        self._counts = threading.Lock()
        self.forget()

    @property
    def chunk_bytes(self) -> int:
        least, most = _CHUNK_BYTES
        return min(most, max(least, int(self.bytes_per_s * _CHUNK_S))) if self.bytes_per_s else most

    def forget(self) -> None:
        with self._counts:
            self._bytes, self._first, self._last = 0, 0.0, 0.0

    @property
    def carried(self) -> Carried:
        with self._counts:
            return Carried(self._bytes, self._last - self._first)

    async def cross(self, size: int) -> float:
        """Wait for a turn; the time at which the last of `size` bytes has left."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            while (ahead := self._free_at - loop.time()) > _AHEAD_S:
                await asyncio.sleep(ahead - _AHEAD_S / 2)
            begin = max(self._free_at, loop.time() - _AHEAD_S)
            self._free_at = begin + (size / self.bytes_per_s if self.bytes_per_s else 0.0)
        with self._counts:
            self._first = self._first if self._bytes else begin
            self._bytes += size
            self._last = self._free_at
        return max(self._free_at, loop.time())


class ShapingProxy(Proxy):
    """TCP, whatever is spoken over it. `up` and `down` say what was carried."""

    def __init__(
        self, upstream: tuple[str, int], shape: Shape, outages: Sequence[Outage] = (), *, port: int = 0
    ) -> None:
        super().__init__(upstream, port=port)
        self.shape = shape
        self._outages = sorted(outages)
        self._up = _Way(shape.up_bytes_per_s)
        self._down = _Way(shape.down_bytes_per_s)
        self._moving = asyncio.Event()
        self._moving.set()
        self._fallen: Fall | None = None

    @property
    def up(self) -> Carried:
        return self._up.carried

    @property
    def down(self) -> Carried:
        return self._down.carried

    def forget(self) -> None:
        """Count from now on."""
        self._up.forget()
        self._down.forget()

    def fall(self, fall: Fall) -> None:
        """Be down from now on, until `mend`."""
        self._soon(lambda: self._fall(fall))

    def mend(self) -> None:
        self._soon(self._mend)

    def _fall(self, fall: Fall) -> None:
        self._fallen = fall
        self._moving.clear()
        if fall is Fall.CUT:
            for writer in list(self._writers):
                reset(writer)

    def _mend(self) -> None:
        self._fallen = None
        self._moving.set()

    async def _script(self) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for outage in self._outages:
            await asyncio.sleep(start + outage.at_s - loop.time())
            self._fall(outage.fall)
            await asyncio.sleep(outage.seconds)
            self._mend()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._fallen is Fall.CUT:
            reset(writer)
            return
        await asyncio.sleep(self.shape.rtt_s)
        there, back = await asyncio.open_connection(*self.upstream, limit=self._buffer_bytes)
        self._writers.add(back)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, back, self._up))
                group.create_task(self._pump(there, writer, self._down))
        except* (ConnectionError, OSError):
            reset(writer)
            reset(back)
        finally:
            self._writers.discard(back)
            back.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Way) -> None:
        """Everything from one side to the other, one direction's way."""
        loop = asyncio.get_running_loop()
        window = Room(1 << 30, self.shape.window_bytes or 1 << 60)
        moving: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                at, data = await moving.get()
                await asyncio.sleep(at - loop.time())
                await self._moving.wait()
                if not data:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
                loop.call_later(self.shape.rtt_s / 2, window.leave, len(data))

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            while True:
                data = await reader.read(way.chunk_bytes)
                await self._moving.wait()
                await window.enter(len(data))
                at = await way.cross(len(data)) if data else loop.time()
                moving.put_nowait((at + self.shape.rtt_s / 2, data))
                if not data:
                    return


def main() -> None:
    parser = argparse.ArgumentParser(description="Stand in front of a server as a far and narrow link.")
    parser.add_argument("upstream", help="host:port of the server")
    parser.add_argument("--port", type=int, default=0, help="to listen at, on 127.0.0.1; 0 = any")
    parser.add_argument("--up", type=float, default=0.0, help="bytes per second towards the server; 0 = unbounded")
    parser.add_argument("--down", type=float, default=0.0, help="bytes per second from the server; 0 = unbounded")
    parser.add_argument("--rtt", type=float, default=0.0, help="seconds there and back")
    given = parser.parse_args()
    host, _, port = given.upstream.rpartition(":")
    shape = Shape(up_bytes_per_s=given.up, down_bytes_per_s=given.down, rtt_s=given.rtt)
    with ShapingProxy((host, int(port)), shape, port=given.port) as proxy:
        print(proxy.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
