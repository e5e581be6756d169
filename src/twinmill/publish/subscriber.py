"""A cluster's end of the weights log, in two phases.

    prepare   fetch, verify, decode beside what is held; nothing that is served is touched
    commit    after the engines have flipped: what was prepared is what is held

What cannot be rebuilt is never handed out. In turn: a damaged local copy is fetched again (by the mirror);
a version that does not fit what is held is rebuilt from the last full one; a version whose own bytes are
lost is skipped, the publisher is asked for a full version, and the newest version before it is used. Every
one of these is an Event.
"""

import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from twinmill.records.weights import WeightVersion
from twinmill.store.blobs import Blobs
from twinmill.store.errors import Corrupt, NotFound

from .chain import Weights, path_to, rebuild
from .errors import Broken, Refused
from .manifest import WeightsLog
from .mirror import Mirror
from .tensors import Array


class EventKind(Enum):
    """What a subscriber had to do about damage."""

    REFETCHED = "refetched"
    """a local copy was damaged; the store's was sound"""
    REBUILT = "rebuilt"
    """a version did not fit what is held, or the engine's memory; it was rebuilt from the last full one"""
    UNREACHABLE = "unreachable"
    """a version cannot be rebuilt at all; a full one was asked for"""


class Event(NamedTuple):
    kind: EventKind
    version: int
    why: str


class Prepared(NamedTuple):
    """A version ready to be staged. `tensors` has all of them; the arrays are read-only."""

    weights: Weights
    changed: frozenset[str]
    """names whose bits differ from what is held (all when nothing is)"""
    hops: int
    """versions that were applied one on the other to get here"""
    fetched_bytes: int
    """size of the objects read for it"""
    seconds: float

    @property
    def version(self) -> WeightVersion:
        return self.weights.version

    @property
    def tensors(self) -> dict[str, Array]:
        return self.weights.tensors


class Subscriber:
    """Follows the log of `run_id` through `blobs` (a Mirror, in a cluster). Not thread-safe: one owner."""

    def __init__(
        self,
        blobs: Blobs,
        run_id: str,
        *,
        who: str = "subscriber",
        on_event: Callable[[Event], None] | None = None,
        retry_s: float = 5.0,
    ) -> None:
        """who: the cluster's name, for the publisher. retry_s: pause before an unreachable version is tried again."""
        self._blobs = blobs
        self._log = WeightsLog(blobs)
        self._run_id = run_id
        self._who = who
        self._on_event = on_event
        self._retry_s = retry_s
        self._retry_at: dict[int, float] = {}
        self.held: Weights | None = None
        """what was committed last; None = nothing yet"""
        self.events: Counter[EventKind] = Counter()
        self._newest = -1

    @property
    def number(self) -> int:
        """The version held; -1 = none yet."""
        return -1 if self.held is None else self.held.version.number

    @property
    def lag(self) -> int:
        """Versions between the newest (as of the last `prepare`) and the held one."""
        return self._newest - self.number

    def prepare(self, number: int | None = None, *, afresh: bool = False) -> Prepared | None:
        """The newest version that can be rebuilt (or exactly `number`), in new arrays; None = nothing is ready.

        afresh: rebuild from the last full version, even what is held already: for an engine whose own
        memory did not match. Refused for a version of another run, or one before what is held.
        StoreUnavailable passes.
        """
        self._newest = self._log.newest()
        if number is not None:
            self._check_order(number)
            return self._try(number, afresh)
        first = self.number if afresh else self.number + 1
        for candidate in range(self._newest, max(first, 0) - 1, -1):
            if (prepared := self._try(candidate, afresh)) is not None:
                return prepared
        return None

    def commit(self, prepared: Prepared) -> None:
        """The engines serve `prepared`: hold it from now on."""
        self._check_order(prepared.version.number)
        self.held = prepared.weights

    def _check_order(self, number: int) -> None:
        if number > self._newest:
            raise Refused(f"version {number} does not exist; the newest is {self._newest}")
        if number < self.number:
            raise Refused(f"version {number} is older than {self.number}, which is held; versions never go back")

    def _try(self, number: int, afresh: bool) -> Prepared | None:
        """`number` from what is held, else from the last full version, else an event and None."""
        if (number == self.number and not afresh) or time.monotonic() < self._retry_at.get(number, 0.0):
            return None
        started = time.monotonic()
        damaged = self._damaged()
        failures: list[str] = ["the engine's memory did not match"] if afresh else []
        for base in [None] if afresh or self.held is None else [self.held, None]:
            try:
                path = path_to(self._log, number, base.version if base else None)
                self._check_run(path)
                weights = rebuild(self._log, number, base)
            except (Broken, Corrupt, NotFound) as error:
                failures.append(str(error))
                continue
            if self._damaged() > damaged:
                self._happened(EventKind.REFETCHED, number, "a copy in this cluster's mirror was damaged")
            if failures:
                self._happened(EventKind.REBUILT, number, failures[-1])
            return Prepared(
                weights=weights,
                changed=self._changed(weights),
                hops=len(path),
                fetched_bytes=sum(version.object.bytes for version in path),
                seconds=time.monotonic() - started,
            )
        self._retry_at[number] = time.monotonic() + self._retry_s
        self._happened(EventKind.UNREACHABLE, number, failures[-1])
        self._log.want_full(number, self._who)
        return None

    def _check_run(self, path: list[WeightVersion]) -> None:
        for version in path:
            if version.run_id != self._run_id:
                raise Refused(
                    f"version {version.number} is of run {version.run_id!r}, this cluster serves {self._run_id!r}; "
                    "nothing was changed: check store.url"
                )

    def _changed(self, weights: Weights) -> frozenset[str]:
        held = {} if self.held is None else self.held.tensors
        return frozenset(name for name, array in weights.tensors.items() if held.get(name) is not array)

    def _damaged(self) -> int:
        return self._blobs.damaged if isinstance(self._blobs, Mirror) else 0

    def _happened(self, kind: EventKind, version: int, why: str) -> None:
        self.events[kind] += 1
        if self._on_event is not None:
            self._on_event(Event(kind, version, why))
