"""Where a download's bytes go: into memory, or into files that a killed download leaves for the next one.

Nothing is handed out before it is whole and its digest matched.
"""

import errno
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from .blobs import check_key
from .errors import StoreFull
from .spans import Span, Want

PIECE_BYTES = 1 << 20
"""bytes of an unfinished file that prove themselves together"""
_SLOT_BYTES = 32
_MAGIC = b"TWMP0001"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Sink(Protocol):
    """Calls come from one thread at a time for each want."""

    def missing(self, want: Want) -> list[Span] | None:
        """Make ready for `want`; what of it is still to come. None = another process is fetching it: ask again."""
        ...

    def write(self, want: Want, offset: int, data: memoryview) -> None:
        """Bytes of `want` from `offset` on. No byte comes twice between two calls of `missing`."""
        ...

    def settle(self, want: Want) -> str | None:
        """All of it is here: check it and hand it out (None); or, when it is something else, forget it: its digest."""
        ...

    def close(self) -> None:
        """The transfer is over. What is unfinished stays for the next one, if it can."""
        ...


class Buffers:
    """In memory. `sink[want]` is there for every want that has settled."""

    def __init__(self, into: Mapping[Want, memoryview] | None = None) -> None:
        """into: where to put a want, a writable buffer of its size; for others one is made."""
        self._into = dict(into or {})
        self._settled: set[Want] = set()

    def __getitem__(self, want: Want) -> memoryview:
        if want not in self._settled:
            raise KeyError(want)
        return self._into[want].toreadonly()

    def missing(self, want: Want) -> list[Span]:
        buffer = self._into.setdefault(want, memoryview(bytearray(want.bytes)))
        if buffer.nbytes != want.bytes:
            raise ValueError(f"{want.bytes} bytes of {want.key!r} do not fit a buffer of {buffer.nbytes}")
        return [Span(0, want.bytes)] if want.bytes else []

    def write(self, want: Want, offset: int, data: memoryview) -> None:
        self._into[want][offset : offset + len(data)] = data

    def settle(self, want: Want) -> str | None:
        if want.digest and (found := blake3(self._into[want]).hexdigest()) != want.digest:
            return found
        self._settled.add(want)
        return None

    def close(self) -> None:
        """Nothing is held."""


class Folder:
    """Objects as files below `root`, as in a local store. Several processes may fill one folder: each file is fetched once.

    An unfinished file is `<key>#0`: the object's bytes, then for each MiB of them its BLAKE3 once it has arrived (else
    zeros), then TWMP0001. A part whose digest matches is kept by the next download, whatever killed the last one. The
    file is locked (flock) by the process that fills it, and becomes `<key>` by renaming when the whole matched.
    """

    def __init__(self, root: Path | str, *, fsync: bool = False) -> None:
        """fsync: flush a file to the disk before it is handed out."""
        self._root = Path(root)
        self._fsync = fsync
        self._filling: dict[Want, _Unfinished] = {}

    def path(self, want: Want) -> Path:
        return self._root / want.key

    def missing(self, want: Want) -> list[Span] | None:
        if not (want.whole and want.digest):
            raise ValueError(f"{want.key!r}: a folder keeps whole objects of known digest, not ranges")
        check_key(want.key)
        path = self.path(want)
        if _size(path) == want.bytes:
            return []
        with _room_for(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _lock(path.with_name(f"{path.name}#0"))
            if file is None:
                return None
            if _size(path) == want.bytes:  # the one who held the lock has just finished
                os.unlink(path.with_name(f"{path.name}#0"))
                os.close(file)
                return []
            self._filling[want] = _Unfinished(file, want.bytes)
        return self._filling[want].missing()

    def write(self, want: Want, offset: int, data: memoryview) -> None:
        with _room_for(self.path(want)):
            self._filling[want].write(offset, data)

    def settle(self, want: Want) -> str | None:
        path = self.path(want)
        unfinished = self._filling.pop(want, None)
        if unfinished is None:
            found = _digest(path, want.bytes)
            if found == want.digest:
                return None
            path.unlink(missing_ok=True)
            return found
        staged = path.with_name(f"{path.name}#0")
        with _room_for(path), unfinished:
            if (found := unfinished.digest()) != want.digest:
                os.unlink(staged)
                return found
            os.ftruncate(unfinished.file, want.bytes)
            if self._fsync:
                os.fsync(unfinished.file)
            os.rename(staged, path)
        return None

    def close(self) -> None:
        for unfinished in self._filling.values():
            os.close(unfinished.file)
        self._filling.clear()


class _Unfinished:
    """One file that is being filled. `file` is its descriptor, locked."""

    def __init__(self, file: int, size: int) -> None:
        self.file = file
        self._size = size
        self._pieces = -(-size // PIECE_BYTES)
        self._slots = size
        end = size + self._pieces * _SLOT_BYTES
        if os.fstat(file).st_size != end + len(_MAGIC) or os.pread(file, len(_MAGIC), end) != _MAGIC:
            os.ftruncate(file, 0)
            os.ftruncate(file, end)
            os.pwrite(file, _MAGIC, end)
        self._here = [self._piece_bytes(i) if self._is_sound(i) else 0 for i in range(self._pieces)]

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        os.close(self.file)

    def missing(self) -> list[Span]:
        """Runs of pieces that are not here."""
        spans: list[Span] = []
        for i, here in enumerate(self._here):
            if here:
                continue
            offset, size = i * PIECE_BYTES, self._piece_bytes(i)
            if spans and spans[-1].offset + spans[-1].bytes == offset:
                offset, size = spans[-1].offset, spans.pop().bytes + size
            spans.append(Span(offset, size))
        return spans

    def write(self, offset: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self.file, data[done:], offset + done)
        for i in range(offset // PIECE_BYTES, -(-(offset + len(data)) // PIECE_BYTES)):
            begin, end = i * PIECE_BYTES, i * PIECE_BYTES + self._piece_bytes(i)
            self._here[i] += min(end, offset + len(data)) - max(begin, offset)
            if self._here[i] == end - begin:
                os.pwrite(self.file, self._proof(i), self._slots + i * _SLOT_BYTES)

    def digest(self) -> str:
        return _digest_of(self.file, self._size)

    def _piece_bytes(self, i: int) -> int:
        return min(PIECE_BYTES, self._size - i * PIECE_BYTES)

    def _proof(self, i: int) -> bytes:
        return blake3(os.pread(self.file, self._piece_bytes(i), i * PIECE_BYTES)).digest()

    def _is_sound(self, i: int) -> bool:
        slot = os.pread(self.file, _SLOT_BYTES, self._slots + i * _SLOT_BYTES)
        return any(slot) and self._proof(i) == slot


def _lock(path: Path) -> int | None:
    """A locked descriptor of the file at `path`, made when missing; None when another has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        try:
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        os.close(file)  # it was renamed or removed before the lock was ours


def _size(path: Path) -> int:
    """-1 = no file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _digest(path: Path, size: int) -> str:
    """ "" when there is no such file of that size."""
    if _size(path) != size:
        return ""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _digest_of(file, size)
    finally:
        os.close(file)


def _digest_of(file: int, size: int) -> str:
    hasher = blake3()
    for offset in range(0, size, 4 * PIECE_BYTES):
        hasher.update(os.pread(file, min(4 * PIECE_BYTES, size - offset), offset))
    return hasher.hexdigest()


class _room_for:
    """StoreFull, naming the file, when the disk has no room for it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise StoreFull(
                f"no room left to write {self._path} ({error.strerror}); free some, then start again: "
                "what has arrived is kept"
            ) from error
