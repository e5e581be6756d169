import random
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from twinmill.publish import LinkConfig
from twinmill.publish.chain import rebuild
from twinmill.publish.config import MirrorConfig
from twinmill.publish.errors import Broken
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.materialize import verify
from twinmill.publish.mirror import Link, Mirror
from twinmill.records.base import Ref
from twinmill.records.runs import Beat
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import Corrupt, NotFound
from twinmill.store.flight import OnProgress, Progress
from twinmill.store.ledger import EpisodesLog
from twinmill.store.sinks import PIECE_BYTES, Folder
from twinmill.store.spans import Want

from .toys import Trainer, same


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_link_takes_the_time_it_would_take() -> None:
    clock = Clock()
    link = Link(LinkConfig(bytes_per_s=1000.0, latency_s=0.5), clock, clock.sleep)
    link.cross(2000)
    assert clock.now == pytest.approx(102.5)
    link.cross(0)
    assert clock.now == pytest.approx(103.0)
    assert link.bytes == 2000


def test_transfers_at_once_share_a_link() -> None:
    """Two that begin together end one behind the other, as on a wire."""
    clock = Clock()
    waits: list[float] = []
    link = Link(LinkConfig(bytes_per_s=1000.0), clock, waits.append)
    link.cross(1000)
    link.cross(1000)
    assert waits == pytest.approx([1.0, 2.0])


def test_impossible_links_are_refused() -> None:
    for config in (LinkConfig(bytes_per_s=-1.0), LinkConfig(latency_s=-1.0)):
        with pytest.raises(ValueError, match="want numbers >= 0"):
            Link(config)


def test_an_unshaped_link_never_waits() -> None:
    link = Link(LinkConfig(), sleep=lambda _: pytest.fail("waited"))
    link.cross(1 << 40)


def test_a_real_transfer_is_shaped(local: Blobs, tmp_path: Path) -> None:
    version = Trainer(local).publish()
    mirror = Mirror(local, tmp_path / "m", LinkConfig(bytes_per_s=version.payload_bytes / 0.2, latency_s=0.05))
    started = time.monotonic()
    mirror.get_ref(version.parts[0].object)
    assert 0.25 <= time.monotonic() - started < 1.0
    started = time.monotonic()
    mirror.get_ref(version.parts[0].object)
    assert time.monotonic() - started < 0.05, "the second time it comes from the local copy"


def test_what_never_changes_is_fetched_once(blobs: Blobs, tmp_path: Path) -> None:
    trainer = Trainer(blobs)
    versions = [trainer.publish() for _ in range(2)]
    mirror = Mirror(blobs, tmp_path / "m")
    log = WeightsLog(mirror)
    assert [log.get(0), log.get(1)] == versions
    data = [mirror.get_ref(version.parts[0].object) for version in versions]
    crossed = mirror.link.bytes
    again = Mirror(blobs, tmp_path / "m")
    assert [WeightsLog(again).get(number) for number in (0, 1)] == versions
    assert [again.get_ref(version.parts[0].object) for version in versions] == data
    assert again.link.bytes == 0
    assert crossed > sum(map(len, data))


def test_everything_else_passes_through(local: Blobs, tmp_path: Path) -> None:
    log = EpisodesLog(Mirror(local, tmp_path / "m"))
    log.put_beat(Beat(cluster="c0", at=1.0, serving=0))
    EpisodesLog(local).put_beat(Beat(cluster="c0", at=2.0, serving=0))
    assert log.beats()["c0"].at == 2.0
    assert list((tmp_path / "m").iterdir()) == []


def test_a_mirror_is_a_store(local: Blobs, tmp_path: Path) -> None:
    mirror = Mirror(local, tmp_path / "m")
    assert mirror.put_new("a/b", b"1")
    assert not mirror.put_new("a/b", b"2")
    assert mirror.claim("a/b", b"1")
    assert not mirror.claim("a/b", b"2")
    mirror.put("a/c", b"345")
    assert mirror.get_range("a/c", 1, 2) == b"45"
    assert mirror.list("a") == ["a/b", "a/c"]
    assert mirror.exists("a/b")
    mirror.delete("a/b")
    assert not mirror.exists("a/b")
    ref = mirror.put_ref("blobs", b"data")
    assert mirror.get_ref(ref) == local.get_ref(ref) == b"data"
    with pytest.raises(NotFound):
        mirror.get("weights/objects/none")


