"""The hack rate: the alarm fires at its bound, attempt by attempt, and what the audit found reaches credit."""

import numpy as np
import pytest
from msgspec.structs import replace

from twinmill.batch.alarm import HackAlarm, HackRate, by_rule, hacked_G
from twinmill.batch.drops import Drop
from twinmill.batch.samples import SampleError, assemble
from twinmill.records.episodes import Finding, FindingAction
from twinmill.train.sources.groups import Preparation, prepare

from .toys import group


def finding(rule="clock", severity=0.9, action=FindingAction.ZERO):
    return Finding(episode_id="x", rule=rule, severity=severity, evidence="e", action=action)


def with_findings(rewards, *findings_G, slot=0):
    return replace(group(rewards, slot=slot), findings_G=findings_G)


def test_the_alarm_fires_at_two_percent_and_not_a_step_later():
    rate = HackRate(HackAlarm())
    flags = [False] * 300
    for at in (250, 260, 270, 280, 285, 290):  # six at once, all in one step: the fourth is two percent of 200
        flags[at] = True
    assert list(rate.feed(flags)) == [0.02]
    assert rate.frac == 0.03


def test_it_fires_again_only_after_the_rate_has_fallen():
    rate = HackRate(HackAlarm(frac=0.5, attempts=4))
    assert list(rate.feed([True, True, True])) == [0.5]
    assert list(rate.feed([False, False, False])) == []  # down to a quarter
    assert list(rate.feed([True, True])) == [0.5]


def test_an_early_hack_alone_is_no_alarm_and_zero_is_never():
    assert list(HackRate(HackAlarm()).feed([True, False, True])) == []
    assert list(HackRate(HackAlarm(frac=0)).feed([True] * 500)) == []
    with pytest.raises(ValueError, match="frac is 2"):
        HackAlarm(frac=2)


def test_flags_and_rules_are_counted_weak_findings_are_not():
    one = with_findings(
        [0.0, 1.0], (finding(), finding("resources")), (finding(severity=0.3, action=FindingAction.KEEP),)
    )
    assert hacked_G(one) == [True, False]
    assert by_rule([one, one]) == {"clock": 2, "resources": 2}
    assert hacked_G(group([1.0, 0.0])) == []  # nobody has audited


@pytest.mark.parametrize("action", [FindingAction.DROP, FindingAction.QUARANTINE])
def test_a_dropped_hack_is_outside_its_group(action):
    found = assemble(with_findings([1.0, 0.0, 1.0], (finding(action=action),), (), ()))
    assert np.isnan(found.rewards_G[0]) and found.rewards_G[1:].tolist() == [0.0, 1.0]
    assert found.owner_S == (1, 2)
    assert [(r.reason, r.detail) for r in found.rejected] == [(Drop.HACK_DROPPED, "clock: e")]


def test_a_masked_hack_counts_in_its_group_but_its_tokens_carry_nothing():
    found = assemble(with_findings([1.0, 0.0], (finding(action=FindingAction.MASK),), ()))
    assert found.rewards_G.tolist() == [1.0, 0.0]
    assert found.owner_S == (1,)


def test_zero_and_keep_change_nothing_here():
    for action in (FindingAction.ZERO, FindingAction.KEEP):
        found = assemble(with_findings([0.0, 1.0], (finding(action=action),), ()))
        assert found.rewards_G.tolist() == [0.0, 1.0] and found.owner_S == (0, 1)


def test_findings_of_another_number_of_attempts_are_a_bug():
    with pytest.raises(SampleError, match="findings of 1 attempts"):
        assemble(with_findings([0.0, 1.0], ()))


def test_the_step_tells_the_hack_rate_and_drops_are_no_missing_rewards():
    one = with_findings([1.0, 0.0, 0.0, 1.0], (finding(action=FindingAction.DROP),), (finding("clock"),), (), ())
    facts = prepare([one, group([1.0, 0.0], slot=1)], 0, Preparation(replay=False), lambda ref: None).facts
    assert (facts["attempts"], facts["hacked"], facts["hacked_frac"]) == (4, {"clock": 2}, 0.5)
    assert facts["dropped"] == {"episodes_hack_dropped": 1}
