from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.store.s3_server import S3Server
from twinmill.publish.apply import Prepared, read_mark
from twinmill.publish.container import read_part
from twinmill.publish.errors import Refused
from twinmill.publish.manifest import WeightsLog, lineage_of
from twinmill.publish.mirror import Mirror
from twinmill.publish.subscriber import Event, EventKind, Subscriber
from twinmill.publish.tensors import tensor_digest
from twinmill.records.weights import Part, VersionKind, WeightVersion
from twinmill.store.blobs import Blobs, digest_of, open_blobs
from twinmill.store.errors import StoreUnavailable
from twinmill.store.frame import seal_record
from twinmill.store.log import indexed

from .toys import SHAPES, Trainer, same


class Cluster:
    """A subscriber with its mirror, and what an engine would serve."""

    def __init__(self, store: Blobs, folder: Path | None = None, run_id: str = "run") -> None:
        self.events: list[Event] = []
        self.mirror = Mirror(store, folder) if folder else None
        self.subscriber = Subscriber(self.mirror or store, run_id, who="c0", on_event=self.events.append, retry_s=0.0)

    def update(self, number: int | None = None, afresh: bool = False) -> Prepared | None:
        prepared = self.subscriber.prepare(number, afresh=afresh)
        if prepared is not None:
            self.subscriber.commit(prepared)
        return prepared

    @property
    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]

    def serves(self, trainer: Trainer, number: int) -> bool:
        held = self.subscriber.held
        return held is not None and held.version.number == number and same(held.tensors, trainer.states[number])


def trained(store: Blobs, count: int, full_every: int = 0) -> Trainer:
    trainer = Trainer(store, full_every)
    for _ in range(count):
        trainer.publish()
    return trainer


def damage(store: Blobs, version: WeightVersion, how: str) -> None:
    key = version.parts[0].object.key
    data = store.get(key)
    store.delete(key)
    if how != "missing":
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        store.put(key, {"truncated": data[:-1], "corrupt": flipped, "empty": b""}[how])


DAMAGES = ["missing", "truncated", "corrupt", "empty"]


def test_versions_follow_one_another(blobs: Blobs) -> None:
    cluster = Cluster(blobs)
    assert cluster.update() is None
    assert cluster.subscriber.number == -1
    trainer = Trainer(blobs)
    for number in range(4):
        trainer.publish()
        prepared = cluster.update()
        assert prepared is not None
        assert prepared.hops == 1
        assert cluster.serves(trainer, number)
        assert cluster.subscriber.lag == 0
    assert cluster.update() is None
    assert cluster.events == []


def test_a_late_subscriber_serves_only_the_newest(blobs: Blobs, tmp_path: Path) -> None:
    trainer = trained(blobs, 6)
    cluster = Cluster(blobs, tmp_path / "mirror")
    prepared = cluster.update()
    assert prepared is not None
    assert (prepared.hops, prepared.version.number) == (6, 5)
    assert cluster.serves(trainer, 5)
    for _ in range(3):
        trainer.publish()
    prepared = cluster.update()
    assert prepared is not None
    assert prepared.hops == 3
    assert "model.layers.0.mlp.experts.1.up_proj.weight" not in prepared.changed
    assert "model.norm.weight" in prepared.changed
    assert cluster.serves(trainer, 8)


def test_a_full_version_shortens_the_way(local: Blobs) -> None:
    trainer = trained(local, 3)
    cluster = Cluster(local)
    cluster.update()
    trainer.publish(full=True)
    trainer.publish()
    prepared = cluster.update()
    assert prepared is not None
    assert (prepared.hops, prepared.fetched_bytes > prepared.version.full_bytes) == (2, True)
    assert cluster.serves(trainer, 4)


def test_any_version_can_be_had(local: Blobs) -> None:
    trainer = trained(local, 5, full_every=2)
    for number in range(5):
        cluster = Cluster(local)
        cluster.update(number)
        assert cluster.serves(trainer, number)
    with pytest.raises(Refused, match="version 3 is older than 4"):
        cluster.update(3)
    with pytest.raises(Refused, match="version 9 does not exist; the newest is 4"):
        cluster.update(9)


