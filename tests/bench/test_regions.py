"""bench regions: its figures from made-up runs; and, with real processes and links, a handful of versions."""

import json
from collections.abc import Sequence

import pytest
from msgspec import structs

import regions
from _region import Served, read_served
from regions import Sizes, lag_max, syncs, troubles, unknown
from tests.publish.toys import DTYPES, first_state
from twinmill.publish import PublishConfig
from twinmill.publish.publisher import Publisher
from twinmill.records.weights import WeightVersion
from twinmill.store.blobs import open_blobs
from twinmill.store.proxy.shaping import Shape

Committed = Sequence[tuple[float, WeightVersion]]


@pytest.fixture
def committed() -> Committed:
    """Versions 0 to 4 of 1000 bytes, one every 10 seconds."""
    made = Publisher(open_blobs("memory://"), "run", PublishConfig(threads=1)).publish(first_state(), DTYPES, step=0)
    return [(10.0 * n, structs.replace(made, number=n, payload_bytes=1000, model_digest=f"d{n}")) for n in range(5)]


def served(t: float, version: int, digest: str = "") -> Served:
    return Served(t=t, version=version, digest=digest or f"d{version}")


class FakeRegion:
    shape = Shape(down_bytes_per_s=500.0)

    def __init__(self, lines: list[Served]) -> None:
        self._lines = lines

    def served(self) -> list[Served]:
        return self._lines


def test_a_version_is_served_when_it_or_a_later_one_is(committed):
    region = FakeRegion([served(1, 0), served(13, 1), served(36, 3), served(44, 4)])
    found = syncs(region, committed, lag=1)
    assert [sync.seconds for sync in found] == [3, 16, 6, 4]
    assert [sync.over_link for sync in found] == [1.5, 8, 3, 2]
    assert [sync.in_time for sync in found] == [True, False, True, True]


def test_lag_is_counted_at_the_moment_of_serving(committed):
    assert lag_max([served(1, 0), served(13, 1)], committed) == 0
    assert lag_max([served(1, 0), served(35, 1)], committed) == 2


def test_digests_that_the_log_does_not_have_are_counted(committed):
    assert unknown([served(1, 0), served(2, 1)], committed) == 0
    assert unknown([served(1, 0, "other"), served(2, 1, "d2"), served(3, 9)], committed) == 3


def test_troubles_leave_time_to_come_back():
    planned = troubles(200, 4, seed=0)
    assert len(planned) == 20 and max(planned) <= 196
    assert {trouble.kind for trouble in planned.values()} == {"kill", "silent", "cut"}
    assert planned == troubles(200, 4, seed=0)


def test_the_last_line_of_a_killed_region_may_be_half_written(tmp_path):
    path = tmp_path / "served"
    assert read_served(path) == []
    path.write_bytes(b'{"record":"Served","t":1.0,"version":0,"digest":"d"}\n{"rec')
    assert [line.version for line in read_served(path)] == [0]


def test_regions_follow_through_a_kill(monkeypatch, capsys):
    quick = Shape(up_bytes_per_s=4e6, down_bytes_per_s=4e6, rtt_s=0.002)
    monkeypatch.setattr(regions, "UPLINK", quick)
    monkeypatch.setattr(regions, "measure", lambda *args, **more: {"link_use_up": 1.0, "link_use_down": 1.0})
    with pytest.raises(SystemExit):
        regions.main(["--versions", "6", "--every", "0.5"], Sizes((64, 64), 2), {"one": quick, "narrow": quick})
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["measured"].keys() >= found["must"].keys()
    assert found["measured"]["unknown_digests"] == 0 and found["measured"]["versions"] == 6
    assert found["measured"]["kills"] == 1
