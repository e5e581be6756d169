"""A cluster's read-through copy of the store, behind a link of bounded speed and latency.

Only what never changes is kept: manifests and shortcuts (sealed for their key) and objects (named by their content). So every local
file proves itself, a damaged one is dropped and fetched again, and nothing unsound is ever kept. The folder has the
layout of the store: it can be opened as one, and a lost object of the bucket be put back from it. Everything else
passes through the link in both directions.

Objects are fetched whole, many at once (`fetch`; a killed fetch goes on where it stopped), and read from here by range.
Several processes of a host may share one folder: each object crosses the link once. Above `cap_bytes` the objects that
were used longest ago go, but never one of `keep()`, which is what this cluster has leased.
"""

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from twinmill.records.base import Ref
from twinmill.store.blobs import Blobs, digest_of, named_write, open_blobs, verify_ref
from twinmill.store.errors import Corrupt, NotFound
from twinmill.store.flight import OnProgress
from twinmill.store.frame import unseal
from twinmill.store.requests import BlobRequests, Place, Requests
from twinmill.store.sinks import Folder
from twinmill.store.transfer import download

from .config import LinkConfig, MirrorConfig
from .link import Far, Link

MANIFESTS, OBJECTS = "weights/manifests/", "weights/objects/"
SHORTCUTS = ("weights/skips/", "weights/anchors/")


class Mirror:
    """Blobs that read through `folder`. Give this to a Subscriber, or to an EpisodesLog of the same cluster."""

    def __init__(
        self,
        source: Blobs,
        folder: Path | str,
        link: LinkConfig | None = None,
        config: MirrorConfig | None = None,
        *,
        keep: Callable[[], Collection[str]] = tuple,
        others: Sequence[Place] = (),
    ) -> None:
        """keep: keys of objects that must not go (`Lease.keys`). others: where to fetch what the store has lost, or has
        damaged, or does not give, such as another host's mirror."""
        self.url = f"mirror of {source.url}"
        self.link = Link(link or LinkConfig())
        self.damaged = 0
        """local copies that were found damaged and fetched again"""
        self.evicted = 0
        """local copies that went to make room"""
        self._config = config or MirrorConfig()
        if self._config.cap_bytes < 0:
            raise ValueError(f"mirror.cap_bytes is {self._config.cap_bytes}; want a number >= 0")
        self._source = source
        self._others = others
        self.keep = keep
        self._local = open_blobs(str(folder))
        self._root = Path(folder).expanduser().absolute()
        self._sound: dict[str, tuple[int, int, int]] = {}
        self._move_in()

    def _move_in(self) -> None:
        """The first process to use the folder clears what a killed one left half-written; the lock falls with the last."""
        lock = os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._local.sweep(older_s=0.0)
        except BlockingIOError:
            pass  # others are at work here: what is half-written may be theirs
        fcntl.flock(lock, fcntl.LOCK_SH)

    # What is kept here

    def fetch(self, refs: Iterable[Ref], progress: OnProgress | None = None) -> None:
        """Have the objects of `refs` here, sound. Those that are not cross the link, many at once."""
        wanted = list(dict.fromkeys(refs))
        missing = [ref for ref in wanted if not self._is_here(ref.key)]
        if missing:
            far = Far(self._source, self.link)
            download(far, missing, Folder(self._root), self._config.transfer, progress, others=self._others)
            for ref in missing:
                with contextlib.suppress(FileNotFoundError):  # another process has made room
                    self._sound[ref.key] = _state(self._root / ref.key)
        self._make_room({ref.key for ref in wanted})

    def get(self, key: str) -> bytes:
        if key.startswith(OBJECTS):
            return self._object(key)
        if not key.startswith((MANIFESTS, *SHORTCUTS)):
            return self._pass(key)
        found = self._here(key)
        if found is None:
            found = self._pass(key)
            if _is_sound(key, found):  # else the caller will see what is wrong with it, and may find it mended later
                self._local.put(key, found)
        return found

    def get_ref(self, ref: Ref) -> bytes:
        data = self._object(ref.key, ref) if ref.key.startswith(OBJECTS) else self.get(ref.key)
        verify_ref(ref, data)
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if key.startswith(OBJECTS):
            if not self._is_here(key) and self._config.whole:
                with contextlib.suppress(Corrupt):  # a damaged object may be sound where it is read
                    self.fetch([self._ref(key)])
            with contextlib.suppress(NotFound):
                self._touch(key)
                return self._local.get_range(key, offset, length)
        data = self._source.get_range(key, offset, length)
        self.link.cross(len(data))
        return data

    def size(self, key: str) -> int:
        if key.startswith(OBJECTS) and self._is_here(key):
            return self._local.size(key)
        self.link.cross(0)
        return self._source.size(key)

    def _object(self, key: str, ref: Ref | None = None) -> bytes:
        """Verified at each reading: a disk may rot while we run."""
        for _ in range(3):  # again when another process made room by it at once
            found = self._here(key)
            if found is not None:
                self._touch(key)
                return found
            self.fetch([ref or self._ref(key)])
        return self._pass(key)

    def _ref(self, key: str) -> Ref:
        """Of an object whose name alone is known. NotFound when there is none."""
        self.link.cross(0)
        return Ref(key=key, digest=key.removeprefix(OBJECTS), bytes=self._source.size(key))

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

    def _is_here(self, key: str) -> bool:
        """Is there a sound local copy? A file is read through once, and again when it is another one."""
        try:
            state = _state(self._root / key)
        except FileNotFoundError:
            return False
        if self._sound.get(key) == state:
            return True
        if self._here(key) is None:
            return False
        self._sound[key] = state
        return True

    def _touch(self, key: str) -> None:
        """Used just now, for `_make_room` of every process here. The time of its writing stays."""
        path = self._root / key
        with contextlib.suppress(FileNotFoundError):  # another process has made room
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))

    def _make_room(self, just_fetched: Collection[str]) -> None:
        if not self._config.cap_bytes:
            return
        files = {}
        for key in self._local.list(OBJECTS.rstrip("/")):
            with contextlib.suppress(FileNotFoundError):  # another process makes room at this moment
                files[key] = (self._root / key).stat()
        held = sum(stat.st_size for stat in files.values())
        stays = {*self.keep(), *just_fetched}
        for key in sorted(files.keys() - stays, key=lambda key: files[key].st_atime_ns):
            if held <= self._config.cap_bytes:
                return
            self._local.delete(key)
            self._sound.pop(key, None)
            self.evicted += 1
            held -= files[key].st_size

    # What passes through

    def _pass(self, key: str) -> bytes:
        data = self._source.get(key)
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

    def sizes(self, prefix: str = "") -> dict[str, int]:
        self.link.cross(0)
        return self._source.sizes(prefix)

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

    def requests(self) -> Requests:
        return BlobRequests(self)


def _state(path: Path) -> tuple[int, int, int]:
    """Another file, or the same one written to, has another."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_sound(key: str, data: bytes) -> bool:
    """Is `data` what was written at `key`, by its own witness?"""
    if key.startswith(OBJECTS):
        return digest_of(data) == key.removeprefix(OBJECTS)
    try:
        unseal(key, data)
    except Corrupt:
        return False
    return True
