"""A cluster's end of the weights log, in two phases.

    prepare   fetch, verify, decode beside what is held; nothing that is served is touched
    commit    after the engines have flipped: what was prepared is what is held

What cannot be rebuilt is never handed out. In turn: a damaged local copy is fetched again (by the mirror); a
version that does not fit what is held is rebuilt from the last full one; behind a version whose own bytes are lost
nothing can be reached until the next full one, so the publisher is asked for one and the newest version before the
damage is used. Every one of these is an Event.
"""

import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from twinmill.records.weights import WeightVersion
from twinmill.store.blobs import Blobs

from .chain import DAMAGE, Weights, path_to, walk
from .errors import Refused
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
        self._unreachable = -1
        self._retry_at = 0.0
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

        afresh: rebuild from the last full version, even what is held already: for an engine whose own memory did not
        match. Refused for a version of another run, or one before what is held. StoreUnavailable passes.
        """
        self._newest = self._log.newest()
        target = self._newest if number is None else number
        self._check_order(target)
        if target < 0 or (target == self.number and not afresh) or self._is_waiting(target):
            return None
        started, damaged = time.monotonic(), self._damaged()
        found, hops = self._rebuild(target, afresh)
        if self._damaged() > damaged:
            self._happened(EventKind.REFETCHED, target, "a copy in this cluster's mirror was damaged")
        reached = -1 if found is None else found.version.number
        if found is None or reached < self.number + (not afresh) or (number is not None and reached != number):
            return None
        return Prepared(
            weights=found,
            changed=self._changed(found),
            hops=len(hops),
            fetched_bytes=sum(version.object.bytes for version in hops),
            seconds=time.monotonic() - started,
        )

    def commit(self, prepared: Prepared) -> None:
        """The engines serve `prepared`: hold it from now on."""
        self._check_order(prepared.version.number)
        self.held = prepared.weights

    def _check_order(self, number: int) -> None:
        if number > self._newest:
            raise Refused(f"version {number} does not exist; the newest is {self._newest}")
        if number < self.number:
            raise Refused(f"version {number} is older than {self.number}, which is held; versions never go back")

    def _is_waiting(self, target: int) -> bool:
        """Was `target` unreachable a moment ago?"""
        return target == self._unreachable and time.monotonic() < self._retry_at

    def _rebuild(self, target: int, afresh: bool) -> tuple[Weights | None, list[WeightVersion]]:
        """As near to `target` as can be: from what is held, else from the last full version. Reports what was wrong."""
        why = "the engine's memory did not match" if afresh else ""
        best: tuple[Weights | None, list[WeightVersion]] = (None, [])
        for base in [None] if afresh or self.held is None else [self.held, None]:
            found, passed, problem = self._approach(target, base)
            if found is not None and found.version.number == target:
                if why:
                    self._happened(EventKind.REBUILT, target, why)
                return found, passed
            why = problem
            if found is not None and (best[0] is None or found.version.number > best[0].version.number):
                best = found, passed
        self._unreachable, self._retry_at = target, time.monotonic() + self._retry_s
        self._happened(EventKind.UNREACHABLE, target, why)
        self._log.want_full(target, self._who)
        return best

    def _approach(self, target: int, held: Weights | None) -> tuple[Weights | None, list[WeightVersion], str]:
        """The nearest version before damage that `held` leads to, what was applied for it, and the damage."""
        goal, passed, why = target, list[WeightVersion](), ""
        while goal > (-1 if held is None else held.version.number):
            try:
                path = path_to(self._log, goal, held.version if held else None)
            except DAMAGE as error:
                why, goal = why or str(error), goal - 1
                continue
            self._check_run(path)
            held, done, problem = walk(self._log, path, held)
            passed += path[:done]
            if done < len(path):
                why, goal = why or problem, path[done].number - 1
        return held, passed, why

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
