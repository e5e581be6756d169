"""Watcheds to transfer to and from whose every request a test sees, and may spoil."""

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from twinmill.store.blobs import Blobs
from twinmill.store.requests import BlobRequests, Chunk, Requests


class Asked(NamedTuple):
    kind: str
    """size, write, read, delete"""
    key: str
    offset: int = 0
    bytes: int = 0


class Watched:
    """`spoil` is called with every request before it is made, and may raise; `bend` with every chunk that was read."""

    def __init__(
        self,
        blobs: Blobs,
        spoil: Callable[[Asked], None] = lambda asked: None,
        bend: Callable[[Asked, bytes], bytes] = lambda asked, chunk: chunk,
        send: Callable[[bytes], tuple[bytes, str]] | None = None,
        in_threads: bool = False,
    ) -> None:
        """send: what really arrives of what is written, and the ETag that the store claims."""
        self.url = blobs.url
        self.blobs = blobs
        self.asked: list[Asked] = []
        self.inside: list[Asked] = []
        self.most: tuple[int, int] = (0, 0)
        """most requests with bytes, and most bytes, that were in flight at once"""
        self._spoil = spoil
        self._bend = bend
        self.send = send
        self._in_threads = in_threads

    def requests(self) -> Requests:
        return _Requests(self, BlobRequests(self.blobs) if self._in_threads else self.blobs.requests())

    def of(self, kind: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.kind == kind]

    def begin(self, asked: Asked) -> None:
        self.asked.append(asked)
        if asked.bytes:
            self.inside.append(asked)
        self.most = (
            max(self.most[0], len(self.inside)),
            max(self.most[1], sum(one.bytes for one in self.inside)),
        )
        self._spoil(asked)

    def end(self, asked: Asked) -> None:
        if asked.bytes:
            self.inside.remove(asked)

    def bent(self, asked: Asked, chunk: Chunk) -> bytes:
        return self._bend(asked, bytes(chunk))


class _Requests:
    def __init__(self, place: Watched, inner: Requests) -> None:
        self.url = place.url
        self._place = place
        self._inner = inner

    async def size(self, key: str) -> int:
        self._place.begin(Asked("size", key))
        return await self._inner.size(key)

    async def write(self, key: str, data: memoryview) -> str:
        asked = Asked("write", key, 0, len(data))
        try:
            self._place.begin(asked)
            if self._place.send is None:
                return await self._inner.write(key, data)
            arrived, etag = self._place.send(bytes(data))
            await self._inner.write(key, memoryview(arrived))
            return etag
        finally:
            self._place.end(asked)

    async def read(self, key: str, offset: int, length: int, whole: int | None = None) -> AsyncGenerator[Chunk]:
        asked = Asked("read", key, offset, length)
        try:
            self._place.begin(asked)
            async for chunk in self._inner.read(key, offset, length, whole):
                yield self._place.bent(asked, chunk)
        finally:
            self._place.end(asked)

    async def delete(self, key: str) -> None:
        self._place.begin(Asked("delete", key))
        await self._inner.delete(key)
