"""A cluster's end of the weights log, in two phases.

    prepare   fetch, verify, decode to patches; nothing that is served is touched
    commit    after the engines have flipped: what was prepared is what is held
    scrub     now and then: are the bits that are held still those of the log?

What cannot be rebuilt is never handed out. In turn: a damaged local copy is fetched again (by the mirror); damaged tiles are
built anew alone; a version whose own objects are lost is reached another way, over a skip or an anchor; where no way is left,
the publisher is asked for a full one and the newest version before the damage is used. Every one of these is an Event.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twinmill.store.blobs import Blobs

from .apply import Prepared, Undo, commit, take_back, write_mark
from .chain import Journey
from .draft import Draft, Weights
from .errors import Refused
from .manifest import WeightsLog
from .mirror import Mirror
from .signing import Verifier
from .tensors import unsigned
from .tiles import gather
from .wdx import TILE_MAX, digest


class EventKind(Enum):
    """What a subscriber had to do about damage."""

    REFETCHED = "refetched"
    """a local copy was damaged; the store's was sound"""
    REPAIRED = "repaired"
    """single tiles were damaged, in memory or in the store, and were built anew"""
    REROUTED = "rerouted"
    """an object on the cheapest way was damaged; the version was reached another way"""
    REBUILT = "rebuilt"
    """the engine's memory was not what the log says; the version was rebuilt from nothing"""
    UNREACHABLE = "unreachable"
    """a version cannot be rebuilt at all; a full one was asked for"""


