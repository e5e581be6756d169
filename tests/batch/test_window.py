"""Freshness as properties: both mills as a discrete-event simulation; random durations, lags, losses."""

import heapq
import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.batch.window import POLICIES, Window, may_start, next_slots


def test_may_start_by_hand():
    assert may_start(0, 4, 0, 0)
    assert not may_start(0, 4, 0, -1), "no weights yet"
    assert may_start(9, 4, 1, 1)
    assert not may_start(9, 4, 1, 0)
    assert may_start(9, 4, 2, 0)
    assert not may_start(12, 4, 2, 0)


def test_in_order_takes_exactly_its_own_slots():
    assert next_slots("in_order", {4, 5, 6, 9}, {7, 8}, 1, 4) == ((), (7,))
    assert next_slots("in_order", {4, 5, 6, 7, 9}, {8}, 1, 4) == ((4, 5, 6, 7), ())
    assert next_slots("in_order", set(), set(), 0, 2) == ((), (0, 1)), "nobody has admitted them yet"


def test_ready_first_takes_the_oldest_that_are_closed():
    assert next_slots("ready_first", {9, 3, 4}, {2, 8}, 1, 2) == ((3, 4), ())
    assert next_slots("ready_first", {9}, {8, 2}, 1, 2) == ((), (2, 8))


def test_a_wrong_window_is_refused_when_it_is_written_down():
    with pytest.raises(ValueError, match="in_order, ready_first"):
        Window(policy="fifo")
    with pytest.raises(ValueError, match="at least 0"):
        Window(window=-1)


def test_in_order_bounds_what_reaches_the_trainer_by_the_window():
    assert Window(window=2).oldest == 2
    assert Window(window=2, age_limit=1).oldest == 1
    assert Window(window=2, policy="ready_first").oldest is None
    assert Window(window=2, policy="ready_first", age_limit=5).oldest == 5


class World(NamedTuple):
    groups_per_step: int
    window: int
    steps: int
    at_once: int
    """slots that the rollout mill keeps in flight"""
    lag: float
    """mean seconds from a published version to an engine serving it"""
    loss: float
    """chance that an attempt is lost to infrastructure"""
    restart: float
    """chance that an engine comes back at an older version after a loss"""
    seed: int


class Trained(NamedTuple):
    slot: int
    step: int
    dropped: bool
    versions: tuple[int, ...]
    """of the tokens of its attempt, in order"""


LOSSES_PER_SLOT = 3

worlds = st.builds(
    World,
    groups_per_step=st.integers(1, 5),
    window=st.integers(0, 3),
    steps=st.integers(1, 12),
    at_once=st.integers(1, 20),
    lag=st.floats(0, 20),
    loss=st.floats(0, 0.5),
    restart=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)


def duration(world: World, slot: int) -> float:
    """Heavy-tailed (Pareto, infinite variance), a pure function of the slot."""
    return random.Random(f"{world.seed}/{slot}").paretovariate(1.3)


def losses(world: World, slot: int) -> int:
    """How often this slot's attempt is lost: independent of how long it takes."""
    rng = random.Random(f"{world.seed}/loss/{slot}")
    return next((n for n in range(LOSSES_PER_SLOT) if rng.random() >= world.loss), LOSSES_PER_SLOT)


