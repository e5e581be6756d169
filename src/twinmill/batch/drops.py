"""Why something that reached the trainer carried no gradient: the keys of StepReport.dropped."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from twinmill.records.episodes import DropReason


class Drop(StrEnum):
    NO_REWARD = "episodes_no_reward"
    """the attempt could not be graded: outside the group's statistics, its tokens carry no advantage"""
    NO_ADVANTAGE = "samples_no_advantage"
    """every advantage is 0 (a group without variance): counted as trained, no compute spent on it"""
    NO_EXPERTS = "samples_no_experts"
    """router replay is on and the segment has no recorded experts, or they are lost"""
    MISALIGNED_EXPERTS = "samples_misaligned_experts"
    """router replay is on and what was recorded is not one choice of this model for every position"""
    HACK_DROPPED = "episodes_hack_dropped"
    """the audit took the attempt out of its group (FindingAction DROP, QUARANTINE)"""
    HACK_MASKED = "episodes_hack_masked"
    """the audit took the attempt's tokens out of the loss (FindingAction MASK); its reward counts in its group"""
    TOO_OLD = "tokens_too_old"
    """sampled more than age_limit versions ago"""
    SLOT_INFRASTRUCTURE = "slots_infrastructure"
    SLOT_CLUSTER_LOST = "slots_cluster_lost"
    SLOT_UNGRADABLE = "slots_ungradable"


SLOT_DROPS = {
    DropReason.INFRASTRUCTURE: Drop.SLOT_INFRASTRUCTURE,
    DropReason.CLUSTER_LOST: Drop.SLOT_CLUSTER_LOST,
    DropReason.UNGRADABLE: Drop.SLOT_UNGRADABLE,
}


def count(*parts: Iterable[Drop] | dict[Drop, int]) -> dict[str, int]:
    """Reasons and counted reasons -> StepReport.dropped, without zeros, in a fixed order."""
    total: Counter[Drop] = Counter()
    for part in parts:
        total.update(part)
    return {str(reason): total[reason] for reason in Drop if total[reason]}
