import pytest

from twinmill.publish import collect
from twinmill.publish.collect import Collector
from twinmill.publish.config import CollectConfig, LeaseConfig
from twinmill.publish.errors import Refused
from twinmill.publish.leases import Lease, Leases, Paths, Removals
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.materialize import verify
from twinmill.records.base import Ref
from twinmill.records.weights import WeightsLease
from twinmill.store import blobs as blobs_module
from twinmill.store.audit import audit
from twinmill.store.blobs import Blobs
from twinmill.store.errors import Corrupt

from .test_leases import Clock, clock, published  # noqa: F401 (a fixture)
from .toys import Trainer

CONFIG = CollectConfig(keep_chains=2, keep_versions=1, grace_s=100.0, skew_s=10.0)


def objects(blobs: Blobs) -> set[str]:
    return set(blobs.list("weights/objects"))


def keys(refs: set[Ref]) -> set[str]:
    return {ref.key for ref in refs}


def rounds(collector: Collector, clock: Clock, count: int = 2, wait_s: float = 101.0) -> None:  # noqa: F811
    for _ in range(count):
        collector.collect()
        clock.now += wait_s


def test_the_newest_chains_stay_and_the_rest_goes(blobs: Blobs, clock: Clock) -> None:  # noqa: F811
    """Fulls at 0, 3, 6, 9: what 6 to 10 need stays, and every manifest."""
    log = published(blobs, 11)
    collector, needs = Collector(log, CONFIG, clock=clock), Paths(log)
    before = {key: len(blobs.get(key)) for key in objects(blobs)}
    kept = keys(needs(range(6, 11)))
    first = collector.collect()
    assert first is not None
    assert {one.key for one in first.condemned} == before.keys() - kept
    assert {one.key: one.bytes for one in first.condemned}.items() <= before.items()
    assert objects(blobs) == before.keys(), "nothing is removed at once"
    clock.now += 99
    assert collector.collect() is None
    clock.now += 2
    last = collector.collect()
    assert last is not None
    assert {one.key for one in last.removed} == before.keys() - kept
    assert last.condemned == ()
    assert objects(blobs) == kept
    assert collector.collect() is None
    assert [report.problem for report in verify(blobs, 6)] == [""] * 5
    assert WeightsLog(blobs).newest() == 10 and len(blobs.list("weights/manifests")) == 11
    assert audit(blobs, objects=True).problems == ()


def test_the_newest_versions_stay_whatever_they_stand_on(local: Blobs, clock: Clock) -> None:  # noqa: F811
    log = published(local, 11, full_every=1)
    config = CollectConfig(keep_chains=1, keep_versions=4, keep=(2,), grace_s=100.0, skew_s=10.0)
    rounds(Collector(log, config, clock=clock), clock)
    assert objects(local) == keys(Paths(log)([2, 7, 8, 9, 10]))


def test_what_is_leased_stays_with_all_it_stands_on(local: Blobs, clock: Clock) -> None:  # noqa: F811
    log = published(local, 11)
    lease = Lease(log, "east", config=LeaseConfig(ttl_s=50.0), clock=clock)
    lease.take([2])
    Leases(local).put(WeightsLease(who="odd", versions=(99,), at=1e12, expires_at=1e12 + 50))
    collector = Collector(log, CONFIG, clock=clock)
    for _ in range(40):
        collector.collect()
        clock.now += 10
        lease.beat()
    kept = keys(Paths(log)([2, *range(6, 11)]))
    assert objects(local) == kept
    clock.now += 59  # it runs out, but clocks may differ by 10
    collector.collect()
    clock.now += 101
    lease.beat()
    collector.collect()
    assert objects(local) == kept, "back in time: what was condemned is spared"
    entry = Removals(local).latest()
    assert entry is not None and entry.condemned == ()
    clock.now += 61
    rounds(collector, clock)
    assert objects(local) == keys(Paths(log)(range(6, 11)))


def test_the_grace_is_longer_than_any_lease(local: Blobs, clock: Clock) -> None:  # noqa: F811
    log = published(local, 11)
    Lease(log, "east", config=LeaseConfig(ttl_s=500.0), clock=clock).take([10])
    collector = Collector(log, CONFIG, clock=clock)
    before = objects(local)
    rounds(collector, clock, 5)
    assert objects(local) == before
    rounds(collector, clock, 2)
    assert objects(local) == keys(Paths(log)(range(6, 11)))


