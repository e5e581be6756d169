"""`twinmill machines calibrate | plan`: costs are measured, read back, and refused with the mend where they are none."""

import pytest

from twinmill.cli import burst
from twinmill.cli.blocks import ConfigError
from twinmill.records import wire
from twinmill.records.burst import MachineCosts

SMALL = {
    "machines": 64,
    "nodes": 2,
    "cores": 2,
    "memory_gb": 8.0,
    "image_gb": 0.0,
    "work_s": 0.0,
    "hold_s": 0.0,
    "grown_mb": 1.0,
}


def test_costs_are_measured_and_a_burst_is_planned_with_them(tmp_path, capsys):
    out = tmp_path / "costs.json"
    burst.calibrate(out, machine="namespace", samples=5)
    costs = wire.from_json(out.read_bytes(), MachineCosts)
    assert (
        costs.cycles_per_s > 0
        and costs.work_s > 0
        and len(costs.make_s) == 21
        and list(costs.make_s) == sorted(costs.make_s)
    )
    assert burst.plan(**SMALL, costs=out) == 0
    assert "64 machines on 2 nodes" in capsys.readouterr().out
    assert burst.plan(**SMALL, costs=out, within_s=1e-6) == 1
    assert "more than" in capsys.readouterr().out


def test_missing_or_damaged_costs_say_how_to_measure_them(tmp_path):
    with pytest.raises(ConfigError, match="twinmill machines calibrate"):
        burst.plan(**SMALL, costs=tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match="twinmill machines calibrate"):
        burst.plan(**SMALL, costs=tmp_path / "bad.json")


def test_a_burst_that_cannot_be_is_refused_by_name(tmp_path):
    (tmp_path / "c.json").write_bytes(
        wire.to_json(
            MachineCosts(
                host="x",
                cores=2,
                make_s=(0.01, 0.01),
                run_s=(0.01, 0.01),
                end_s=(0.01, 0.01),
                cycles_per_s=100.0,
                work_s=0.01,
                work_frac=1.0,
                idle_bytes=10**6,
                samples=2,
            )
        )
    )
    with pytest.raises(ConfigError, match="--nodes is 0"):
        burst.plan(**{**SMALL, "nodes": 0}, costs=tmp_path / "c.json")
    with pytest.raises(ConfigError, match="raise --memory-gb"):
        burst.plan(**{**SMALL, "grown_mb": 9000.0}, costs=tmp_path / "c.json")
    with pytest.raises(ConfigError, match="--samples is 1"):
        burst.calibrate(tmp_path / "x.json", samples=1)
