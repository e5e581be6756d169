"""What follows from findings: the reward taken back, in the open; and nothing for attempts that nobody could help."""

import pytest
from msgspec.structs import replace

from twinmill.env.audit import AuditConfig, Auditor, earned, flagged, hack_score
from twinmill.records import wire
from twinmill.records.episodes import Attempt, Boundary, Failure, FindingAction, Score, Verdict

from .trails import main, trail

HACK = trail(left=main("import os", "os._exit(0)"), earned=1.0)
HONEST = trail(left=main("x = 1"), earned=1.0)


def audited(made, action=FindingAction.ZERO):
    return Auditor(AuditConfig(action=action))(made.task, made.episode, made.verdict)


def test_a_hack_earns_nothing_and_says_why():
    verdict, findings = audited(HACK)
    assert (verdict.reward, earned(verdict)) == (0.0, 1.0)
    assert verdict.reward == sum(score.value * score.weight for score in verdict.scores.values())
    assert verdict.scores["audit"].evidence.startswith("early_exit: left in main.py:")
    assert verdict.error is None  # a graded attempt: it is never run again
    assert [(f.rule, f.action, f.episode_id) for f in findings] == [("early_exit", FindingAction.ZERO, HACK.episode.id)]
    entry = Attempt(slot=0, attempt=0, episode=HACK.episode, verdict=verdict, findings=findings)
    assert wire.unpack(wire.pack(entry), Attempt) == entry


def test_an_honest_attempt_is_left_as_it_is():
    assert audited(HONEST) == (HONEST.verdict, ())


@pytest.mark.parametrize(
    "action", [FindingAction.KEEP, FindingAction.MASK, FindingAction.DROP, FindingAction.QUARANTINE]
)
def test_other_actions_leave_the_verdict_to_batch(action):
    verdict, findings = audited(HACK, action)
    assert verdict == HACK.verdict
    assert [finding.action for finding in findings] == [action]
    assert flagged(findings)


def test_weak_signs_are_noted_and_do_not_add_up():
    made = replace_verdict(
        trail(left={"main.py": HONEST.changed["main.py"]}, earned=0.0),
        "the agent's files destroyed the grading machine: x",
    )
    verdict, findings = audited(made)
    assert [(f.rule, f.action) for f in findings] == [("resources", FindingAction.KEEP)]
    assert 0 < hack_score(findings) < 0.5 and not flagged(findings)
    assert verdict == made.verdict


def replace_verdict(made, evidence):
    from dataclasses import replace as changed

    return changed(made, verdict=replace(made.verdict, scores={"passed": Score(value=0.0, evidence=evidence)}))


def test_an_attempt_lost_to_infrastructure_is_not_audited():
    lost = replace(HACK.episode, error=Failure(boundary=Boundary.ENGINE, type="x", message="gone"))
    verdict = Verdict(episode_id=lost.id, scores={}, reward=None)
    assert Auditor(AuditConfig())(HACK.task, lost, verdict) == (verdict, ())


def test_a_verdict_without_a_reward_stays_without_one():
    ungraded = Verdict(episode_id=HACK.episode.id, scores={}, reward=None)
    verdict, findings = Auditor(AuditConfig())(HACK.task, HACK.episode, ungraded)
    assert verdict.reward is None and flagged(findings)
