"""Declared waiting: lognormal as declared, the same in every process, and really waited."""

import statistics
import time
from itertools import islice

import msgspec
import pytest

from tests.harness.test_loop import ROOMY, play, say
from twinmill.env.harness.waits import waits
from twinmill.records.tasks import ToolWait


def test_the_waits_of_many_attempts_are_lognormal_as_declared():
    spec = ToolWait(median_s=0.5, p99_over_p50=20.0)
    drawn = sorted(wait for seed in range(2000) for wait in islice(waits(spec, seed), 5))
    assert statistics.median(drawn) == pytest.approx(0.5, rel=0.05)
    assert drawn[int(0.99 * len(drawn))] / statistics.median(drawn) == pytest.approx(20.0, rel=0.15)


def test_a_wait_depends_on_the_attempts_seed_and_the_number_of_the_call_alone():
    spec = ToolWait(median_s=1.0, p99_over_p50=20.0)
    assert list(islice(waits(spec, 7), 3)) == list(islice(waits(spec, 7), 3))
    assert len({*islice(waits(spec, 7), 3), *islice(waits(spec, 8), 3)}) == 6
    assert next(waits(spec, 1)) == pytest.approx(6.206276, abs=1e-4), "recorded runs wait what they always waited"


def test_every_call_but_finish_waits_and_the_time_counts_as_the_tools():
    spec = ToolWait(median_s=0.05, p99_over_p50=1.0)
    started = time.monotonic()
    episode = play([say("list"), say("list"), say("finish")], msgspec.structs.replace(ROOMY, tool_wait=spec))
    assert time.monotonic() - started >= 0.1
    assert 0.1 <= episode.usage.machine_s < 1.0 and episode.error is None


def test_impossible_waits_are_refused():
    for median_s, ratio in ((0.0, 20.0), (-1.0, 20.0), (1.0, 0.5), (float("nan"), 20.0)):
        with pytest.raises(ValueError, match="median_s must be above 0"):
            ToolWait(median_s=median_s, p99_over_p50=ratio)
