import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinmill.publish.route import Hop, Route, cheapest
from twinmill.records.base import Ref
from twinmill.records.weights import Part


def hop(start: int | None, end: int, size: int) -> Hop:
    ref = Ref(key="k", digest="d", bytes=size)
    part = Part(object=ref, first_tile=0, tiles=1, changed=0, head_bytes=1, head_digest="")
    return Hop(start, end, (part,), f"{start} to {end}, {size}")


class Log:
    """Hops by the version they lead to; remembers which versions were looked at."""

    def __init__(self, hops: Iterable[Hop]) -> None:
        self.hops = list(hops)
        self.asked: list[int] = []

    def __call__(self, version: int) -> list[Hop]:
        self.asked.append(version)
        return [hop for hop in self.hops if hop.end == version]


def names(route: Route | None) -> list[tuple[int | None, int]] | None:
    return None if route is None else [(hop.start, hop.end) for hop in route]


CHAIN = [hop(None, 0, 1000), *(hop(n - 1, n, 10) for n in range(1, 33))]
SKIPS = [hop(0, 16, 60), hop(16, 32, 60)]
ANCHOR = hop(None, 32, 1000)


def test_one_version_behind_looks_at_one_version() -> None:
    log = Log([*CHAIN, *SKIPS, ANCHOR])
    assert names(cheapest(20, 19, log)) == [(19, 20)]
    assert log.asked == [20]


def test_what_is_held_needs_nothing() -> None:
    assert cheapest(5, 5, Log(CHAIN)) == ()


def test_skips_are_taken_where_they_save() -> None:
    assert names(cheapest(18, 0, Log([*CHAIN, *SKIPS]))) == [(0, 16), (16, 17), (17, 18)]
    assert names(cheapest(18, 13, Log([*CHAIN, *SKIPS]))) == [(n, n + 1) for n in range(13, 18)]
    assert names(cheapest(3, 0, Log([hop(0, 1, 1), hop(1, 3, 1), hop(2, 3, 1)]))) == [(0, 1), (1, 3)]


def test_a_joiner_takes_the_cheapest_beginning() -> None:
    assert names(cheapest(33, None, Log([*CHAIN, *SKIPS, ANCHOR, hop(32, 33, 10)]))) == [(None, 32), (32, 33)]
    assert names(cheapest(31, None, Log([*CHAIN, *SKIPS, ANCHOR])))[:2] == [(None, 0), (0, 16)]  # type: ignore[index]


def test_an_anchor_may_be_nearer_than_what_is_held() -> None:
    hops = [hop(0, 1, 5000), hop(None, 0, 1000), hop(None, 1, 1000)]
    assert names(cheapest(1, 0, Log(hops))) == [(None, 1)]


def test_damaged_hops_are_gone_round() -> None:
    log = Log([*CHAIN, *SKIPS, ANCHOR])
    assert names(cheapest(16, 15, log, {CHAIN[16].name})) == [(None, 0), (0, 16)]
    everything = {h.name for h in [*CHAIN, *SKIPS, ANCHOR]}
    assert cheapest(16, None, log, everything) is None
    assert cheapest(16, 15, log, everything) is None


def test_versions_never_go_back() -> None:
    """A hop that ends before it starts is a lie."""
    assert cheapest(5, 4, Log([hop(3, 5, 1), hop(4, 3, 1)])) is None
    assert cheapest(5, None, Log([hop(7, 5, 1), hop(None, 7, 1)])) is None


def test_equal_bytes_take_fewer_hops() -> None:
    log = Log([hop(0, 1, 0), hop(1, 2, 0), hop(0, 2, 0)])
    assert names(cheapest(2, 0, log)) == [(0, 2)]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Hop], int, int | None]:
    last = draw(st.integers(1, 7))
    hops = [
        hop(draw(st.one_of(st.none(), st.integers(0, end - 1))) if end else None, end, draw(st.integers(0, 9)))
        for end in draw(st.lists(st.integers(0, last), max_size=14))
    ]
    return hops, last, draw(st.one_of(st.none(), st.integers(0, last)))


def dearest_search(hops: list[Hop], target: int, held: int | None) -> int | None:
    """The least cost, by trying everything."""
    if target == held:
        return 0
    costs = []
    for last in hops:
        if last.end == target:
            before = 0 if last.start is None else dearest_search(hops, last.start, held)
            if before is not None:
                costs.append(before + last.bytes)
    return min(costs, default=None)


@given(graphs())
def test_no_way_is_cheaper(graph: tuple[list[Hop], int, int | None]) -> None:
    hops, target, held = graph
    log = Log(hops)
    route = cheapest(target, held, log)
    best = dearest_search(hops, target, held)
    assert (None if route is None else sum(h.bytes for h in route)) == best
    assert len(log.asked) == len(set(log.asked))
    if route:
        assert route[0].start in (None, held)
        assert route[-1].end == target
        assert all(a.end == b.start for a, b in itertools.pairwise(route))


@pytest.mark.parametrize("length", [3000])
def test_a_long_log_is_no_recursion(length: int) -> None:
    by_end = {n: [hop(n - 1 if n else None, n, 1)] for n in range(length)}
    route = cheapest(length - 1, None, by_end.__getitem__)
    assert route is not None
    assert len(route) == length
