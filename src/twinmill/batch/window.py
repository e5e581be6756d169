"""Freshness: which slots may start, and which slots a step takes. Pure functions of slot numbers.

Slot n holds one group. Version v is the weights after v steps: step v begins at version v and ends in v + 1.
With g groups per step and a window of w versions:

    start         slot n, and each lost attempt of it anew, on an engine that serves >= n // g - w
    in_order      step v trains exactly slots [v*g, (v+1)*g), dropped ones included: no token is older than w
    ready_first   step v trains the g oldest slots that are closed: stragglers meet a later step

Neither policy ever drops a slot, so neither can favour short episodes: a slot is lost only to what its Close
says. w = 0 is synchronous training under both. Both are free of deadlock: slots admitted and not yet trained
number at most (w + 1) * g, and as soon as g of them are closed (in order: the g oldest) a step goes on.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msgspec import Struct


class Choice(NamedTuple):
    """What a step takes. Empty `slots` = wait for some of `waits_for`; else take them, oldest first."""

    slots: tuple[int, ...]
    waits_for: tuple[int, ...]
    """the slots that hold the step up: open ones, and (in_order) those that nobody has admitted yet"""


class Policy(NamedTuple):
    choose: Callable[[Collection[int], Collection[int], int, int], Choice]
    """(ready, open, step, groups_per_step) -> Choice"""
    bounded: bool
    """whether it promises that no trained token is older than the window"""


def may_start(slot: int, groups_per_step: int, window: int, serving: int) -> bool:
    """May an attempt of `slot` start on an engine that serves version `serving` (-1 = none yet)?

    Asked before every attempt, not once per slot: an engine that came back after a crash may serve an older
    version than the one the slot was admitted at. Example: slot 9 with 4 groups per step and window 1 belongs
    to step 2, so it needs version 1.
    """
    return serving >= max(slot // groups_per_step - window, 0)


def in_order(ready: Collection[int], open: Collection[int], step: int, groups_per_step: int) -> Choice:
    """Step v waits for slots [v*g, (v+1)*g). The same slots meet the same step in every run."""
    wanted = tuple(range(step * groups_per_step, (step + 1) * groups_per_step))
    missing = tuple(slot for slot in wanted if slot not in ready)
    return Choice((), missing) if missing else Choice(wanted, ())


def ready_first(ready: Collection[int], open: Collection[int], step: int, groups_per_step: int) -> Choice:
    """Step v takes the g oldest closed slots, whatever is still open below them."""
    taken = tuple(sorted(ready)[:groups_per_step])
    return Choice((), tuple(sorted(open))) if len(taken) < groups_per_step else Choice(taken, ())


POLICIES: Mapping[str, Policy] = {
    "in_order": Policy(in_order, bounded=True),
    "ready_first": Policy(ready_first, bounded=False),
}


class Window(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    window: int = 2
    """how many versions old a token may be when it is trained; 0 = synchronous"""
    groups_per_step: int = 8
    """groups that one optimizer step takes"""
    policy: str = "in_order"
    """which closed slots a step takes: in_order or ready_first"""
    age_limit: int | None = None
    """tokens older than so many versions are masked and counted (for ready_first); None = no limit"""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}; choose one of {', '.join(POLICIES)}")
        if self.window < 0 or self.groups_per_step < 1 or (self.age_limit or 0) < 0:
            raise ValueError("window and age_limit must be at least 0, groups_per_step at least 1")

    @property
    def oldest(self) -> int | None:
        """Age in versions beyond which tokens are masked; None = no limit. Under in_order no such token should arrive:
        what a rollout mill let through against the rule is masked and counted all the same."""
        if not POLICIES[self.policy].bounded:
            return self.age_limit
        return self.window if self.age_limit is None else min(self.window, self.age_limit)


def next_slots(policy: str, ready: Collection[int], open: Collection[int], step: int, groups_per_step: int) -> Choice:
    """The slots that step `step` takes, or what it waits for.

    `ready` are the closed slots that no step has taken yet, `open` the admitted ones that are not closed.
    Example: with g = 2, step 0, ready {0, 2, 3} and open {1}: in_order waits for (1,), ready_first takes (0,
    2).
    """
    return POLICIES[policy].choose(ready, open, step, groups_per_step)
