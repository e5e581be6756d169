"""The cheapest way to a version, in bytes. Pure: the caller says which hops lead to a version.

    nothing ──anchor──► 0 ──► 1 ──► 2 ── ... ──► 16 ──► 17
                        └───────── skip ─────────┘

A hop brings one version to a later one; from nothing (a full version, an anchor) it brings any reader. The search starts
at the target and looks only at versions that are nearer to it than the beginning of the cheapest way, so a subscriber that
is one version behind looks at one manifest.
"""

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from twinmill.records.weights import Part


class Hop(NamedTuple):
    """One way from version `start` (None = from nothing) to version `end`."""

    start: int | None
    end: int
    parts: tuple[Part, ...]
    name: str
    """what to call it to people: "version 3", "skip 0 to 16", "anchor 32" """

    @property
    def bytes(self) -> int:
        return sum(part.object.bytes for part in self.parts)


Route = tuple[Hop, ...]
"""hops to take one after the other"""


_Rest = tuple[Hop, "_Rest"] | None
"""a route from here to the target, hop by hop; None = the target is reached"""


def cheapest(
    target: int,
    held: int | None,
    hops_to: Callable[[int], Iterable[Hop]],
    excluded: Collection[str] = (),
) -> Route | None:
    """Fewest bytes from `held` (None = nothing), or from nothing, to `target`; None = no way leads there.

    `excluded`: names of hops not to take. Among ways of equal bytes the one with fewer hops; `hops_to` is asked at most once
    for a version. A held target gives the empty route.
    """
    order = itertools.count()  # breaks ties by age, so that routes are never compared
    queue: list[tuple[int, int, int, int | None, _Rest]] = [(0, 0, next(order), target, None)]
    done: set[int | None] = set()
    while queue:
        cost, length, _, version, rest = heapq.heappop(queue)
        if version is None or version == held:
            return tuple(_unrolled(rest))
        if version in done:
            continue
        done.add(version)
        for hop in hops_to(version):
            backwards = hop.start is not None and hop.start >= version
            if hop.name not in excluded and not backwards and hop.start not in done:
                heapq.heappush(queue, (cost + hop.bytes, length + 1, next(order), hop.start, (hop, rest)))
    return None


def _unrolled(rest: _Rest) -> Iterator[Hop]:
    while rest is not None:
        hop, rest = rest
        yield hop
