"""What the trainer's collector leaves of a run, and when its rounds are."""

import pytest

from tests.publish.toys import DTYPES, first_state, moved
from twinmill.publish import CollectConfig, PublishConfig
from twinmill.publish.leases import Lease, Paths
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.materialize import verify
from twinmill.store.audit import audit
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.train.versions import RunVersions

PUBLISH = PublishConfig(full_every=3, threads=1, skip_every=(2,), anchor_when=0.0)


def trained(blobs: Blobs, steps: int, collect: CollectConfig | None) -> list[int]:
    """Publish so many versions; the removals behind each."""
    versions, state, removed = RunVersions(blobs, "run", b"{}", None, PUBLISH, collect), first_state(), []
    for step in range(steps):
        state = moved(state, step)
        versions.publish(state, DTYPES, step=step, slots=(), checkpoint=None)
        versions.close()
        done = versions.collect()
        removed.append(len(done.removed) if done else 0)
    return removed


def test_old_chains_go_while_training_goes_on(tmp_path) -> None:
    blobs = open_blobs(str(tmp_path))
    collect = CollectConfig(every=2, keep_chains=1, keep_versions=1, grace_s=0.0, skew_s=0.0)
    assert any(trained(blobs, 10, collect)[2::2])
    assert not any(trained(open_blobs(str(tmp_path / "odd")), 10, collect)[1::2]), "only every second version"
    log = WeightsLog(blobs)
    assert not blobs.exists(log.get(0).parts[0].object.key)
    assert [report.problem for report in verify(blobs, 9)] == [""]
    assert audit(blobs, objects=True).problems == ()


def test_what_a_reader_has_leased_stays(tmp_path) -> None:
    blobs = open_blobs(str(tmp_path))
    trained(blobs, 2, None)
    log = WeightsLog(blobs)
    Lease(log, "east").take([1])
    versions = RunVersions(
        blobs,
        "run",
        b"{}",
        None,
        PUBLISH,
        CollectConfig(every=1, keep_chains=1, keep_versions=1, grace_s=0.0, skew_s=0.0),
    )
    state = first_state()
    for step in range(2, 8):
        state = moved(state, step + 100)
        versions.publish(state, DTYPES, step=step, slots=(), checkpoint=None)
        versions.close()
        versions.collect()
    assert {ref.key for ref in Paths(log)([1])} <= set(blobs.list("weights/objects"))


@pytest.mark.parametrize("collect", [None, CollectConfig()])
def test_nothing_is_ever_removed_unless_it_is_asked_for(tmp_path, collect: CollectConfig | None) -> None:
    blobs = open_blobs(str(tmp_path))
    assert not any(trained(blobs, 8, collect))
    assert blobs.list("weights/collected") == []