def test_preparing_touches_nothing_that_is_served(local: Blobs) -> None:
    trainer = trained(local, 1)
    cluster = Cluster(local)
    cluster.update()
    served = cluster.subscriber.held
    trainer.publish()
    prepared = cluster.subscriber.prepare()
    assert prepared is not None
    assert cluster.subscriber.held is served
    assert cluster.serves(trainer, 0)
    for array in prepared.tensors.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    again = cluster.subscriber.prepare()
    assert again is not None
    assert same(again.tensors, prepared.tensors), "preparing can be repeated until it is committed"


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_in_the_mirror_is_fetched_again(local: Blobs, tmp_path: Path, how: str) -> None:
    trainer = trained(local, 3)
    Cluster(local, tmp_path / "mirror").update()
    damage(open_blobs(str(tmp_path / "mirror")), WeightsLog(local).get(1), how)
    cluster = Cluster(local, tmp_path / "mirror")  # the engine process was restarted
    cluster.update()
    assert cluster.serves(trainer, 2)
    assert cluster.kinds == ([] if how == "missing" else [EventKind.REFETCHED])
    assert cluster.mirror is not None
    assert cluster.mirror.link.bytes < 3000, "only the damaged object crossed the link again"


@pytest.mark.parametrize("how", DAMAGES)
def test_a_lost_delta_is_never_served_and_a_full_one_is_asked_for(blobs: Blobs, tmp_path: Path, how: str) -> None:
    trainer = trained(blobs, 2)
    cluster = Cluster(blobs, tmp_path / "mirror")
    cluster.update()
    bad = trainer.publish()
    damage(blobs, bad, how)
    assert cluster.update() is None
    assert cluster.serves(trainer, 1)
    assert cluster.kinds == [EventKind.UNREACHABLE]
    assert cluster.events[0].version == 2
    assert bad.parts[0].object.key in cluster.events[0].why

    mended = trainer.publish()
    assert mended.kind is VersionKind.FULL, "the publisher was asked for it"
    cluster.update()
    assert cluster.serves(trainer, 3)
    assert trainer.publish().kind is VersionKind.DELTA, "and goes on with deltas"
    cluster.update()
    assert cluster.serves(trainer, 4)


def test_the_newest_version_before_the_damage_is_used(local: Blobs) -> None:
    trainer = trained(local, 1)
    cluster = Cluster(local)
    cluster.update()
    made = [trainer.publish() for _ in range(4)]
    damage(local, made[2], "missing")
    prepared = cluster.update()
    assert prepared is not None
    assert prepared.hops == 2
    assert cluster.serves(trainer, 2)
    assert cluster.kinds == [EventKind.UNREACHABLE]


def test_an_object_that_is_put_back_is_found(local: Blobs, tmp_path: Path) -> None:
    trainer = trained(local, 1)
    cluster = Cluster(local, tmp_path / "mirror")
    cluster.update()
    bad = trainer.publish()
    whole = local.get(bad.parts[0].object.key)
    damage(local, bad, "corrupt")
    assert cluster.update() is None
    local.put(bad.parts[0].object.key, whole)
    cluster.update()
    assert cluster.serves(trainer, 1)


def test_an_unreachable_version_is_not_tried_all_the_time(local: Blobs) -> None:
    trainer = trained(local, 1)
    events: list[Event] = []
    subscriber = Subscriber(local, "run", on_event=events.append, retry_s=3600.0)
    prepared = subscriber.prepare()
    assert prepared is not None
    subscriber.commit(prepared)
    damage(local, trainer.publish(), "missing")
    for _ in range(3):
        assert subscriber.prepare() is None
    assert len(events) == 1
    trainer.publish()
    prepared = subscriber.prepare()
    assert prepared is not None
    assert prepared.version.number == 2, "a newer version is tried at once"


def flip(cluster: Cluster, name: str, element: int) -> None:
    """A bit of the held copy flips in memory."""
    assert cluster.subscriber.held is not None
    array = cluster.subscriber.held.tensors[name]
    array.flags.writeable = True
    array.reshape(-1)[element] ^= 1 << 3
    array.flags.writeable = False