def test_what_arrives_damaged_is_not_kept(local: Blobs, tmp_path: Path) -> None:
    version = Trainer(local).publish()
    mirror = Mirror(local, tmp_path / "m")
    whole = local.get(version.parts[0].object.key)
    local.put(version.parts[0].object.key, whole[:-1])
    with pytest.raises(Corrupt, match=version.parts[0].object.key):
        mirror.get_ref(version.parts[0].object)
    local.put(version.parts[0].object.key, whole)
    assert mirror.get_ref(version.parts[0].object) == whole
    assert mirror.damaged == 0, "the copy here was never at fault"


def test_a_torn_fill_is_not_a_copy(local: Blobs, tmp_path: Path) -> None:
    version = Trainer(local).publish()
    torn = tmp_path / "m" / f"{version.parts[0].object.key}#1"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"half")
    mirror = Mirror(local, tmp_path / "m")
    assert not torn.exists()
    assert mirror.get_ref(version.parts[0].object) == local.get_ref(version.parts[0].object)


def test_a_mirror_can_stand_in_for_a_lost_store(local: Blobs, tmp_path: Path) -> None:
    trainer = Trainer(local)
    trainer.publish()
    trainer.publish()
    mirror = Mirror(local, tmp_path / "m")
    assert all(report.ok for report in verify(mirror))
    assert [report.problem for report in verify(open_blobs(str(tmp_path / "m")))] == ["", ""]


def objects(blobs: Blobs, count: int, size: int = 10_000) -> list[Ref]:
    return [blobs.put_ref("weights/objects", random.Random(i).randbytes(size)) for i in range(count)]


