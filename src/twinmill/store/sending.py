"""The inside of `transfer.upload`: parts as they are made, what is there already, what arrived damaged."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TypeAlias

from twinmill.records.base import Ref

from .blobs import digest_of, named_write
from .errors import Corrupt, NotFound, StoreUnavailable
from .flight import Flight, OnProgress, Room, Together, TransferConfig
from .requests import Place, Requests

Part: TypeAlias = bytes | bytearray | memoryview
_MD5 = re.compile(r"[0-9a-f]{32}")


class Upload:
    def __init__(
        self, place: Place, config: TransferConfig, progress: OnProgress | None, prefix: str, again: bool, point: str
    ) -> None:
        self._requests = place.requests()
        self._flight = Flight(config, progress)
        # Twice as many parts as streams, so that the question whether one is there never keeps a stream waiting.
        self._held = Room(2 * config.streams, config.in_flight_bytes)
        self._etags_are_md5 = config.check_etags
        self._prefix = prefix
        self._again = again
        self._point = point

    async def run(self, parts: Iterable[Part]) -> list[Ref]:
        if isinstance(parts, Sequence):
            self._flight.moved(0, total=sum(memoryview(part).nbytes for part in parts))
        tasks: list[asyncio.Task[Ref]] = []
        async with Together() as group:
            async for part in _made(parts):
                data = memoryview(part).cast("B")
                await self._held.enter(len(data))
                tasks.append(group.create_task(self._send(data)))
        return [task.result() for task in tasks]

    async def _send(self, data: memoryview) -> Ref:
        try:
            digest = await asyncio.to_thread(digest_of, data)
            ref = Ref(key=f"{self._prefix}/{digest}", digest=digest, bytes=len(data))
            if not self._again and await size_of(self._flight, self._requests, ref.key) == ref.bytes:
                self._flight.moved(ref.bytes, reused=ref.bytes)
                return ref
            with named_write(self._point):
                await self._flight.request(
                    "write", ref.key, self._requests.url, max(1, ref.bytes), lambda: self._write(ref, data)
                )
            self._flight.moved(ref.bytes)
            return ref
        finally:
            self._held.leave(len(data))

    async def _write(self, ref: Ref, data: memoryview) -> None:
        etag = await self._requests.write(ref.key, data)
        if not self._etags_are_md5 or not _MD5.fullmatch(etag) or etag == await asyncio.to_thread(_md5, data):
            return
        # Damaged on the way, or this store's ETags are something else (they are where it encrypts): look once.
        if await self._as_stored(ref) != ref.digest:
            raise StoreUnavailable(f"what arrived at {ref.key!r} is not what was sent")
        self._etags_are_md5 = False

    async def _as_stored(self, ref: Ref) -> str:
        """Digest of what the store has; "" = of another size."""
        try:
            chunks = self._requests.read(ref.key, 0, ref.bytes, ref.bytes)
            return digest_of(b"".join([chunk async for chunk in chunks]))
        except (Corrupt, NotFound):
            return ""


def _md5(data: memoryview) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


async def _made(parts: Iterable[Part]) -> AsyncIterator[Part]:
    """The parts; those of a generator are made in another thread."""
    if isinstance(parts, Sequence):
        for part in parts:
            yield part
        return
    iterator: Iterator[Part] = iter(parts)
    while (made := await asyncio.to_thread(next, iterator, None)) is not None:
        yield made


async def size_of(flight: Flight, requests: Requests, key: str) -> int:
    """-1 = there is no such object."""
    try:
        return await flight.request("look up", key, requests.url, 0, lambda: requests.size(key))
    except NotFound:
        return -1
