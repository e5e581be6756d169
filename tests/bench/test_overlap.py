"""bench overlap: its figures from made-up runs, its splits, and that its runs are possible ones."""

import subprocess
from pathlib import Path

import pytest

from _result import holds
from overlap import COMPUTE, MUST, RECIPE, START_S, WAITS, Case, Split, main, measured, random_model, splits
from tests.bench.traces import trace
from twinmill.cli.config import load_recipe


def test_window_0_may_give_every_core_to_either_mill():
    assert splits(1) == [Split(1, 1), Split(2, 1)]
    assert splits(2) == [Split(1, 1), Split(1, 2), Split(2, 1), Split(2, 2), Split(4, 1), Split(4, 2)]
    assert len(splits(8)) == 12


@pytest.mark.parametrize("case", ["compute", "waits"])
def test_every_run_is_a_possible_one(case, tmp_path):
    sets = {"compute": COMPUTE, "waits": WAITS}[case]
    model = random_model(tmp_path / "model") if case == "compute" else None
    overrides = [item.format(median_s=0.08, model=model) for item in sets]
    for split in splits(2):
        config = load_recipe(RECIPE, [*overrides, "rl.window.window=0", *split.overrides()])
        assert config.trainer_threads == split.trainer
        assert {cluster.threads for cluster in config.clusters} == {split.engine}
    assert config.taskset == {"waits": "waiting:0.08:tinyrepo:0", "compute": "tinyrepo:2"}[case]
    assert config.machine == "namespace", "machines are real in either case"


def test_window_0_is_measured_at_the_split_that_was_fastest(tmp_path, monkeypatch, capsys):
    asked = []

    def fake(case, label, steps, window, more=(), deadline_s=None):
        if list(more) == Split(1, 2).overrides():
            assert deadline_s == START_S + 3 * 36.0
            raise subprocess.TimeoutExpired("twinmill run", deadline_s)
        asked.append((label, steps, window, tuple(more)))
        return trace(5.0 if list(more) == Split(2, 1).overrides() else 9.0)

    monkeypatch.setattr(Case, "run", fake)
    monkeypatch.setattr("overlap.cores_here", lambda: 2)
    _, _, best = Case("compute", (), tmp_path, 1.0).both(steps=7, probe_steps=3)
    assert best == Split(2, 1)
    assert "given up" in capsys.readouterr().out
    assert asked[-2:] == [("window 0", 7, 0, tuple(best.overrides())), ("window 2", 7, 2, ())]
    assert all(steps == 3 and window == 0 for _, steps, window, _ in asked[:-2])


def test_the_figures(monkeypatch):
    monkeypatch.setattr("overlap.cores_here", lambda: 2)
    slow, fast = trace(12.0), trace(10.0, wait=0.2, busy=0.9)
    found = measured((slow, fast, Split(2, 2)), (trace(20.0, wait=9.0), fast, Split(2, 1)))
    assert found["speedup_compute"] == pytest.approx(1.2) and found["speedup_waits"] == pytest.approx(2.0)
    assert found["trainer_waiting_frac"] == pytest.approx(0.02)
    assert found["busy_frac"] == pytest.approx((0.9 * 20 + 9.8 * 2) / 40)
    assert found["tool_s_per_attempt"] == 0.25
    assert all(holds(found[key], bound) for key, bound in MUST.items())


def test_a_bias_of_either_case_is_shown():
    fair, biased = trace(), trace(drop=frozenset({(0, 1)}))
    either = [measured((fair, a, Split(1, 1)), (fair, b, Split(1, 1))) for a, b in ((fair, biased), (biased, fair))]
    assert all(found["drop_bias_by_length"] > 0 for found in either)
    assert not any(holds(found["drop_bias_by_length"], MUST["drop_bias_by_length"]) for found in either)


def test_help_says_what_it_measures(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "asynchrony" in capsys.readouterr().out
    assert Path(RECIPE).exists()
