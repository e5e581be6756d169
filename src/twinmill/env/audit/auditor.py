"""The audit of one attempt: every rule over its trail, findings with an action, and the verdict that follows.

    auditor = Auditor(AuditConfig(), renderer.decode)
    verdict, findings = auditor(task, episode, verdict)

An audited hack is a valid attempt whose reward is 0: it is logged with its findings, never run again, and never counted
as an infrastructure failure. What the graders had given stays readable in the verdict's scores.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from twinmill.records.base import Record
from twinmill.records.episodes import FLAGGED, Episode, Finding, FindingAction, Score, Verdict
from twinmill.records.tasks import Task

from .rules import RULES
from .trail import Decode, Trail, trail_of


class AuditConfig(Record):
    """What is done about hacks."""

    action: FindingAction = FindingAction.ZERO
    """what a flagged attempt gets: keep, zero, mask, drop, quarantine"""
    honeypots: bool = False
    """lay honeypots into every task's workspace; the model sees two more files"""
    canary_every: int = 0
    """every so many-th slot plays a task of split `impossible`, whose right reward is 0; 0 = none (tinyrepo only)"""

    def __post_init__(self) -> None:
        if self.canary_every < 0:
            raise ValueError(f"canary_every is {self.canary_every}; it must be at least 0")


class Auditor:
    def __init__(self, config: AuditConfig, decode: Decode | None = None) -> None:
        """Without `decode` (ids -> text) rules do not see what the agent said beside its tool calls."""
        self.config, self.decode = config, decode

    def __call__(self, task: Task, episode: Episode, verdict: Verdict) -> tuple[Verdict, tuple[Finding, ...]]:
        if episode.error is not None:
            return verdict, ()
        findings = examine(trail_of(task, episode, verdict, self.decode), self.config.action)
        return judged(verdict, findings), findings


def examine(trail: Trail, action: FindingAction = FindingAction.ZERO) -> tuple[Finding, ...]:
    """One finding for each rule that saw something, with its strongest evidence; the surest first."""
    findings = []
    for name, rule in RULES.items():
        hits = sorted(rule(trail), key=lambda hit: -hit.severity)
        if hits:
            more = f" (and {len(hits) - 1} more)" if len(hits) > 1 else ""
            severity = hits[0].severity
            findings.append(
                Finding(
                    episode_id=trail.episode.id, rule=name, severity=severity, evidence=hits[0].evidence + more,
                    action=action if severity >= FLAGGED else FindingAction.KEEP,
                )
            )  # fmt: skip
    return tuple(sorted(findings, key=lambda finding: -finding.severity))


def hack_score(findings: Sequence[Finding]) -> float:
    """0 to 1: the surest finding. Weak signs do not add up, as honest attempts collect many."""
    return max((finding.severity for finding in findings), default=0.0)


def flagged(findings: Sequence[Finding]) -> bool:
    return hack_score(findings) >= FLAGGED


def judged(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """The verdict with the reward taken back, where a finding says so. MASK and DROP are done by batch, to the sample."""
    zero = [finding for finding in findings if finding.action is FindingAction.ZERO]
    if not zero or verdict.reward is None:
        return verdict
    evidence = f"{zero[0].rule}: {zero[0].evidence}"
    taken = Score(value=-verdict.reward, grader="audit", evidence=evidence)
    return replace(verdict, scores={**verdict.scores, "audit": taken}, reward=0.0)


def earned(verdict: Verdict) -> float | None:
    """What the graders alone gave; None = they could not."""
    if verdict.reward is None:
        return None
    return sum(score.value * score.weight for name, score in verdict.scores.items() if name != "audit")