def test_a_base_that_does_not_decode_is_repaired_tile_by_tile(local: Blobs) -> None:
    """Other exponents put elements into other classes, so that nothing behind them in the tile makes sense."""
    trainer = trained(local, 3)
    cluster = Cluster(local)
    cluster.update()
    trainer.publish()
    name = "model.embed_tokens.weight"
    assert cluster.subscriber.held is not None
    held = dict(cluster.subscriber.held.tensors)
    held[name] = held[name].copy()
    held[name][:8] = 0  # one tile
    cluster.subscriber.held = cluster.subscriber.held._replace(tensors=held)
    prepared = cluster.update()
    assert prepared is not None
    assert cluster.serves(trainer, 3)
    assert cluster.kinds == [EventKind.REPAIRED]
    assert name in cluster.events[0].why
    assert prepared.hops == 1, "all other tiles took the one hop"
    assert prepared.fetched_bytes < 2 * prepared.version.full_bytes, "of the way from nothing, one tile was read"


def test_a_flipped_bit_that_nothing_touches_is_found_by_the_scrub(local: Blobs) -> None:
    """At the latest when every tile has had its turn: within N versions, if each brings a Nth of the tiles."""
    trainer = trained(local, 3)
    cluster = Cluster(local)
    cluster.update()
    trainer.publish()
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    flip(cluster, name, 100)
    tiles = len(WeightsLog(local).grid(trainer.publisher.latest).tiles)  # type: ignore[arg-type]
    found = [cluster.subscriber.scrub(1)]
    cluster.update()
    while len(found) < tiles:
        found.append(cluster.subscriber.scrub(1))
    assert sum(found) == 1
    assert cluster.kinds == [EventKind.REPAIRED]
    assert name in cluster.events[0].why
    assert cluster.serves(trainer, 3)
    assert [cluster.subscriber.scrub(1) for _ in range(tiles)] == [0] * tiles


def test_a_scrub_that_can_repair_nothing_asks_for_a_full_version(local: Blobs) -> None:
    trainer = trained(local, 2)
    cluster = Cluster(local)
    cluster.update()
    flip(cluster, "model.norm.weight", 0)
    damage(local, WeightsLog(local).get(0), "missing")
    assert cluster.subscriber.scrub(1000) == 1
    assert cluster.kinds == [EventKind.UNREACHABLE]
    assert trainer.publish().kind is VersionKind.FULL
    cluster.update()
    assert cluster.serves(trainer, 2)


def test_a_commit_in_place_can_be_repeated_and_taken_back(local: Blobs, tmp_path: Path) -> None:
    """Where no engine asks for whole tensors, the patches are scattered into the held arrays."""
    trainer = trained(local, 1)
    subscriber = Subscriber(local, "run", mark=tmp_path / "mark")
    first = subscriber.prepare()
    assert first is not None
    subscriber.commit(first)
    assert subscriber.held is not None
    arrays = {name: id(array) for name, array in subscriber.held.tensors.items()}
    trainer.publish()
    trainer.publish()
    prepared = subscriber.prepare()
    assert prepared is not None
    assert prepared.token == (2, trainer.publisher.latest.model_digest)  # type: ignore[union-attr]
    assert prepared.patches
    assert same(subscriber.held.tensors, trainer.states[0])
    for _ in range(2):
        subscriber.commit(prepared)
        assert same(subscriber.held.tensors, trainer.states[2])
        assert {name: id(array) for name, array in subscriber.held.tensors.items()} == arrays
    mark = read_mark(tmp_path / "mark")
    assert mark is not None
    assert (mark.run_id, mark.version, mark.model_digest) == ("run", *prepared.token)
    subscriber.take_back()
    assert (subscriber.number, same(subscriber.held.tensors, trainer.states[0])) == (0, True)
    with pytest.raises(Refused, match="no commit to take back"):
        subscriber.take_back()
    again = subscriber.prepare()
    assert again is not None
    subscriber.commit(again)
    assert same(subscriber.held.tensors, trainer.states[2])


