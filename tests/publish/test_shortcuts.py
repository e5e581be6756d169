from pathlib import Path

import pytest
from msgspec import structs

from twinmill.publish import PublishConfig
from twinmill.publish.chain import rebuild
from twinmill.publish.errors import Refused
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.materialize import verify
from twinmill.publish.mirror import Mirror
from twinmill.publish.publisher import Publisher
from twinmill.publish.signing import Signer, Verifier, new_key
from twinmill.publish.subscriber import EventKind, Subscriber
from twinmill.publish.tiles import Shard, gather, owned
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import StoreUnavailable
from twinmill.store.frame import seal_record

from .toys import DTYPES, Trainer, first_state, moved, same


def run(blobs: Blobs, count: int, **config: object) -> Trainer:
    trainer = Trainer(blobs, **config)
    for _ in range(count):
        trainer.publish()
        trainer.publisher.close()  # let each shortcut be made before the next version
    assert trainer.publisher.shortcuts.problems == []
    return trainer


def ways(blobs: Blobs, number: int) -> list[str]:
    log = WeightsLog(blobs)
    log.look_for_shortcuts()
    return [hop.name for hop in log.hops_to(number)]


def lose(blobs: Blobs, number: int) -> None:
    for part in WeightsLog(blobs).get(number).parts:
        blobs.delete(part.object.key)


def test_skips_and_anchors_are_made_and_lead_to_the_same_bits(blobs: Blobs) -> None:
    trainer = run(blobs, 10, skip_every=(3, 9), anchor_when=1.0)
    assert ways(blobs, 9)[:3] == ["version 9", "skip 0 to 9", "skip 6 to 9"]
    assert ways(blobs, 3)[:2] == ["version 3", "skip 0 to 3"]
    assert ways(blobs, 4) == ["version 4"]
    assert all(report.ok for report in verify(blobs)), "verify follows the shortcuts, too"
    for number, state in enumerate(trainer.states):
        assert same(rebuild(WeightsLog(blobs), number).tensors, state)


def test_an_anchor_is_made_where_the_way_has_become_long(local: Blobs) -> None:
    run(local, 7, skip_every=(3,), anchor_when=0.01)
    assert "anchor 3" in ways(local, 3)
    assert "anchor 6" in ways(local, 6)
    run(other := open_blobs("memory://"), 7, skip_every=(3,), anchor_when=0.0)
    assert ways(other, 3) == ["version 3", "skip 0 to 3"]


def test_a_joiner_with_an_empty_disk_takes_the_cheapest_way(local: Blobs, tmp_path: Path) -> None:
    trainer = run(local, 11, skip_every=(3, 9), anchor_when=0.0)
    subscriber = Subscriber(Mirror(local, tmp_path / "mirror"), "run")
    prepared = subscriber.prepare()
    assert prepared is not None
    assert prepared.hops == 3, "0, over the skip to 9, 10"
    assert same(prepared.tensors, trainer.states[10])


def test_a_lost_version_is_gone_round_over_a_skip(local: Blobs) -> None:
    trainer = run(local, 7, skip_every=(3,), anchor_when=0.0)
    subscriber = Subscriber(local, "run")
    first = subscriber.prepare(3)
    assert first is not None
    subscriber.commit(first)
    lose(local, 5)
    prepared = subscriber.prepare()
    assert prepared is not None
    assert same(prepared.tensors, trainer.states[6])
    assert dict(subscriber.events) in ({}, {EventKind.REROUTED: 1}), "no full version need be asked for"


def test_a_held_version_whose_successor_is_lost_begins_anew_at_an_anchor(local: Blobs) -> None:
    trainer = run(local, 7, skip_every=(3,), anchor_when=0.01)
    subscriber = Subscriber(local, "run")
    first = subscriber.prepare(5)
    assert first is not None
    subscriber.commit(first)
    lose(local, 6)
    local.sweep(0.0)
    prepared = subscriber.prepare()
    assert prepared is not None
    assert same(prepared.tensors, trainer.states[6])
    assert list(subscriber.events) == [EventKind.REROUTED]


def test_a_shortcut_that_lies_is_not_taken(local: Blobs) -> None:
    """It says that it leads to version 6, and is the skip to version 3."""
    trainer = run(local, 7, skip_every=(3,), anchor_when=0.0)
    log = WeightsLog(local)
    log.look_for_shortcuts()
    [skip] = log.shortcuts_to(3)
    lie = structs.replace(skip, number=6, lineage=log.get(6).lineage, payload_bytes=1, parts=())
    key = "weights/skips/0000000006-0000000000"
    local.put(key, seal_record(key, lie))
    assert "skip 0 to 6" not in ways(local, 6), "it does not even add up"
    lie = structs.replace(skip, number=6, lineage=log.get(6).lineage)
    local.put(key, seal_record(key, lie))
    for number in (1, 2, 4, 5):
        local.delete(f"weights/skips/{number:010d}-0000000003")
    subscriber = Subscriber(local, "run")
    prepared = subscriber.prepare()
    assert prepared is not None
    assert same(prepared.tensors, trainer.states[6])
    foreign = structs.replace(skip, number=6, lineage="another history")
    local.put(key, seal_record(key, foreign))
    assert "skip 0 to 6" not in ways(local, 6)