def held(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_many_objects_cross_at_once(local: Blobs, tmp_path: Path) -> None:
    refs = objects(local, 20)
    mirror = Mirror(local, tmp_path / "m", LinkConfig(latency_s=0.1))
    started, seen = time.monotonic(), list[Progress]()
    mirror.fetch(refs, seen.append)
    assert time.monotonic() - started < 20 * 0.1, "not one behind the other"
    assert seen[-1].done_bytes == seen[-1].total_bytes == 200_000
    assert held(tmp_path / "m") == {ref.key for ref in refs}
    crossed = mirror.link.bytes
    mirror.fetch(refs)
    assert mirror.link.bytes == crossed == 200_000


def test_objects_are_read_here_by_range(local: Blobs, tmp_path: Path) -> None:
    (ref,) = objects(local, 1)
    mirror = Mirror(local, tmp_path / "m", config=MirrorConfig(whole=True))
    whole = local.get(ref.key)
    assert mirror.get_range(ref.key, 17, 300) == whole[17:317]
    local.delete(ref.key)
    assert mirror.get_range(ref.key, 5000, 5000) == whole[5000:]
    assert mirror.size(ref.key) == len(whole)
    assert mirror.link.bytes == len(whole)
    with pytest.raises(Corrupt, match="ends at 10000"):
        mirror.get_range(ref.key, 9000, 2000)
    with pytest.raises(NotFound):
        mirror.get_range("weights/objects/none", 0, 1)


def test_a_copy_that_changed_is_read_through_again(local: Blobs, tmp_path: Path) -> None:
    (ref,) = objects(local, 1)
    mirror = Mirror(local, tmp_path / "m", config=MirrorConfig(whole=True))
    mirror.fetch([ref])
    path = tmp_path / "m" / ref.key
    path.write_bytes(bytes(len(path.read_bytes())))
    assert mirror.get_range(ref.key, 0, 100) == local.get_range(ref.key, 0, 100)
    assert mirror.damaged == 1


def test_a_range_alone_crosses_where_nobody_wants_the_whole(local: Blobs, tmp_path: Path) -> None:
    (ref,) = objects(local, 1)
    mirror = Mirror(local, tmp_path / "m")
    assert mirror.get_range(ref.key, 17, 300) == local.get_range(ref.key, 17, 300)
    assert mirror.link.bytes == 300
    assert held(tmp_path / "m") == set()
    mirror.fetch([ref])
    crossed = mirror.link.bytes
    assert mirror.get_range(ref.key, 0, 400) == local.get_range(ref.key, 0, 400)
    assert mirror.link.bytes == crossed, "what is here is read here"


@pytest.mark.parametrize("whole", [False, True])
def test_a_sound_range_of_a_damaged_object_is_had(local: Blobs, tmp_path: Path, whole: bool) -> None:
    (ref,) = objects(local, 1)
    data = local.get(ref.key)
    local.put(ref.key, data[:-1] + bytes([data[-1] ^ 1]))
    mirror = Mirror(local, tmp_path / "m", config=MirrorConfig(whole=whole))
    assert mirror.get_range(ref.key, 17, 300) == data[17:317]
    assert held(tmp_path / "m") == set()


def test_a_mirror_goes_on_with_what_a_killed_one_had(local: Blobs, tmp_path: Path) -> None:
    (ref,) = objects(local, 1, 3 * PIECE_BYTES)
    want, part = Want.of(ref), local.get_range(ref.key, 0, 2 * PIECE_BYTES)
    killed = Folder(tmp_path / "m")
    killed.missing(want)
    killed.write(want, 0, memoryview(part))
    killed.close()
    mirror = Mirror(local, tmp_path / "m")
    mirror.fetch([ref])
    assert mirror.link.bytes == PIECE_BYTES
    assert mirror.get_ref(ref) == local.get_ref(ref)


def test_several_processes_share_a_folder(local: Blobs, tmp_path: Path) -> None:
    """The second neither fetches again nor clears what the first is writing."""
    refs = objects(local, 3)
    first = Mirror(local, tmp_path / "m")
    first.fetch(refs)
    half = tmp_path / "m" / "weights" / "objects" / "half#1"
    half.write_bytes(b"being written")
    second = Mirror(local, tmp_path / "m")
    assert half.exists()
    second.fetch(refs)
    assert second.link.bytes == 0
    del first, second
    Mirror(local, tmp_path / "m")
    assert not half.exists()


def test_above_the_cap_the_longest_unused_go_and_never_what_is_leased(local: Blobs, tmp_path: Path) -> None:
    refs = objects(local, 8)
    leased = {refs[0].key}
    mirror = Mirror(local, tmp_path / "m", config=MirrorConfig(cap_bytes=45_000), keep=lambda: leased)
    for ref in refs[:4]:
        mirror.fetch([ref])
    mirror.get_range(refs[1].key, 0, 10)
    for ref in refs[4:6]:
        mirror.fetch([ref])
    assert held(tmp_path / "m") == {refs[i].key for i in (0, 1, 4, 5)}
    assert mirror.evicted == 2
    leased |= {ref.key for ref in refs}
    mirror.fetch(refs)
    assert len(held(tmp_path / "m")) == 8, "what is leased stays even above the cap"
    leased.clear()
    mirror.fetch(refs[6:7])
    assert len(held(tmp_path / "m")) == 4
    assert refs[6].key in held(tmp_path / "m")
    assert mirror.get_ref(refs[2]) == local.get_ref(refs[2]), "what has gone is fetched when it is wanted"


def test_what_is_wanted_at_once_may_exceed_the_cap(local: Blobs, tmp_path: Path) -> None:
    refs = objects(local, 5)
    mirror = Mirror(local, tmp_path / "m", config=MirrorConfig(cap_bytes=1))
    mirror.fetch(refs)
    assert held(tmp_path / "m") == {ref.key for ref in refs}
    mirror.fetch(refs[:1])
    assert held(tmp_path / "m") == {refs[0].key}
    with pytest.raises(ValueError, match="cap_bytes is -1"):
        Mirror(local, tmp_path / "n", config=MirrorConfig(cap_bytes=-1))


def test_what_the_store_lost_comes_from_a_neighbour(local: Blobs, tmp_path: Path) -> None:
    refs = objects(local, 4)
    neighbour = Mirror(local, tmp_path / "n")
    neighbour.fetch(refs)
    whole = [local.get(ref.key) for ref in refs]
    local.delete(refs[0].key)
    local.put(refs[1].key, bytes(refs[1].bytes))
    mirror = Mirror(local, tmp_path / "m", others=[neighbour])
    mirror.fetch(refs)
    assert [mirror.get_ref(ref) for ref in refs] == whole


def test_a_joiner_fetches_the_objects_of_many_versions_side_by_side(local: Blobs, tmp_path: Path) -> None:
    trainer = Trainer(local, skip_every=(), anchor_when=0.0)
    for _ in range(6):
        trainer.publish()
    mirror, sizes = Mirror(local, tmp_path / "m"), list[int]()
    fetch = mirror.fetch

    def counted(refs: Iterable[Ref], progress: OnProgress | None = None) -> None:
        refs = list(refs)
        sizes.append(len(refs))
        fetch(refs, progress)

    mirror.fetch = counted  # type: ignore[method-assign]
    assert same(rebuild(WeightsLog(mirror), 5).tensors, trainer.states[5])
    assert max(sizes) == 6


def test_a_joiner_says_which_of_many_objects_is_gone(local: Blobs, tmp_path: Path) -> None:
    trainer = Trainer(local, skip_every=(), anchor_when=0.0)
    versions = [trainer.publish() for _ in range(6)]
    local.delete(versions[3].parts[0].object.key)
    with pytest.raises(Broken, match="version 3"):
        rebuild(WeightsLog(Mirror(local, tmp_path / "m")), 5)
    assert same(rebuild(WeightsLog(Mirror(local, tmp_path / "m")), 2).tensors, trainer.states[2])
