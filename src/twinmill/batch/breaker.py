"""When infrastructure loses too many attempts the run stops: what is left is a biased choice of tasks."""

from collections.abc import Sequence

from msgspec import Struct


class Breaker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lost_frac: float = 0.2
    """stop when more than this share of the last `attempts` attempts was lost; 1 = never stop"""
    attempts: int = 200
    """how many attempts back it looks"""


def tripped(lost: Sequence[bool], breaker: Breaker) -> str | None:
    """`lost` = one flag per attempt, oldest first. The sentence to stop the run with, or None.

    Fewer attempts than the window are judged as if the missing ones had been fine, so a bad start alone stops
    nothing until it would have tripped a full window. Example: 41 of 200 lost trips the default, 40 do not.
    """
    recent = lost[-breaker.attempts :]
    count = sum(recent)
    if count <= breaker.lost_frac * breaker.attempts:
        return None
    return (
        f"infrastructure lost {count} of the last {len(recent)} attempts, more than {breaker.lost_frac:.0%} "
        f"of {breaker.attempts}; see the drop reasons in the episodes log, mend the cause, then resume"
    )
