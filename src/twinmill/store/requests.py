"""One try each: the requests that a transfer of many objects is made of.

They run in an event loop, have no deadline and repeat nothing. Whoever makes them bounds the time by cancelling, which
closes the connection, and decides what is tried again (flight.py). Reading hands on bytes as they come.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import obstore
from obstore.store import ObjectStore

from .errors import Corrupt, NotFound, StoreUnavailable
from .failures import in_our_words

if TYPE_CHECKING:
    from .blobs import Blobs

CHUNK_BYTES = 256 << 10
"""bytes that arrive before they are handed on; silence is noticed between two of them"""
Chunk: TypeAlias = bytes | memoryview
_NO_SUCH_RANGE = ("code: 416 ", "InvalidRange", "Invalid range", "range was invalid")


class Requests(Protocol):
    """Errors are those of errors.py."""

    url: str

    async def size(self, key: str) -> int:
        """Length of the object in bytes. NotFound when there is none."""
        ...

    async def write(self, key: str, data: memoryview) -> str:
        """Write over whatever is there. Returns the store's ETag, "" when it gives none."""
        ...

    def read(self, key: str, offset: int, length: int, whole: int | None = None) -> AsyncGenerator[Chunk]:
        """Bytes [offset, offset + length), length > 0, in order; fewer when the store lies about how many it sent.

        Corrupt when the object has another size than `whole` (None = any), or ends before the range does.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove; nothing happens when there is no object."""
        ...


class Place(Protocol):
    """Where to transfer to or from: every Blobs is one."""

    url: str

    def requests(self) -> Requests: ...


class ObjectRequests:
    """Requests over obstore's client for transfers."""

    def __init__(
        self,
        store: ObjectStore,
        url: str,
        check_key: Callable[[str], None],
        *,
        at_once: bool = False,
        write: Callable[[str, bytes], None] | None = None,
    ) -> None:
        """at_once: a range is read as one chunk, as suits a folder. write: a put of one's own, for one that is flushed."""
        self.url = url
        self._store = store
        self._check_key = check_key
        self._at_once = at_once
        self._write = write

    async def size(self, key: str) -> int:
        self._check_key(key)
        with in_our_words("look up", key, self.url):
            return (await obstore.head_async(self._store, key))["size"]

    async def write(self, key: str, data: memoryview) -> str:
        self._check_key(key)
        if self._write is not None:
            await asyncio.to_thread(self._write, key, bytes(data))
            return ""
        with in_our_words("write", key, self.url):
            # Never in parts: those of a killed upload would stay in the bucket, unseen and paid for.
            done = await obstore.put_async(self._store, key, data, use_multipart=False)
        return (done["e_tag"] or "").strip('"')

    async def read(self, key: str, offset: int, length: int, whole: int | None = None) -> AsyncGenerator[Chunk]:
        self._check_key(key)
        try:
            with in_our_words("read", key, self.url):
                found = await obstore.get_async(self._store, key, options={"range": (offset, offset + length)})
        except StoreUnavailable as error:
            if any(word in str(error) for word in _NO_SUCH_RANGE):
                _check_size(key, await self.size(key), offset + length, whole)
            raise
        _check_size(key, found.meta["size"], offset + length, whole)
        if self._at_once:
            with in_our_words("read", key, self.url):
                yield memoryview(await found.bytes_async())
            return
        chunks = found.stream(min_chunk_size=CHUNK_BYTES)
        while True:
            with in_our_words("read", key, self.url):
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            yield chunk

    async def delete(self, key: str) -> None:
        self._check_key(key)
        try:
            with in_our_words("delete", key, self.url):
                await obstore.delete_async(self._store, key)
        except NotFound:
            pass


class BlobRequests:
    """Requests over any Blobs, each in a thread. A call that hangs holds its thread although the try has been given up."""

    def __init__(self, blobs: "Blobs") -> None:
        self.url = blobs.url
        self._blobs = blobs

    async def size(self, key: str) -> int:
        return await asyncio.to_thread(self._blobs.size, key)

    async def write(self, key: str, data: memoryview) -> str:
        await asyncio.to_thread(self._blobs.put, key, bytes(data))
        return ""

    async def read(self, key: str, offset: int, length: int, whole: int | None = None) -> AsyncGenerator[Chunk]:
        _check_size(key, await self.size(key), offset + length, whole)
        yield await asyncio.to_thread(self._blobs.get_range, key, offset, length)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._blobs.delete, key)


def _check_size(key: str, size: int, end: int, whole: int | None) -> None:
    if whole is not None and size != whole:
        raise Corrupt(key, f"{size} bytes, {whole} were written")
    if size < end:
        raise Corrupt(key, f"wanted bytes up to {end}, the object ends at {size}")
