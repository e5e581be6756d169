import pytest

from twinmill.publish.collect import Collector
from twinmill.publish.config import CollectConfig, LeaseConfig
from twinmill.publish.errors import Collected, Refused
from twinmill.publish.leases import Lease, Leases, Paths, Removals
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.mirror import Mirror
from twinmill.records.weights import Collection, Condemned, WeightsLease
from twinmill.store.blobs import Blobs
from twinmill.store.errors import Corrupt

from .toys import Trainer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def published(blobs: Blobs, count: int, full_every: int = 3) -> WeightsLog:
    trainer = Trainer(blobs, full_every=full_every)
    for _ in range(count):
        trainer.publish()
    return WeightsLog(blobs)


def test_what_a_version_needs(local: Blobs) -> None:
    """Fulls at 0 and 3, deltas behind them; config and tokenizer came with version 0 and are named by all."""
    log = published(local, 6)
    needs = Paths(log)
    shared = {log.get(0).config, log.get(0).tokenizer, log.get(0).table}
    own = [log.get(number).parts[0].object for number in range(6)]
    assert needs([2]) == {own[0], own[1], own[2], *shared}
    assert needs([3]) == {own[3], *shared}
    assert needs([1, 4]) == {own[0], own[1], own[3], own[4], *shared}
    assert needs([]) == set()
    assert [needs.is_full(number) for number in range(6)] == [True, False, False, True, False, False]


def test_what_may_be_on_a_way_is_needed_too(local: Blobs) -> None:
    """Skips of 2 and anchors, as their objects stand in the records; a reader counts on none of them."""
    trainer = Trainer(local, skip_every=(2,), anchor_when=0.01)
    for _ in range(5):
        trainer.publish()
        trainer.publisher.close()
    log = WeightsLog(local)
    log.look_for_shortcuts()
    needs = Paths(log)
    shortcuts = [one for number in range(5) for one in log.shortcuts_to(number)]
    assert {(one.parent, one.number) for one in shortcuts} >= {(0, 2), (2, 4), (None, 4)}
    everything = set(local.list("weights/objects"))
    assert {ref.key for ref in needs([4])} == everything
    own = {part.object.key for number in range(5) for part in log.get(number).parts}
    assert {ref.key for ref in needs.chains([4])} >= own
    others = {part.object for one in shortcuts for part in one.parts if part.object.key not in own}
    assert others and not needs.chains([4]) & others
    assert not needs([1]) & others, "what leads elsewhere is not needed"


def test_a_lease_says_who_needs_what_until_when(blobs: Blobs, clock: Clock) -> None:
    log = published(blobs, 3)
    lease = Lease(log, "east", config=LeaseConfig(ttl_s=90.0), clock=clock)
    assert Leases(blobs).all() == {}
    assert not lease.valid
    lease.take([2, 1])
    assert Leases(blobs).all() == {"east": WeightsLease(who="east", versions=(1, 2), at=1000.0, expires_at=1090.0)}
    assert lease.valid and lease.held == {1, 2}
    assert lease.keys() == {ref.key for ref in Paths(log).chains([2])}
    clock.now += 29
    lease.beat()
    assert Leases(blobs).all()["east"].at == 1000.0, "not yet"
    clock.now += 1
    lease.beat()
    assert Leases(blobs).all()["east"].expires_at == 1120.0
    clock.now += 90
    assert not lease.valid
    lease.beat()
    assert lease.valid, "everything was still there"
    lease.drop()
    assert Leases(blobs).all() == {} and lease.held == set() and lease.keys() == set()
    lease.beat()
    assert Leases(blobs).all() == {}, "who holds nothing has nothing to say"


def test_what_was_held_is_leased_until_the_new_is_sure(local: Blobs, clock: Clock) -> None:
    log = published(local, 4)
    lease = Lease(log, "east", clock=clock)
    lease.take([1])
    lease.take([3])
    assert lease.held == {3}
    assert Leases(local).all()["east"].versions == (1, 3)
    clock.now += 500
    lease.beat()
    assert Leases(local).all()["east"].versions == (3,)


@pytest.mark.parametrize("gone", ["condemned", "removed"])
def test_what_is_not_to_be_had_is_not_taken(local: Blobs, clock: Clock, gone: str) -> None:
    log = published(local, 6)
    lease = Lease(log, "east", clock=clock)
    lease.take([4])
    lost = log.get(1).parts[0].object
    if gone == "removed":
        local.delete(lost.key)
    else:
        one = Condemned(key=lost.key, bytes=lost.bytes, since=1.0)
        Removals(local).append(Collection(number=0, at=1.0, condemned=(one,)))
    with pytest.raises(Collected, match=f"1 of 3 objects .*{lost.key}.*take a newer version"):
        lease.take([2])
    assert lease.held == {4} and lease.valid
    assert Leases(local).all()["east"].versions == (4,)
    lease.take([5])
    with pytest.raises(Collected):
        Lease(log, "west", clock=clock).take([1])
    assert "west" not in Leases(local).all()


def test_one_that_was_silent_too_long_looks_what_is_left(local: Blobs, clock: Clock) -> None:
    log = published(local, 6)
    lease = Lease(log, "east", clock=clock)
    lease.take([1])
    clock.now += 10_000
    local.delete(log.get(1).parts[0].object.key)
    with pytest.raises(Collected):
        lease.beat()
    assert not lease.valid and lease.held == set()
    assert Leases(local).all() == {}


def test_through_a_mirror(local: Blobs, tmp_path, clock: Clock) -> None:
    """The lease is written to the bucket; what is here already need not be there; what is leased is what a mirror keeps."""
    published(local, 4)
    mirror = Mirror(local, tmp_path / "m")
    log = WeightsLog(mirror)
    mirror.fetch(Paths(log)([1]))
    local.delete(log.get(1).parts[0].object.key)
    lease = Lease(log, "east", clock=clock)
    lease.take([1])
    assert Leases(local).all()["east"].versions == (1,)
    assert lease.keys() >= {log.get(0).parts[0].object.key, log.get(1).parts[0].object.key}


def test_a_damaged_lease_is_not_overlooked(local: Blobs, clock: Clock) -> None:
    log = published(local, 2)
    Lease(log, "east", clock=clock).take([0])
    local.put("weights/leases/east", local.get("weights/leases/east")[:-1])
    with pytest.raises(Corrupt, match="weights/leases/east"):
        Leases(local).all()
    with pytest.raises(Corrupt, match="weights/leases/east"):
        Collector(log, clock=clock).collect()


@pytest.mark.parametrize("who", ["", "a/b", "..", "x" * 200, "é"])
def test_names_that_no_key_could_hold(local: Blobs, who: str) -> None:
    with pytest.raises(Refused, match="cannot name a lease"):
        Lease(WeightsLog(local), who)


def test_settings_that_would_lose_what_readers_need(local: Blobs) -> None:
    log = WeightsLog(local)
    with pytest.raises(Refused, match="want seconds > 0"):
        Lease(log, "east", config=LeaseConfig(ttl_s=0))
    for config in (CollectConfig(keep_chains=0), CollectConfig(keep_versions=0), CollectConfig(grace_s=-1)):
        with pytest.raises(Refused, match="collect"):
            Collector(log, config)
