"""What benchmarks read out of a run, on made-up runs whose figures are known."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from _runs import Trace, play
from tests.bench.traces import attempt, slot, step, trace
from twinmill.store.metrics import MetricsWriter


def test_times_count_from_the_first_admission_to_the_last_commit():
    run = trace(10.0, steps=4)
    assert run.wall_s == 40.0
    assert run.step_s == 10.0
    assert run.sampled_tokens == 80


def test_waiting_is_a_share_of_the_time_in_which_both_mills_work():
    run = trace(10.0, steps=4, wait=1.0)
    assert run.waiting_frac == run.waiting_frac_to_the_end == pytest.approx(0.1)
    first = step(0, 10.0, wait=9.0, compute=1.0)
    last = step(3, 40.0, wait=7.0, compute=3.0)  # its slot closed at 39
    uneven = replace(run, steps=[first, *run.steps[1:3], last])
    assert uneven.waiting_frac == pytest.approx(0.1), "neither filling nor draining is a fault"
    assert uneven.waiting_frac_to_the_end == pytest.approx((1 + 1 + 7) / 30)


def test_busy_is_model_work_over_cores_and_time_while_both_mills_work():
    # steps end at 10, 20, 30, 40, the last slot closes at 39: what counts is 10..30
    run = trace(10.0, steps=4, wait=1.0, busy=0.5)
    assert run.busy_frac(cores=2) == pytest.approx((0.5 * 20 + 9 * 2) / (2 * 20))
    committing = [step(n, 10.0 * (n + 1), wait=1.0, compute=6.0, commit=3.0) for n in range(4)]
    assert replace(run, steps=committing).busy_frac(2) == pytest.approx((0.5 * 20 + 9 * 2 * 6 / 9) / (2 * 20))
    with pytest.raises(ValueError, match="too few steps"):
        trace(10.0, steps=1).busy_frac(2)


def test_staleness_is_that_of_the_oldest_trained_token():
    run = trace(steps=2)
    aged = [
        step(0, 1.0, wait=0, compute=1, staleness={"0": 5, "2": 1}),
        step(1, 2.0, wait=0, compute=1, staleness={"9": 0}),
    ]
    assert replace(run, steps=aged).staleness_max == 2


def test_drops_by_length():
    assert trace(steps=4).drop_bias_by_length == 0.0
    long, short = frozenset({(0, 1), (1, 1)}), frozenset({(0, 0)})
    assert trace(steps=4, drop=long).drop_bias_by_length == pytest.approx(0.5)
    assert trace(steps=4, drop=short).drop_bias_by_length == pytest.approx(-0.25)
    assert trace(steps=4, drop=frozenset({(0, 0), (0, 1)})).drop_bias_by_length == 0.0


def test_a_slot_that_was_never_trained_and_one_that_could_not_be_graded_are_drops():
    run = trace(steps=4)
    untrained = replace(run, slots=[line for line in run.slots if (line["event"], line["slot"]) != ("train", 2)])
    assert untrained.drop_bias_by_length == 0.0  # a short and a long one
    ungraded = replace(run, attempts=[*run.attempts, attempt(3, 2, 99.0, reward=None)])
    assert ungraded.drop_bias_by_length > 0


def test_an_attempt_that_was_run_again_is_judged_by_its_last_try():
    run = trace(steps=4)
    again = [attempt(0, 1, 9.0, finished=False), *run.attempts]
    assert replace(run, attempts=again).drop_bias_by_length == 0.0


def test_what_the_trainer_left_out_cannot_be_called_unbiased():
    run = trace(steps=2)
    left_out = step(1, 20.0, wait=0, compute=1, dropped={"samples_no_experts": 1})
    found = replace(run, steps=[run.steps[0], left_out])
    assert found.dropped == {"samples_no_experts": 1}
    assert math.isnan(found.drop_bias_by_length)


def written(folder: Path, steps: list[int]) -> Path:
    """The metrics of a run whose trainer reported these steps."""
    with MetricsWriter(folder / "metrics" / "rollout-a.jsonl") as rollout:
        rollout.write("cpu", lane="rollout/a", cpu_s=1.0, wall_s=2.0)
        rollout.write("slot", **{k: v for k, v in slot(0, 0, "admit").items() if k != "t"})
        rollout.write("attempt", **attempt(0, 0, 1.0))
    with MetricsWriter(folder / "metrics" / "trainer.jsonl") as trainer:
        trainer.write("train", step=9, source="sft")
        for number in steps:
            trainer.write("cpu", lane="trainer", cpu_s=1.0, wall_s=2.0)
            trainer.write("train", **{k: v for k, v in step(number, 0, wait=0, compute=1).items() if k != "t"})
    with MetricsWriter(folder / "metrics" / "engine-a.jsonl") as engine:
        engine.write("engine", engine="engine/a", busy_s=1.0)
    return folder


def test_a_trace_is_read_from_what_the_processes_wrote(tmp_path):
    run = Trace.read(written(tmp_path, [0, 1]))
    assert [line["step"] for line in run.steps] == [0, 1]
    assert len(run.trainer_cpu) == 2 and len(run.slots) == len(run.attempts) == 1 and list(run.engines) == ["engine/a"]
    assert run.wall_s > 0


@pytest.mark.parametrize("steps", [[], [0, 2], [0, 1, 1]])
def test_the_times_of_an_interrupted_run_say_nothing(tmp_path, steps):
    with pytest.raises(ValueError, match="no uninterrupted RL phase"):
        Trace.read(written(tmp_path, steps))


def test_a_run_that_fails_says_where_its_output_is(tmp_path):
    with pytest.raises(RuntimeError, match="output is in") as error:
        play(tmp_path / "no_recipe.py", tmp_path / "root", [], 60.0)
    assert "no recipe" in Path(str(error.value).rpartition(" ")[2]).read_text()
