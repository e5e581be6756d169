"""Keys -> bytes, in a local folder, in memory or in a bucket: the one door to durable storage.

A key is a path of non-empty segments ("episodes/admit/0000000003"). An object is visible whole or not at
all, and `put_new` (create-if-absent) is atomic everywhere: everything above is built on that one primitive,
because compare-and-swap does not exist on a local folder.

`crash_points` is the hook of the crash tests: it is called before and after every named write, so that a test
can end the process at each of them.

Not covered: using one Blobs on both sides of an os.fork() (the client has threads; start processes by
exec); a local folder on a file system that hangs (a bucket that hangs is noticed within the deadline).
"""

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import obstore
from blake3 import blake3
from msgspec import structs
from obstore.exceptions import AlreadyExistsError

from twinmill.records.base import Ref

from .backends import Backend, StoreConfig, open_backend
from .errors import Corrupt, NotFound, StoreRefused, StoreUnavailable
from .failures import in_our_words
from .requests import ObjectRequests, Requests

NAMED_WRITES = (
    "blob.ref",
    "lane.append",
    "cursor.save",
    "ledger.admit",
    "ledger.close",
    "weights.object",
    "weights.manifest",
    "weights.lease",
    "weights.collect",
    "checkpoint.save",
)
"""Every write that a crash test must be able to die at. Other rooms wrap theirs in `named_write` too."""


def _no_crash(point: str) -> None:
    """The default: nothing happens."""


crash_points: Callable[[str], None] = _no_crash
"""Set by tests: called with "<name>:before" and "<name>:after" around every named write."""


@contextmanager
def named_write(name: str) -> Iterator[None]:
    """Mark a write as a place where a process may die. `name` is one of NAMED_WRITES."""
    if name not in NAMED_WRITES:
        raise ValueError(f"write {name!r} is not in NAMED_WRITES, so no crash test would ever die at it; add it there")
    crash_points(f"{name}:before")
    yield
    crash_points(f"{name}:after")


def digest_of(data: bytes | memoryview) -> str:
    """BLAKE3 as hex: the one digest of objects."""
    return blake3(data).hexdigest()