class Event(NamedTuple):
    kind: EventKind
    version: int
    why: str


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
        tiles: Collection[int] | None = None,
        threads: int = 1,
        mark: Path | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """who: the cluster's name, for the publisher. retry_s: pause before an unreachable version is tried again.

        tiles: for one rank of an engine, the tiles it needs (tiles.owned); only these are fetched and decoded, all others
        stay 0; None = all. threads: that decode. mark: file that says what was committed last; None = none is kept.
        verifier: versions that it has not signed are refused; None = signatures are not looked at.
        """
        self._blobs = blobs
        self._log = WeightsLog(blobs, verifier=verifier)
        self._run_id = run_id
        self._who = who
        self._on_event = on_event
        self._retry_s = retry_s
        self._tiles = tiles
        self._threads = threads
        self._mark = mark
        self._unreachable = -1
        self._retry_at = 0.0
        self._undo: Undo | None = None
        self._scrubbed = 0
        self.held: Weights | None = None
        """what was committed last; None = nothing yet"""
        self.events: Counter[EventKind] = Counter()
        self._newest = -1

    @property
    def tiles(self) -> int:
        """How many are held."""
        return len(self._mine())

    @property
    def number(self) -> int:
        """The version held; -1 = none yet."""
        return -1 if self.held is None else self.held.version.number

    @property
    def lag(self) -> int:
        """Versions between the newest (as of the last `prepare`) and the held one."""
        return self._newest - self.number

    def prepare(self, number: int | None = None, *, afresh: bool = False) -> Prepared | None:
        """The newest version that can be rebuilt (or exactly `number`); None = nothing is ready. Touches nothing.

        afresh: rebuild from nothing, even what is held already: for an engine whose own memory did not match. Refused for a
        version of another run, or one before what is held. StoreUnavailable passes.
        """
        self._newest = self._log.newest()
        target = self._newest if number is None else number
        self._check_order(target)
        if target < 0 or (target == self.number and not afresh) or self._is_waiting(target):
            return None
        started, damaged = time.monotonic(), self._damaged()
        draft, journey = self._reach(target, afresh)
        if self._damaged() > damaged:
            self._happened(EventKind.REFETCHED, target, "a copy in this cluster's mirror was damaged")
        reached = -1 if draft is None or draft.number is None else draft.number
        if draft is None or reached < self.number + (not afresh) or (number is not None and reached != number):
            return None
        return Prepared(
            draft,
            self._log.get(reached),
            hops=len(journey.route),
            fetched_bytes=journey.fetched_bytes,
            seconds=time.monotonic() - started,
        )

    def commit(self, prepared: Prepared) -> None:
        """The engines serve `prepared`: hold it from now on. Doing it twice is doing it once.

        Refused when something else was committed since it was prepared, and nothing is touched.
        """
        self._check_order(prepared.version.number)
        again = self.number == prepared.version.number
        if prepared.base is not None and prepared.base is not self.held and not again:
            raise Refused(
                f"version {prepared.version.number} was prepared on version {prepared.base.version.number}, but "
                f"{self.number} is held by now; prepare it again"
            )
        self.held, undo = commit(self.held, prepared)
        self._undo = undo if not again else self._undo
        if self._mark is not None:
            write_mark(self._mark, prepared.version)

    def take_back(self) -> None:
        """Hold what was held before the last commit: another rank could not follow. Refused when nothing can be taken back."""
        if self._undo is None:
            raise Refused("there is no commit to take back: only the last one can be, and only once")
        self.held, self._undo = take_back(self._undo), None
        if self._mark is not None and self.held is not None:
            write_mark(self._mark, self.held.version)

    def scrub(self, count: int) -> int:
        """Recompute the digests of the next `count` tiles that are held, in turn; rebuild those whose bits have changed.

        Returns how many had. Finds a flipped bit wherever it is, at the latest when all tiles have had their turn.
        """
        if self.held is None:
            return 0
        mine = self._mine()
        room = np.empty(TILE_MAX, np.uint32)
        bad = []
        for _ in range(min(count, len(mine))):
            index = mine[self._scrubbed % len(mine)]
            tile = self.held.grid.tiles[index]
            if digest(gather(tile, self.held.tensors, room.view(unsigned(tile.dtype)))) != self.held.digests[index]:
                bad.append(index)
            self._scrubbed += 1
        if bad:
            self._rebuild_tiles(bad)
        return len(bad)

    def _mine(self) -> Sequence[int]:
        if self.held is None:
            return ()
        return range(len(self.held.grid.tiles)) if self._tiles is None else sorted(self._tiles)

    def _rebuild_tiles(self, tiles: list[int]) -> None:
        assert self.held is not None
        self._log.look_for_shortcuts()
        journey = self._journey(self.held)
        draft = journey.mend(self.held, dict.fromkeys(tiles, "bits changed in memory since they were verified"))
        if draft is None:
            why = str(journey.problems[0]) if journey.problems else "no way leads to it"
            self._happened(EventKind.UNREACHABLE, self.number, f"{len(tiles)} tiles changed in memory: {why}")
            self._log.want_full(self.number, self._who)
            return
        self._happened(EventKind.REPAIRED, self.number, "; ".join(journey.repaired))
        self.held, self._undo = draft.weights(), None

    def _check_order(self, number: int) -> None:
        if number > self._newest:
            raise Refused(f"version {number} does not exist; the newest is {self._newest}")
        if number < self.number:
            raise Refused(f"version {number} is older than {self.number}, which is held; versions never go back")

    def _is_waiting(self, target: int) -> bool:
        """Was `target` unreachable a moment ago?"""
        return target == self._unreachable and time.monotonic() < self._retry_at

    def _reach(self, target: int, afresh: bool) -> tuple[Draft | None, Journey]:
        """As near to `target` as can be. Reports what was wrong."""
        held = None if afresh else self.held
        if target != self.number + 1 or held is None:
            self._log.look_for_shortcuts()
        journey = self._journey(held)
        draft = journey.to(target)
        if draft is None and target == self.number + 1:  # there may be another way by now
            self._log.look_for_shortcuts()
            draft = journey.to(target)
        if draft is not None:
            self._report(target, afresh, journey)
            return draft, journey
        why = str(journey.problems[0]) if journey.problems else "no way leads to it"
        self._unreachable, self._retry_at = target, time.monotonic() + self._retry_s
        self._happened(EventKind.UNREACHABLE, target, why)
        self._log.want_full(target, self._who)
        for goal in range(target - 1, self.number, -1):
            if (draft := journey.to(goal)) is not None:
                break
        return draft, journey

    def _report(self, target: int, afresh: bool, journey: Journey) -> None:
        if journey.repaired:
            self._happened(EventKind.REPAIRED, target, "; ".join(journey.repaired))
        if afresh:
            self._happened(EventKind.REBUILT, target, "the engine's memory did not match")
        elif journey.problems:
            taken = ", ".join(hop.name for hop in journey.route)
            self._happened(EventKind.REROUTED, target, f"{journey.problems[0]}; taken instead: {taken}")

    def _journey(self, held: Weights | None) -> Journey:
        return Journey(self._log, held, run_id=self._run_id, tiles=self._tiles, threads=self._threads)

    def _damaged(self) -> int:
        return self._blobs.damaged if isinstance(self._blobs, Mirror) else 0

    def _happened(self, kind: EventKind, version: int, why: str) -> None:
        self.events[kind] += 1
        if self._on_event is not None:
            self._on_event(Event(kind, version, why))
