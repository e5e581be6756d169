"""Append-only logs: lanes with one writer each, and durable cursors for readers.

    <prefix>/<lane>/<index, 10 digits>    one sealed entry per object (see frame.py)

Indices have no gaps: an entry is created only at the first free index, by create-if-absent. So a reader
probes the next key instead of listing, and a restarted writer finds its place by bisection. Entries are
never changed or removed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import msgspec

from twinmill.records.episodes import LogPos

from .blobs import Blobs, named_write
from .errors import Corrupt, LaneTaken, NotFound
from .frame import seal, unseal

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def indexed(prefix: str, index: int) -> str:
    """Key of number `index` below `prefix`; zero-padded, so that sorted keys are in order."""
    if not 0 <= index < 10**10:
        raise ValueError(f"index {index} below {prefix!r} is out of [0, 10^10)")
    return f"{prefix}/{index:010d}"


def index_of(key: str) -> int:
    """The number that `indexed` put into `key`; Corrupt for a foreign object among them."""
    name = key.rsplit("/", 1)[-1]
    if len(name) != 10 or not (name.isascii() and name.isdecimal()):
        raise Corrupt(key, f"{name!r} is not a 10-digit index; something else wrote into this log")
    return int(name)


def first_free(taken: Callable[[int], bool], start: int = 0) -> int:
    """Smallest i >= start with not taken(i), where taken is true up to some index: O(log n) probes."""
    step = 1
    low = start
    while taken(low + step - 1):
        low += step
        step *= 2
    high = low + step - 1  # free
    while low < high:
        middle = (low + high) // 2
        if taken(middle):
            low = middle + 1
        else:
            high = middle
    return low


class Lane:
    """One writer's end of a log. A second writer of the lane is found out at its first differing append."""

    def __init__(self, blobs: Blobs, prefix: str, name: str) -> None:
        self._blobs = blobs
        self._prefix = f"{prefix}/{name}"
        self.name = name
        self.next = first_free(lambda index: blobs.exists(indexed(self._prefix, index)))
        """index of the next entry"""
        self._unsure: bytes | None = None
        """what was being appended when the store failed"""
        self._found: dict[bytes, LogPos] = {}
        """what was appended although the store said otherwise, until its caller asks again"""

    def append(self, data: bytes) -> LogPos:
        """Write `data` as the next entry. LaneTaken when another writer has put something else there.

        Equal bytes at that place are this very append, repeated after a lost answer. That may also be repeated after
        other appends: an entry whose answer was lost is looked for before the next one is written.
        """
        self._settle(data)
        if (pos := self._found.pop(data, None)) is not None:
            return pos
        key = indexed(self._prefix, self.next)
        self._unsure = data
        with named_write("lane.append"):
            mine = self._blobs.claim(key, seal(key, data))
        self._unsure = None
        if not mine:
            raise LaneTaken(
                f"lane {self._prefix!r} has a foreign entry {self.next}: a second process writes this lane; "
                "stop one of them, then restart the other"
            )
        return self._advance()

    def _settle(self, data: bytes) -> None:
        """Where the last append ended in an error, it may have been written all the same. Not asked when it is repeated."""
        if self._unsure is None or self._unsure == data:
            return
        key = indexed(self._prefix, self.next)
        with suppress(NotFound):
            if self._blobs.get(key) == seal(key, self._unsure):
                self._found[self._unsure] = self._advance()
        self._unsure = None

    def _advance(self) -> LogPos:
        self.next += 1
        return LogPos(lane=self.name, index=self.next - 1)


class Log:
    """The lanes below `prefix`."""

    def __init__(self, blobs: Blobs, prefix: str) -> None:
        self._blobs = blobs
        self._prefix = prefix

    def lane(self, name: str) -> Lane:
        """Open `name` for writing, at its end."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no lane name: want letters, digits, '.', '_', '-', at most 100")
        return Lane(self._blobs, self._prefix, name)

    def lanes(self) -> list[str]:
        """Names of all lanes that have an entry, sorted. Lists the log: for start-up, not for polling."""
        start = len(self._prefix) + 1
        return sorted({key[start:].split("/", 1)[0] for key in self._blobs.list(self._prefix)})

    def read(self, pos: LogPos) -> bytes:
        """One entry; NotFound, or Corrupt."""
        key = indexed(f"{self._prefix}/{pos.lane}", pos.index)
        return unseal(key, self._blobs.get(key))

    def tail(self, lane: str, start: int = 0) -> Iterator[tuple[LogPos, bytes]]:
        """Entries of `lane` from `start` on, until the first that is not there yet; call again to go on."""
        index = start
        while True:
            pos = LogPos(lane=lane, index=index)
            try:
                data = self.read(pos)
            except NotFound:
                return
            yield pos, data
            index += 1


class Cursor:
    """Where a reader has got to: lane -> index of its next entry. A create-only sequence: the last is valid.

    One writer. Save after the work is durable: a reader that dies in between repeats work and never loses
    any.
    """

    KEEP = 2
    """positions kept; older ones are pruned"""

    def __init__(self, blobs: Blobs, key: str) -> None:
        self._blobs = blobs
        self._prefix = key
        self._next: int | None = None

    def load(self) -> dict[str, int]:
        """The last saved position; {} = none yet."""
        keys = self._blobs.list(self._prefix)
        self._next = index_of(keys[-1]) + 1 if keys else 0
        if not keys:
            return {}
        payload = unseal(keys[-1], self._blobs.get(keys[-1]))
        try:
            return msgspec.msgpack.decode(payload, type=dict[str, int])
        except msgspec.DecodeError as error:
            raise Corrupt(keys[-1], f"not a position: {error}") from error

    def save(self, position: Mapping[str, int]) -> None:
        """Make `position` the valid one. LaneTaken when another reader moves the same cursor."""
        if self._next is None:
            self.load()
        assert self._next is not None
        key = indexed(self._prefix, self._next)
        data = seal(key, msgspec.msgpack.encode(dict(position), order="deterministic"))
        with named_write("cursor.save"):
            mine = self._blobs.claim(key, data)
        keys = self._blobs.list(self._prefix)
        # A writer far behind creates a place that was pruned long ago: a later one stands.
        if not mine or not keys or keys[-1] != key:
            raise LaneTaken(f"cursor {self._prefix!r} was moved by another process; stop one of them")
        self._next += 1
        for old in keys[: -self.KEEP]:
            self._blobs.delete(old)