class Blobs(Protocol):
    """The keys of one store. Made by `open_blobs`; `Mirror` in publish is one that reads through."""

    url: str

    def get(self, key: str) -> bytes:
        """All bytes at `key`. NotFound when there is none."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly bytes [offset, offset + length). Corrupt when the object ends earlier."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write over whatever is there."""
        ...

    def put_new(self, key: str, data: bytes) -> bool:
        """Create; False if there is an object already (then nothing changes)."""
        ...

    def claim(self, key: str, data: bytes) -> bool:
        """Create, idempotently: True exactly when `key` holds these very bytes afterwards.

        Differs from `put_new` when a lost answer made the client, or a crash made the caller, write twice.
        """
        ...

    def exists(self, key: str) -> bool: ...

    def size(self, key: str) -> int:
        """Length of the object in bytes. NotFound when there is none."""
        ...

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """Keys below the folder `prefix` ("" = all), sorted; only those > `after`."""
        ...

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Keys below the folder `prefix` ("" = all), sorted -> bytes."""
        ...

    def delete(self, key: str) -> None:
        """Remove; nothing happens when there is no object."""
        ...

    def put_ref(self, prefix: str, data: bytes, *, point: str = "blob.ref") -> Ref:
        """Store by content at prefix/<digest>. Writing it again heals a damaged copy."""
        ...

    def get_ref(self, ref: Ref) -> bytes:
        """The bytes of `ref`, length and digest verified (Corrupt)."""
        ...

    def sweep(self, older_s: float = 3600.0) -> int:
        """Remove what killed writers left behind: staging files older than `older_s`; returns how many.

        An unfinished download ("#0") is not garbage, it goes on where it stopped: it is removed after a day.
        """
        ...

    def requests(self) -> Requests:
        """Single tries, for transfers of many objects: what `transfer.py` works with."""
        ...


_KEY = re.compile(r"[^/\x00-\x1f\x7f]+(?:/[^/\x00-\x1f\x7f]+)*")
_STAGING = re.compile(r"#\d+$")
_UNFINISHED_S = 86400.0


def check_key(key: str) -> None:
    """Refuse keys that some backend could not hold or would hold elsewhere."""
    if not _KEY.fullmatch(key) or _STAGING.search(key) or {".", ".."} & set(key.split("/")):
        raise StoreRefused(
            f"{key!r} is no key: want non-empty segments joined by '/', none of them '.' or '..', "
            "no control characters, no ending in '#' and digits (those are staging files)"
        )


class ObjectBlobs:
    """Blobs over obstore. `root` is the local folder, None for memory and buckets."""

    def __init__(self, backend: Backend, config: StoreConfig) -> None:
        self.url = backend.url
        self.root = backend.root
        self._store = backend.store
        self._bulk = backend.bulk
        self._config = config

    def __repr__(self) -> str:
        return f"Blobs({self.url!r})"

    def get(self, key: str) -> bytes:
        with self._errors("read", key):
            return bytes(obstore.get(self._store, key).bytes())

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise ValueError(f"range of {key!r}: offset {offset}, length {length}; both must be >= 0")
        if length == 0:
            return b""
        try:
            with self._errors("read", key):
                data = bytes(obstore.get_range(self._store, key, start=offset, length=length))
        except StoreUnavailable:  # each backend has its own words for a range that starts behind the end
            with self._errors("look up", key):
                size = int(obstore.head(self._store, key)["size"])
            if size >= offset + length:
                raise
            raise Corrupt(key, f"wanted bytes {offset} to {offset + length}, the object ends at {size}") from None
        if len(data) != length:
            raise Corrupt(key, f"wanted bytes {offset} to {offset + length}, the object ends at {offset + len(data)}")
        return data

    def put(self, key: str, data: bytes) -> None:
        with self._errors("write", key):
            if self._fsync_here():
                self._put_synced(key, data, create=False)
            else:
                obstore.put(self._store, key, data)

    def put_new(self, key: str, data: bytes) -> bool:
        try:
            with self._errors("write", key):
                if self._fsync_here():
                    self._put_synced(key, data, create=True)
                else:
                    obstore.put(self._store, key, data, mode="create")
        except (AlreadyExistsError, FileExistsError):
            return False
        return True

    def claim(self, key: str, data: bytes) -> bool:
        return self.put_new(key, data) or self.get(key) == data

    def exists(self, key: str) -> bool:
        try:
            self.size(key)
        except NotFound:
            return False
        return True

    def size(self, key: str) -> int:
        with self._errors("look up", key):
            return obstore.head(self._store, key)["size"]

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        return list(self._sizes(prefix, after))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return self._sizes(prefix, "")

    def _sizes(self, prefix: str, after: str) -> dict[str, int]:
        with self._errors("list", prefix or "(everything)", checked=bool(prefix)):
            pages = obstore.list(self._store, prefix or None, offset=after or None, chunk_size=1000)
            found = {str(entry["path"]): entry["size"] for page in pages for entry in page}
        return {key: found[key] for key in sorted(found) if key > after}

    def delete(self, key: str) -> None:
        try:
            with self._errors("delete", key):
                obstore.delete(self._store, key)
        except NotFound:
            pass

    def put_ref(self, prefix: str, data: bytes, *, point: str = "blob.ref") -> Ref:
        digest = digest_of(data)
        ref = Ref(key=f"{prefix}/{digest}", digest=digest, bytes=len(data))
        with named_write(point):
            self.put(ref.key, data)
        return ref

    def get_ref(self, ref: Ref) -> bytes:
        data = self.get(ref.key)
        verify_ref(ref, data)
        return data

    def sweep(self, older_s: float = 3600.0) -> int:
        if self.root is None:
            return 0
        now, removed = time.time(), 0
        for folder, _, names in os.walk(self.root):
            for name in filter(_STAGING.search, names):
                path = os.path.join(folder, name)
                old = max(older_s, _UNFINISHED_S) if name.endswith("#0") else older_s
                try:
                    if os.stat(path).st_mtime <= now - old:
                        os.unlink(path)
                        removed += 1
                except FileNotFoundError:
                    continue  # its writer was alive after all and has just finished
        return removed

    def requests(self) -> Requests:
        write = self.put if self._fsync_here() else None
        return ObjectRequests(self._bulk, self.url, check_key, at_once=self.root is not None, write=write)

    def _fsync_here(self) -> bool:
        return self._config.fsync and self.root is not None

    _staged = itertools.count()

    def _put_synced(self, key: str, data: bytes, *, create: bool) -> None:
        """Stage, flush, then make visible, then flush the folder: no power loss shows a torn object."""
        assert self.root is not None
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = f"{target}#{os.getpid()}{next(self._staged):09d}"
        try:
            with open(staging, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            (os.link if create else os.replace)(staging, target)
        finally:
            Path(staging).unlink(missing_ok=True)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _errors(self, doing: str, key: str, *, checked: bool = True) -> AbstractContextManager[None]:
        if checked:
            check_key(key)
        return in_our_words(doing, key, self.url, f" within its deadline of {self._config.deadline_s:g} s")


def verify_ref(ref: Ref, data: bytes) -> None:
    """Corrupt, naming the key, unless `data` is what `ref` promises."""
    if len(data) != ref.bytes:
        raise Corrupt(ref.key, f"{len(data)} bytes, {ref.bytes} were written")
    if digest_of(data) != ref.digest:
        raise Corrupt(ref.key, f"digest {digest_of(data)[:16]}, {ref.digest[:16]} was written")


def open_blobs(url: str, *, deadline_s: float | None = None, config: StoreConfig | None = None) -> ObjectBlobs:
    """Open the store at `url`; nothing is read or written yet, except that a local folder is made.

    deadline_s overrides config.deadline_s. `memory://` is a fresh, private store each time: share the object.
    """
    config = config or StoreConfig()
    if deadline_s is not None:
        config = structs.replace(config, deadline_s=deadline_s)
    return ObjectBlobs(open_backend(url, config), config)
