"""The hack rate, and the alarm at which somebody should look: above 2 % a policy learns to cheat (2511.18397)."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from twinmill.records.episodes import FLAGGED, Group


class HackAlarm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to raise the alarm."""

    frac: float = 0.02
    """share of flagged attempts among the last `attempts` at which the alarm fires; 0 = never"""
    attempts: int = 200
    """how many attempts back it looks; those not played yet count as honest"""
    stop: bool = False
    """stop the run when the alarm fires, rather than only say so"""

    def __post_init__(self) -> None:
        if not 0 <= self.frac <= 1 or self.attempts < 1:
            raise ValueError(f"frac is {self.frac} and attempts {self.attempts}; they must be in [0, 1] and at least 1")


def hacked_G(group: Group) -> list[bool]:
    """One flag per attempt, in order: whether the audit flagged it."""
    return [any(finding.severity >= FLAGGED for finding in findings) for findings in group.findings_G]


def by_rule(groups: Iterable[Group]) -> dict[str, int]:
    """rule -> attempts that it flagged."""
    rules = Counter(
        f.rule for group in groups for findings in group.findings_G for f in findings if f.severity >= FLAGGED
    )
    return dict(sorted(rules.items()))


class HackRate:
    """The rate over a sliding window, attempt by attempt, so that the alarm fires at its bound and not a step later."""

    def __init__(self, alarm: HackAlarm) -> None:
        self.alarm = alarm
        self._recent: deque[bool] = deque(maxlen=alarm.attempts)
        self._on = False

    @property
    def frac(self) -> float:
        """Flagged share of the window. Example: 4 of the last 200."""
        return sum(self._recent) / self.alarm.attempts

    def feed(self, hacked: Sequence[bool]) -> Iterator[float]:
        """The rate at each moment at which the alarm fires: once until the rate has fallen to half of the bound."""
        for flag in hacked:
            self._recent.append(flag)
            if self.alarm.frac and not self._on and flag and self.frac >= self.alarm.frac:
                self._on = True
                yield self.frac
            elif self._on and self.frac <= self.alarm.frac / 2:
                self._on = False
