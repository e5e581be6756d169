"""Slow: the benchmarks' own runs, at their smallest, with real processes. Nothing is timed."""

import pytest

import trl
from _single_turn import NEW_TOKENS
from overlap import WAITS, Case

pytestmark = pytest.mark.slow


def test_our_side_of_trl_plays_and_trains_single_turns(tmp_path):
    side = trl.run_ours(tmp_path, trl.MODEL, 8)
    assert len(side.step_s) >= 2 and 1 < side.tokens <= NEW_TOKENS and 0 < side.reward <= 1


def test_a_run_of_the_waits_case_waits_and_drops_nothing(tmp_path):
    small = ("rl.window.groups_per_step=2", "rollout.groups_in_flight=3", "rollout.machines=8")
    waits = tuple(item.format(median_s=0.05) for item in WAITS)
    trace = Case("waits", (*waits, *small), tmp_path, 200.0).run("window 1", steps=3, window=1)
    assert trace.staleness_max <= 1 and trace.drop_bias_by_length == 0
    assert len(trace.attempts) == 3 * 2 * 8
    assert (
        sum(line["machine_s"] for line in trace.attempts) > 0.05 * sum(line["turns"] > 1 for line in trace.attempts) / 2
    )