def test_what_was_prepared_on_another_version_is_refused(local: Blobs) -> None:
    """Its patch lacks what changed there and back again."""
    trainer = trained(local, 1)
    cluster = Cluster(local)
    cluster.update()
    trainer.publish()
    trainer.publish()
    late = cluster.subscriber.prepare(2)
    cluster.update(1)
    assert late is not None
    with pytest.raises(Refused, match="was prepared on version 0, but 1 is held"):
        cluster.subscriber.commit(late)
    assert cluster.serves(trainer, 1)


def test_an_engine_whose_memory_differs_gets_the_version_afresh(local: Blobs) -> None:
    trainer = trained(local, 3)
    cluster = Cluster(local)
    cluster.update()
    prepared = cluster.update(afresh=True)
    assert prepared is not None
    assert prepared.hops == 3
    assert prepared.changed == frozenset(SHAPES)
    assert cluster.serves(trainer, 2)
    assert cluster.kinds == [EventKind.REBUILT]


def _forge(store: Blobs, number: int, **changes: object) -> None:
    """Put a manifest that is sealed well and lies."""
    key = indexed("weights/manifests", number)
    version = WeightsLog(store).get(number)
    store.put(key, seal_record(key, structs.replace(version, **changes)))


def _wrong_base(store: Blobs) -> None:
    """The delta of version 2 is made on version 0."""
    _forge(store, 2, parent=0)


def _wrong_lineage(store: Blobs) -> None:
    _forge(store, 2, lineage="ab" * 32)


def _another_history(store: Blobs) -> None:
    """A manifest that is right in itself, of a log whose version 1 was another."""
    version = WeightsLog(store).get(2)
    _forge(store, 2, lineage=lineage_of("run", 2, "cd" * 32, version.model_digest))


def _reindexed(store: Blobs, place: int, byte: int) -> Part:
    """The object of version 2 with another byte in its first tile's entry, well sealed."""
    part = WeightsLog(store).get(2).parts[0]
    data = bytearray(store.get(part.object.key))
    entries = 60 * part.tiles
    data[part.head_bytes - entries + place] = byte
    ref = store.put_ref("weights/objects", bytes(data))
    return structs.replace(part, object=ref, head_digest=digest_of(bytes(data[: part.head_bytes])))


def _wrong_digest(store: Blobs) -> None:
    """A tile is not what the index promises, and everything above it agrees with the index."""
    log = WeightsLog(store)
    part = _reindexed(store, 24, 0xEE)
    opened = read_part(store, part)
    digests = [opened.digests(tile)[1] for tile in range(part.tiles)]
    model = log.grid(log.get(2)).model_digest(digests)
    _forge(store, 2, parts=(part,), model_digest=model, lineage=lineage_of("run", 2, log.get(1).lineage, model))


def _index_that_lies_to_the_manifest(store: Blobs) -> None:
    _forge(store, 2, parts=(_reindexed(store, 24, 0xEE),))


def _swapped_object(store: Blobs) -> None:
    _forge(store, 2, parts=WeightsLog(store).get(1).parts, payload_bytes=WeightsLog(store).get(1).payload_bytes)


def _payload_outside(store: Blobs) -> None:
    _forge(store, 2, parts=(_reindexed(store, 5, 0xEE),))


def _lost_part(store: Blobs) -> None:
    part = WeightsLog(store).get(2).parts[0]
    _forge(store, 2, parts=(structs.replace(part, first_tile=1),))


def _torn_manifest(store: Blobs) -> None:
    key = indexed("weights/manifests", 2)
    store.put(key, store.get(key)[:-1])


def _manifest_of_another_place(store: Blobs) -> None:
    store.put(indexed("weights/manifests", 2), store.get(indexed("weights/manifests", 1)))


LIES: dict[str, Callable[[Blobs], None]] = {
    "version 2 was made on other bits than those of version 0": _wrong_base,
    "lineage does not continue": _wrong_lineage,
    "lineage does not continue the version before": _another_history,
    "its bits after decoding are not those of version 2": _wrong_digest,
    "tile 0 .*(after decoding|do not make its model digest)": _index_that_lies_to_the_manifest,
    "version 2 was made on other bits than those of version 1": _swapped_object,
    "an index of 13 tiles, 13 are wanted, in order": _payload_outside,
    "a part of .* from tile 1, where tile 0 is next": _lost_part,
    "weights/manifests/0000000002.*damaged": _torn_manifest,
    "written for another key": _manifest_of_another_place,
}


