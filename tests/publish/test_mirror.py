import time
from pathlib import Path

import pytest

from twinmill.publish import LinkConfig
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.materialize import verify
from twinmill.publish.mirror import Link, Mirror
from twinmill.records.runs import Beat
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import Corrupt, NotFound
from twinmill.store.ledger import EpisodesLog

from .toys import Trainer


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