def simulate(world: World, policy: str) -> list[Trained]:
    """Both mills until the last step. Raises when nothing can go on: a deadlock."""
    rng = random.Random(world.seed)
    g, total = world.groups_per_step, world.groups_per_step * world.steps
    trainer = serving = step = next_slot = 0
    waiting: list[tuple[int, int]] = []  # (slot, losses so far): admitted, attempt to be started
    running: dict[int, list[int]] = {}  # slot -> token versions so far
    closed: dict[int, tuple[bool, tuple[int, ...]]] = {}
    trained: list[Trained] = []
    events: list[tuple[float, int, str, tuple]] = []
    now, tie = 0.0, 0

    def at(delay: float, kind: str, *payload) -> None:
        nonlocal tie
        tie += 1
        heapq.heappush(events, (now + delay, tie, kind, payload))

    while True:
        # the training mill: as many steps as it can take
        gone = {t.slot for t in trained}
        ready = set(closed) - gone
        choice = next_slots(policy, ready, set(range(next_slot)) - set(closed), step, g)
        if choice.slots and step < world.steps:
            trained += [Trained(slot, step, *closed[slot]) for slot in choice.slots]
            step += 1
            trainer = step
            at(rng.expovariate(1 / world.lag) if world.lag else 0.0, "serve", trainer)
            continue
        if step == world.steps:
            return trained
        # the rollout mill: admit and (re)start what the window allows
        while len(waiting) + len(running) < world.at_once and next_slot < total:
            if not may_start(next_slot, g, world.window, serving):
                break
            waiting.append((next_slot, 0))
            next_slot += 1
        for slot, lost in list(waiting):
            if may_start(slot, g, world.window, serving):
                waiting.remove((slot, lost))
                running[slot] = [serving]
                at(duration(world, slot) * (0.5 if lost < losses(world, slot) else 1), "end", slot, lost)
        assert events, f"deadlock: step {step} waits for {choice.waits_for}, serving {serving}"
        now, _, kind, payload = heapq.heappop(events)
        if kind == "serve":
            serving = max(serving, payload[0])
            for tokens in running.values():  # in-flight update: what is sampled from now on is fresher
                tokens.append(serving)
            continue
        slot, lost = payload
        tokens = running.pop(slot)
        if lost == losses(world, slot):
            closed[slot] = (False, tuple(tokens))
        elif lost + 1 == LOSSES_PER_SLOT:
            closed[slot] = (True, ())
        else:
            waiting.append((slot, lost + 1))
            if rng.random() < world.restart and not running:
                serving = rng.randint(max(0, serving - 2), serving)
                at(1.0, "serve", trainer)


@given(worlds, st.sampled_from(sorted(POLICIES)))
@settings(max_examples=150, deadline=None)
def test_every_slot_meets_exactly_one_step(world, policy):
    trained = simulate(world, policy)
    assert sorted(t.slot for t in trained) == list(range(world.groups_per_step * world.steps))
    sizes = [sum(t.step == step for t in trained) for step in range(world.steps)]
    assert sizes == [world.groups_per_step] * world.steps


@given(worlds)
@settings(max_examples=150, deadline=None)
def test_in_order_never_trains_a_token_older_than_the_window(world):
    for t in simulate(world, "in_order"):
        assert t.step == t.slot // world.groups_per_step, "the same slots meet the same step in every run"
        assert all(0 <= t.step - version <= world.window for version in t.versions)
        assert list(t.versions) == sorted(t.versions)


@given(worlds, st.sampled_from(sorted(POLICIES)))
@settings(max_examples=100, deadline=None)
def test_only_infrastructure_drops_a_slot_and_never_its_length(world, policy):
    dropped = {t.slot for t in simulate(world, policy) if t.dropped}
    doomed = {s for s in range(world.groups_per_step * world.steps) if losses(world, s) == LOSSES_PER_SLOT}
    assert dropped == doomed, "a pure function of the losses: durations, policy and window have no say"


@given(worlds)
@settings(max_examples=60, deadline=None)
def test_window_zero_is_synchronous_under_both_policies(world):
    world = world._replace(window=0)
    for policy in POLICIES:
        for t in simulate(world, policy):
            assert t.step == t.slot // world.groups_per_step
            assert all(version == t.step for version in t.versions)


def test_a_straggler_holds_in_order_up_but_meets_a_later_step_under_ready_first():
    ready, open_ = {1, 2, 3}, {0}
    assert next_slots("in_order", ready, open_, 0, 2).slots == ()
    assert next_slots("ready_first", ready, open_, 0, 2).slots == (1, 2)
    assert next_slots("ready_first", {0, 3, 4}, set(), 1, 2).slots == (0, 3)
