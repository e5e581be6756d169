"""Rebuild a version along the cheapest way that is sound, verified hop by hop.

    try      the cheapest route from what is held, or from nothing
    a hop that is damaged as a whole, or in many tiles: leave it out and try the next cheapest route
    a few damaged tiles: go on with all others, then build those few anew from nothing, each along a route of its own

Nothing is ever changed in place: what is held, and what is served, stays as it was whatever is found.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress

from twinmill.records.weights import WeightVersion

from .container import Opened, read_head
from .draft import Draft, Weights
from .errors import Broken, Refused
from .manifest import DAMAGE, WeightsLog
from .mirror import Mirror
from .route import Hop, Route, cheapest

AHEAD_BYTES = 256 << 20
"""of the objects of several hops are fetched before their turn"""
FEW = 64
"""one of so many tiles (and at least one) may fail at a hop before another way is sought for all of them"""


class Journey:
    """The search for one version. Remembers which hops were damaged, and what was wrong with them."""

    def __init__(
        self,
        log: WeightsLog,
        held: Weights | None,
        *,
        run_id: str | None = None,
        tiles: Collection[int] | None = None,
        threads: int = 1,
    ) -> None:
        """run_id: versions of another run are refused; None = whichever run wrote this log."""
        self.problems: list[Exception] = []
        """what was found damaged, in order"""
        self.repaired: list[str] = []
        """tiles that were built anew, and what had been wrong with them"""
        self.route: Route = ()
        """that led there"""
        self.fetched_bytes = 0
        self._log = log
        self._held = held
        self._run_id = run_id
        self._tiles = tiles
        self._threads = threads
        self._damaged: set[str] = set()

    def to(self, target: int) -> Draft | None:
        """A finished draft of version `target`; None when no way leads there: see `problems`. What other than damage goes
        wrong (StoreUnavailable, Refused) passes."""
        if self._held is not None and target == self._held.version.number:
            raise ValueError(f"version {target} is held already")
        while (route := cheapest(target, self._start(), self._hops_to, self._damaged)) is not None:
            draft = self._along(route)
            if draft is not None:
                self.route = route
                return draft
        return None

    def _start(self) -> int | None:
        return None if self._held is None else self._held.version.number

    def mend(self, held: Weights, wrong: dict[int, str]) -> Draft | None:
        """A draft of the very version that is held, with the tiles `wrong` (tile -> why) built anew; None as above."""
        draft = Draft(self._log, held.grid, held, tiles=self._tiles, threads=self._threads)
        draft.mark_wrong(wrong)
        if not self._repair(draft, held.version.number):
            return None
        draft.finish()
        return draft

    def _along(self, route: Route) -> Draft | None:
        """None = a hop of it was damaged, and is not to be taken again."""
        draft, hop = None, route[0]
        culprit = None  # the hop at which tiles failed, where that is the reason
        try:
            grid = self._log.grid(self._log.get(route[-1].end))
            held = self._held if route[0].start is not None else None
            draft = Draft(self._log, grid, held, tiles=self._tiles, threads=self._threads)
            fetched = 0
            for i, hop in enumerate(route):
                if i >= fetched:
                    fetched = self._fetch_ahead(route, i)
                draft.take(hop)
                if len(draft.failed) > max(1, len(grid.tiles) // FEW):
                    culprit = draft.culprit
                    raise Broken(hop.end, f"{len(draft.failed)} tiles are damaged; {draft.first_failure()}")
            if draft.failed and not self._repair(draft, route[-1].end):
                culprit = draft.culprit
                raise Broken(hop.end, f"a tile cannot be repaired; {draft.first_failure()}")
            draft.finish()
        except DAMAGE as error:
            self.problems.append(error)
            if culprit is not None and draft is not None and not draft.begins_new and not draft.lost_objects:
                self._held = None  # sound bytes that do not fit: perhaps it is the base that went bad
            else:
                self._damaged.add((culprit or hop).name)
            return None
        finally:
            self.fetched_bytes += draft.fetched_bytes if draft is not None else 0
        return draft

    def _fetch_ahead(self, route: Route, first: int) -> int:
        """Let a mirror fetch the objects of the next hops side by side, as many as are reasonable; the hop behind them.

        What is damaged or gone among them is found, and named, when its hop is taken.
        """
        end, size = first, 0
        while end < len(route) and (end == first or size + route[end].bytes <= AHEAD_BYTES):
            size += route[end].bytes
            end += 1
        if end - first > 1 and self._tiles is None and isinstance(self._log.blobs, Mirror):
            with suppress(*DAMAGE):
                self._log.blobs.fetch(part.object for hop in route[first:end] for part in hop.parts)
        return end

    def _repair(self, draft: Draft, target: int) -> bool:
        """Build the failed tiles anew, each from nothing. A hop that is damaged here is left out here only."""
        damaged: set[str] = set()
        wrong = {tile: f"{draft.grid.describe(tile)}: {why}" for tile, why in draft.failed.items()}
        while draft.failed:
            route = cheapest(target, None, self._hops_to, self._damaged | damaged)
            if route is None:
                return False
            heads: dict[str, Opened] = {}
            for tile in sorted(draft.failed):
                found = _heads(self._log, route, tile, heads)
                bad = draft.repair(tile, route, found) if isinstance(found, list) else found
                if bad is not None:
                    damaged.add(bad[0].name)
                    break
        self.repaired += wrong.values()
        return True

    def _hops_to(self, number: int) -> list[Hop]:
        """A version whose own manifest is damaged is on no way."""
        try:
            version = self._log.get(number)
            if self._run_id not in (None, version.run_id):
                raise Refused(
                    f"version {number} is of run {version.run_id!r}, this cluster serves {self._run_id!r}; "
                    "nothing was changed: check store.url"
                )
            return self._log.hops_to(number)
        except DAMAGE as error:
            if str(error) not in map(str, self.problems):
                self.problems.append(error)
            return []


def _heads(log: WeightsLog, route: Route, tile: int, known: dict[str, Opened]) -> list[Opened] | tuple[Hop, str]:
    """The head of the object of each hop that `tile` is in; or the first hop whose cannot be had, and why."""
    found = []
    for hop in route:
        part = next(p for p in hop.parts if p.first_tile <= tile < p.first_tile + p.tiles)
        try:
            if part.object.key not in known:
                known[part.object.key] = read_head(log.blobs, part)
        except DAMAGE as error:
            return hop, str(error)
        found.append(known[part.object.key])
    return found


def rebuild(log: WeightsLog, number: int, held: Weights | None = None, *, threads: int = 1) -> Weights:
    """Version `number`, the cheapest way, from `held` where that is on it. What was damaged is raised if no way is left."""
    log.look_for_shortcuts()
    journey = Journey(log, held, threads=threads)
    draft = journey.to(number)
    if draft is None:
        raise journey.problems[0] if journey.problems else Broken(number, "no way leads to it")
    return draft.weights()


def versions(log: WeightsLog, first: int = 0, last: int | None = None) -> Iterator[WeightVersion]:
    """Manifests first..last (None = the newest), in order."""
    end = log.newest() if last is None else last
    yield from (log.get(number) for number in range(first, end + 1))
