import msgspec
import numpy as np
import pytest

from twinmill.batch.breaker import Breaker, tripped
from twinmill.batch.drops import SLOT_DROPS, Drop, count
from twinmill.batch.mismatch import fresh_and_stale, mismatch
from twinmill.batch.staleness import ages, histogram, mask_old
from twinmill.records.episodes import DropReason
from twinmill.records.samples import Mismatch

from .toys import sample


def aged():
    s = sample(5)
    return msgspec.structs.replace(s, versions=np.array([-1, 3, 3, 5, 6]))


def test_ages_and_histogram_are_per_token():
    assert ages(aged(), 6).tolist() == [3, 3, 1, 0]
    assert histogram([aged(), sample(3, version=6)], 6) == {0: 3, 1: 1, 3: 2}


def test_a_token_from_the_future_raises():
    with pytest.raises(ValueError, match="version 6 meets the trainer at version 5"):
        ages(aged(), 5)


def test_old_tokens_are_masked_and_counted():
    [s], masked = mask_old([aged()], 6, 2)
    assert s.mask.tolist() == [False, False, False, True, True]
    assert masked == 2
    [s], masked = mask_old([aged()], 6, 3)
    assert masked == 0
    [s], masked = mask_old([aged()], 60, None)
    assert (s.mask.sum(), masked) == (4, 0)


def test_mismatch_by_hand():
    m = mismatch(np.log([1.0, 2.0]))
    assert m.tokens == 2
    assert m.k1 == pytest.approx(-np.log(2) / 2)
    assert m.k3 == pytest.approx((1 - np.log(2)) / 2)
    assert (m.max_ratio, m.max_abs) == pytest.approx((2, np.log(2)))
    assert m.ess == pytest.approx(9 / 10)
    assert mismatch(np.zeros(3)) == Mismatch(tokens=3)
    assert mismatch(np.zeros(0)) == Mismatch()


def test_fresh_tokens_are_kept_apart_from_stale_ones():
    fresh, stale = fresh_and_stale(np.log([1.0, 4.0, 2.0]), np.array([7, 6, 7]), 7)
    assert (fresh.tokens, stale.tokens) == (2, 1)
    assert fresh.max_ratio == pytest.approx(2)
    assert stale.max_ratio == pytest.approx(4)


def test_breaker_looks_at_the_last_two_hundred():
    assert tripped([True] * 40 + [False] * 160, Breaker()) is None
    assert "41 of the last 200" in tripped([False] * 900 + [True] * 41 + [False] * 159, Breaker())
    assert tripped([True] * 41 + [False] * 200, Breaker()) is None, "long over"
    assert tripped([True] * 40, Breaker()) is None
    assert tripped([True] * 41, Breaker()) is not None
    assert tripped([True] * 500, Breaker(lost_frac=1.0)) is None


def test_drops_are_counted_by_reason_in_a_fixed_order():
    assert count([Drop.NO_EXPERTS, Drop.NO_REWARD, Drop.NO_EXPERTS], {Drop.TOO_OLD: 0}) == {
        "episodes_no_reward": 1,
        "samples_no_experts": 2,
    }
    assert set(SLOT_DROPS) == set(DropReason)
