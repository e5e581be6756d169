"""A cluster's read-through copy of the store, behind a link of bounded speed and latency.

Only what never changes is kept: manifests and shortcuts (sealed for their key) and objects (named by their content). So every local
file proves itself, a damaged one is dropped and fetched again, and nothing unsound is ever kept. The folder has the
layout of the store: it can be opened as one, and a lost object of the bucket be put back from it. Everything else
passes through the link in both directions.

Not covered: pruning. A mirror grows by one object per version; delete its folder to start over.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from twinmill.records.base import Ref
from twinmill.store.blobs import Blobs, digest_of, named_write, open_blobs, verify_ref
from twinmill.store.errors import Corrupt, NotFound
from twinmill.store.frame import unseal

from .config import LinkConfig

MANIFESTS, OBJECTS = "weights/manifests/", "weights/objects/"
SHORTCUTS = ("weights/skips/", "weights/anchors/")


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
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.bytes = 0
        """bytes that have crossed"""

    def cross(self, size: int) -> None:
        """Wait for as long as a request of `size` bytes takes from now."""
        with self._lock:
            now = self._clock()
            self.bytes += size
            start = max(now, self._free_at)
            self._free_at = start + (size / self._config.bytes_per_s if self._config.bytes_per_s else 0.0)
            wait = self._free_at + self._config.latency_s - now
        if wait > 0:
            self._sleep(wait)


class Mirror:
    """Blobs that read through `folder`. Give this to a Subscriber, or to an EpisodesLog of the same cluster."""

    def __init__(self, source: Blobs, folder: Path | str, link: LinkConfig | None = None) -> None:
        self.url = f"mirror of {source.url}"
        self.link = Link(link or LinkConfig())
        self.damaged = 0
        """local copies that were found damaged and fetched again"""
        self._source = source
        self._local = open_blobs(str(folder))
        self._local.sweep(older_s=0.0)  # this mirror has one process; what it left half-written is nobody's

    def get(self, key: str) -> bytes:
        if not key.startswith((MANIFESTS, OBJECTS, *SHORTCUTS)):
            return self._fetch(key)
        found = self._here(key)
        if found is None:
            found = self._fetch(key)
            if _is_sound(key, found):  # else the caller will see what is wrong with it, and may find it mended later
                self._local.put(key, found)
        return found

    def get_ref(self, ref: Ref) -> bytes:
        data = self.get(ref.key)
        verify_ref(ref, data)
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = self._source.get_range(key, offset, length)
        self.link.cross(len(data))
        return data

    def exists(self, key: str) -> bool:
        if key.startswith(MANIFESTS) and self._here(key) is not None:
            return True
        self.link.cross(0)
        return self._source.exists(key)

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        self.link.cross(0)
        return self._source.list(prefix, after=after)

    def put(self, key: str, data: bytes) -> None:
        self.link.cross(len(data))
        self._source.put(key, data)

    def put_new(self, key: str, data: bytes) -> bool:
        self.link.cross(len(data))
        return self._source.put_new(key, data)

    def claim(self, key: str, data: bytes) -> bool:
        self.link.cross(len(data))
        return self._source.claim(key, data)

    def delete(self, key: str) -> None:
        self._local.delete(key)
        self.link.cross(0)
        self._source.delete(key)

    def put_ref(self, prefix: str, data: bytes, *, point: str = "blob.ref") -> Ref:
        digest = digest_of(data)
        ref = Ref(key=f"{prefix}/{digest}", digest=digest, bytes=len(data))
        with named_write(point):
            self.put(ref.key, data)
        return ref

    def sweep(self, older_s: float = 3600.0) -> int:
        return self._local.sweep(older_s)

    def _here(self, key: str) -> bytes | None:
        """The local copy; None when there is none, or when it was damaged and has been dropped."""
        try:
            found = self._local.get(key)
        except NotFound:
            return None
        if _is_sound(key, found):
            return found
        self.damaged += 1
        self._local.delete(key)
        return None

    def _fetch(self, key: str) -> bytes:
        data = self._source.get(key)
        self.link.cross(len(data))
        return data


def _is_sound(key: str, data: bytes) -> bool:
    """Is `data` what was written at `key`, by its own witness?"""
    if key.startswith(OBJECTS):
        return digest_of(data) == key.removeprefix(OBJECTS)
    try:
        unseal(key, data)
    except Corrupt:
        return False
    return True
