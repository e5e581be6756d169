import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.records.base import Ref
from twinmill.store.spans import Request, Span, Want, plan


@st.composite
def missing(draw: st.DrawFn) -> list[tuple[Want, list[Span]]]:
    """Wants of a few objects, overlapping as they like, each with some disjoint spans missing."""
    found = []
    for i in range(draw(st.integers(0, 6))):
        want = Want(f"k{draw(st.integers(0, 2))}", draw(st.integers(0, 300)), draw(st.integers(1, 200)), f"d{i}")
        cuts = sorted(draw(st.sets(st.integers(0, want.bytes), min_size=2, max_size=7)))
        found.append((want, [Span(low, high - low) for low, high in zip(cuts[::2], cuts[1::2])]))
    return found


@settings(deadline=None)
@given(missing(), st.integers(1, 120), st.integers(0, 60))
def test_every_missing_byte_is_taken_once(wanted: list, request_bytes: int, gap_bytes: int) -> None:
    requests = plan(wanted, request_bytes, gap_bytes)
    taken: Counter[tuple[Want, int]] = Counter()
    for request in requests:
        assert 0 < request.bytes <= request_bytes
        assert min(take.start for take in request.takes) == 0
        assert max(take.start + take.bytes for take in request.takes) == request.bytes
        for take in request.takes:
            assert take.want.key == request.key
            assert request.offset + take.start == take.want.offset + take.at
            taken.update((take.want, take.at + i) for i in range(take.bytes))
    assert taken == Counter(
        (want, span.offset + i) for want, spans in wanted for span in spans for i in range(span.bytes)
    )


@settings(deadline=None)
@given(missing(), st.integers(1, 120), st.integers(0, 60))
def test_neighbours_share_a_request_whenever_they_may(wanted: list, request_bytes: int, gap_bytes: int) -> None:
    requests = plan(wanted, request_bytes, gap_bytes)
    for one, two in itertools.pairwise(requests):
        if one.key == two.key:
            first = two.takes[0]
            too_far = two.offset - (one.offset + one.bytes) > gap_bytes
            too_long = two.offset + first.bytes - one.offset > request_bytes
            assert too_far or too_long


def test_tiles_of_an_object() -> None:
    tiles = [Want("o", offset, 100) for offset in (0, 100, 250, 5000)]
    assert [(r.offset, r.bytes, len(r.takes)) for r in plan([(t, [Span(0, 100)]) for t in tiles], 1000, 60)] == [
        (0, 350, 3),
        (5000, 100, 1),
    ]


def test_a_large_object_is_read_in_several_requests() -> None:
    want = Want.of(Ref(key="o", digest="d", bytes=25))
    requests = plan([(want, [Span(0, 25)])], 10, 0)
    assert [(r.offset, r.bytes, r.whole) for r in requests] == [(0, 10, 25), (10, 10, 25), (20, 5, 25)]
    assert Request("o", 0, 1, ()).whole is None