def test_what_a_killed_publication_left_goes_and_one_in_flight_stays(local: Blobs, clock: Clock) -> None:  # noqa: F811
    trainer = Trainer(local)
    trainer.publish()
    log = WeightsLog(local)
    orphan = local.put_ref(log.objects, b"of a publication that was killed")
    collector = Collector(log, CONFIG, clock=clock)
    entry = collector.collect()
    assert entry is not None and [one.key for one in entry.condemned] == [orphan.key]
    clock.now += 1000
    early = trainer.publish()  # condemned while its manifest was not there, had a round come in between
    local.delete("weights/manifests/0000000001")
    log = WeightsLog(local)
    collector = Collector(log, CONFIG, clock=clock)
    collector.collect()
    assert orphan.key not in objects(local)
    entry = Removals(local).latest()
    assert entry is not None and [one.key for one in entry.condemned] == [early.parts[0].object.key]
    log.commit(early)
    clock.now += 1000
    entry = collector.collect()
    assert entry is not None and entry.spared == (early.parts[0].object.key,) and entry.condemned == ()
    assert early.parts[0].object.key in objects(local)


@pytest.mark.parametrize("point", ["weights.collect:before", "weights.collect:after"])
@pytest.mark.parametrize("nth", range(3))
def test_killed_in_a_round(
    local: Blobs, clock: Clock, monkeypatch: pytest.MonkeyPatch, point: str, nth: int  # noqa: F811
) -> None:  # fmt: skip
    class Killed(BaseException):
        pass

    log = published(local, 11)
    kept, before, seen = keys(Paths(log)(range(6, 11))), objects(local), 0

    def crash(at: str) -> None:
        nonlocal seen
        seen += at == point
        if at == point and seen == nth + 1:
            raise Killed

    monkeypatch.setattr(blobs_module, "crash_points", crash)
    died = 0
    for _ in range(6):
        try:
            Collector(WeightsLog(local), CONFIG, clock=clock).collect()
        except Killed:
            died += 1
        assert kept <= objects(local)
        clock.now += 101
    assert died == 1
    assert objects(local) == kept
    removed = [one.key for n in range(len(local.list("weights/collected"))) for one in Removals(local).get(n).removed]
    assert set(removed) == before - kept, "the ledger names everything that is gone"
    assert audit(local, objects=True).problems == ()


def test_a_second_collector_is_refused_before_it_removes(
    local: Blobs, clock: Clock, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    log = published(local, 11)
    first, second = Collector(log, CONFIG, clock=clock), Collector(log, CONFIG, clock=clock)
    first.collect()
    clock.now += 1000
    sizes = local.sizes

    def meanwhile(prefix: str = "") -> dict[str, int]:
        """Both have read entry 0; the first is quicker, but has not removed anything yet."""
        monkeypatch.undo()
        monkeypatch.setattr(collect, "remove", lambda *_: None)
        first.collect()
        monkeypatch.undo()
        clock.now += 1
        return sizes(prefix)

    monkeypatch.setattr(log.blobs, "sizes", meanwhile)
    before = objects(local)
    with pytest.raises(Refused, match="a second collector"):
        second.collect()
    assert objects(local) == before


def test_a_manifest_that_cannot_be_read_stops_a_round(local: Blobs, clock: Clock) -> None:  # noqa: F811
    published(local, 11)
    key = "weights/manifests/0000000007"
    local.put(key, local.get(key)[:-1])
    before = objects(local)
    with pytest.raises(Corrupt, match=key):
        Collector(WeightsLog(local), CONFIG, clock=clock).collect()
    assert objects(local) == before
    assert local.list("weights/collected") == []


def test_an_object_that_is_gone_without_an_entry_is_a_problem(local: Blobs, clock: Clock) -> None:  # noqa: F811
    log = published(local, 11)
    rounds(Collector(log, CONFIG, clock=clock), clock)
    local.delete(log.get(8).parts[0].object.key)
    assert any("version 8" in problem for problem in audit(local, objects=True).problems)


def test_nothing_to_collect(local: Blobs, clock: Clock) -> None:  # noqa: F811
    collector = Collector(WeightsLog(local), CONFIG, clock=clock)
    assert collector.collect() is None
    Trainer(local).publish()
    assert collector.collect() is None
    assert local.list("weights/collected") == []