def test_a_restarted_publisher_makes_skips_from_the_log(local: Blobs) -> None:
    state = first_state()
    for number in range(5):
        state = moved(state, number) if number else state
        publisher = Publisher(local, "run", PublishConfig(skip_every=(4,), anchor_when=0.0, threads=1))
        publisher.publish(state, DTYPES, step=number, created_at=0.0)
        publisher.close()
        assert publisher.shortcuts.problems == []
    assert ways(local, 4) == ["version 4", "skip 0 to 4"]
    assert all(report.ok for report in verify(local))


def test_a_skip_that_cannot_be_made_stops_nobody(local: Blobs) -> None:
    state = first_state()
    for number in range(3):
        state = moved(state, number) if number else state
        publisher = Publisher(local, "run", PublishConfig(skip_every=(2,), threads=1, anchor_when=0.0))
        publisher.publish(state, DTYPES, step=number, created_at=0.0)
        if number == 1:
            lose(local, 0)
    publisher.close()
    assert "skip 0 to 2 was not made" in publisher.shortcuts.problems[0]
    assert WeightsLog(local).get(2).number == 2


# ---- one rank of an engine


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_follows_with_its_own_tiles(local: Blobs, rank: int) -> None:
    trainer = run(local, 2, skip_every=(), object_bytes=600)
    grid = WeightsLog(local).grid(trainer.publisher.latest)  # type: ignore[arg-type]
    mine = owned(grid, Shard(tp=4, tp_rank=rank, ep=2, ep_rank=rank // 2))
    assert 0 < len(mine) < len(grid.tiles)
    subscriber = Subscriber(local, "run", tiles=mine)
    for number in range(2, 5):
        prepared = subscriber.prepare()
        assert prepared is not None
        assert prepared.token == (number - 1, WeightsLog(local).get(number - 1).model_digest)
        subscriber.commit(prepared)
        for index in mine:
            tile = grid.tiles[index]
            assert gather(tile, prepared.tensors).tobytes() == gather(tile, trainer.states[number - 1]).tobytes()
        trainer.publish()
    assert subscriber.scrub(100) == 0
    assert prepared.fetched_bytes < prepared.version.payload_bytes


# ---- signatures


def test_only_signed_versions_are_read(local: Blobs) -> None:
    signer = Signer(new_key())
    publisher = Publisher(local, "run", PublishConfig(skip_every=(2,), threads=1), signer=signer)
    state = first_state()
    for number in range(3):
        state = moved(state, number) if number else state
        publisher.publish(state, DTYPES, step=number)
        publisher.close()
    assert publisher.publish(state, DTYPES, step=2) == publisher.latest, "repeating it is no second signature"
    trusted = Subscriber(local, "run", verifier=Verifier(signer.public))
    prepared = trusted.prepare()
    assert prepared is not None
    assert prepared.version.signature is not None
    assert same(prepared.tensors, state)
    with pytest.raises(Refused, match=r"signed with key .* trusts only key"):
        Subscriber(local, "run", verifier=Verifier(Signer(new_key()).public)).prepare()
    unsigned = Publisher(open_blobs("memory://"), "run")
    unsigned.publish(state, DTYPES, step=0)
    with pytest.raises(Refused, match="version 0 is not signed"):
        Subscriber(unsigned._log.blobs, "run", verifier=Verifier(signer.public)).prepare()
    key = "weights/manifests/0000000002"
    local.put(key, seal_record(key, structs.replace(WeightsLog(local).get(2), slots=(99,))))
    with pytest.raises(Refused, match="changed after it was signed"):
        Subscriber(local, "run", verifier=Verifier(signer.public)).prepare()


# ---- the snapshot advances with the log


class Unsure:
    """A store whose answer to a manifest is lost, before or after it was written."""

    def __init__(self, blobs: Blobs, written: bool) -> None:
        self._blobs, self.written, self.lost = blobs, written, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._blobs, name)

    def claim(self, key: str, data: bytes) -> bool:
        if not self.lost:
            return self._blobs.claim(key, data)
        self.lost = False
        if self.written:
            self._blobs.claim(key, data)
        raise StoreUnavailable("no answer")


@pytest.mark.parametrize("written", [False, True])
def test_a_lost_answer_to_the_manifest_leaves_no_drift(local: Blobs, written: bool) -> None:
    """slime #2104: the sender had advanced its snapshot, so what the receiver had not got was never sent again."""
    store = Unsure(local, written)
    publisher = Publisher(store, "run", PublishConfig(threads=1))  # type: ignore[arg-type]
    states = [first_state()]
    publisher.publish(states[0], DTYPES, step=0)
    store.lost = True
    states.append(moved(states[0], 1))
    with pytest.raises(StoreUnavailable):
        publisher.publish(states[1], DTYPES, step=1)
    if written:
        assert publisher.publish(states[1], DTYPES, step=1).number == 1
        assert WeightsLog(local).newest() == 1
        states.append(moved(states[1], 2))
        publisher.publish(states[2], DTYPES, step=2)
    else:
        states[1] = moved(states[0], 7)
        publisher.publish(states[1], DTYPES, step=2)
    assert same(rebuild(WeightsLog(local), len(states) - 1).tensors, states[-1])
    held = publisher.state()
    assert held is not None
    assert same(held.tensors, states[-1])