@pytest.mark.parametrize("why", LIES)
def test_a_version_that_lies_is_never_served(local: Blobs, why: str) -> None:
    trainer = trained(local, 3)
    LIES[why](local)
    early, late = Cluster(local), Cluster(local)
    early.update(1)
    assert early.update() is None
    late.update()
    for cluster in (early, late):
        assert cluster.serves(trainer, 1), "the newest version before the damage"
        assert cluster.kinds == [EventKind.UNREACHABLE]
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(cluster.events[0].why)


def test_another_runs_weights_are_refused_loudly(local: Blobs) -> None:
    trained(local, 2)
    cluster = Cluster(local, run_id="mine")
    with pytest.raises(Refused, match="of run 'run', this cluster serves 'mine'"):
        cluster.update()
    assert cluster.subscriber.held is None


def test_two_runs_in_one_log_are_refused(local: Blobs) -> None:
    trainer = trained(local, 3)
    cluster = Cluster(local)
    cluster.update(1)
    version = WeightsLog(local).get(2)
    lineage = lineage_of("other", 2, WeightsLog(local).get(1).lineage, version.model_digest)
    _forge(local, 2, run_id="other", lineage=lineage)
    with pytest.raises(Refused, match="of run 'other'"):
        cluster.update()
    assert cluster.serves(trainer, 1)


def test_an_old_prepared_version_cannot_be_committed_over_a_newer_one(local: Blobs) -> None:
    trainer = trained(local, 2)
    cluster = Cluster(local)
    old = cluster.subscriber.prepare()
    assert old is not None
    trainer.publish()
    cluster.update()
    with pytest.raises(Refused, match="never go back"):
        cluster.subscriber.commit(old)
    assert cluster.serves(trainer, 2)


def test_a_store_that_hangs_leaves_the_served_version_alone(s3: S3Server, tmp_path: Path) -> None:
    store = s3.blobs(deadline_s=1.0)
    trainer = trained(store, 1)
    cluster = Cluster(store, tmp_path / "mirror")
    cluster.update()
    trainer.publish()
    with s3.stopped(), pytest.raises(StoreUnavailable, match="deadline of 1 s"):
        cluster.update()
    assert cluster.serves(trainer, 0)
    assert cluster.events == []
    cluster.update()
    assert cluster.serves(trainer, 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_injected_fault_is_ever_served(data: st.DataObject) -> None:
    """Any few bytes of any object of any version are changed, cut, or swapped for another's."""
    store = open_blobs("memory://")
    trainer = trained(store, 4)
    cluster = Cluster(store)
    cluster.update(data.draw(st.integers(0, 2)))
    keys = store.list("weights/objects") + store.list("weights/manifests")
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(keys))
        content = bytearray(store.get(key))
        kind = data.draw(st.sampled_from(["flip", "cut", "swap", "repeat"]))
        if kind == "flip" and content:
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            content = content[: data.draw(st.integers(0, len(content)))]
        elif kind == "swap":
            content = bytearray(store.get(data.draw(st.sampled_from(keys))))
        else:
            content += content[-8:]
        store.put(key, bytes(content))
    before = cluster.subscriber.number
    cluster.update()
    after = cluster.subscriber.number
    assert after >= before
    assert cluster.serves(trainer, after)


def test_digests_see_what_xor_and_sums_do_not() -> None:
    bits = np.arange(64, dtype=np.uint16)
    swapped = bits.copy()
    swapped[[3, 40]] = swapped[[40, 3]]
    paired = bits.copy()
    paired[5] ^= 8
    paired[6] ^= 8
    zeros = np.array([0, 0x8000], np.uint16)
    assert len({tensor_digest(array) for array in (bits, swapped, paired)}) == 3
    assert tensor_digest(zeros[:1]) != tensor_digest(zeros[1:]), "+0 and -0"
