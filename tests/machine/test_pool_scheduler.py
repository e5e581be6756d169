"""The scheduler alone: decisions are a function of what happened and when."""

import pytest

from twinmill.env.machine.pool.scheduler import FIRST_WINDOW, RETRIES, Ask, PoolConfig, Scheduler

GB = 1 << 30


def scheduler(nodes=1, **config):
    return Scheduler({f"n{i}": 64 * GB for i in range(nodes)}, PoolConfig(**config))


def asks(scheduler, count, group=8, first=0, **more):
    for i in range(first, first + count):
        scheduler.ask(Ask(id=i, group=f"g{i // group}", **more))


def run_all(scheduler, now=0.0, seconds=0.1):
    """Start everything that may start, and let every create succeed, until nothing starts any more."""
    begun = []
    while starts := list(scheduler.next(now)):
        now += seconds
        for start in starts:
            assert scheduler.started(start, now)
        begun += starts
    return begun


def test_first_come_first_served_within_the_window():
    s = scheduler()
    asks(s, 20)
    assert [start.ask.id for start in s.next(0.0)] == list(range(int(FIRST_WINDOW)))
    assert list(s.next(0.0)) == []


def test_a_group_stays_on_one_node_and_groups_spread():
    s = scheduler(nodes=4, machines=32)
    asks(s, 64)
    homes = {}
    for start in run_all(s):
        homes.setdefault(start.ask.group, set()).add(start.node)
    assert all(len(nodes) == 1 for nodes in homes.values())
    assert len({next(iter(nodes)) for nodes in homes.values()}) == 4


def test_a_node_that_has_the_image_is_preferred_unless_it_is_much_fuller():
    s = scheduler(nodes=2, machines=16)
    asks(s, 2, group=2, image="a")
    [home] = {start.node for start in run_all(s)}
    asks(s, 2, group=2, first=10, image="a")
    assert {start.node for start in run_all(s)} == {home}
    asks(s, 8, group=8, first=16, image="a")
    asks(s, 2, group=2, first=30, image="a")
    assert {start.node for start in run_all(s)} > {home}


def test_no_more_machines_than_there_is_room_for():
    s = scheduler(machines=5)
    asks(s, 20)
    assert len(run_all(s)) == 5
    s.ended(0)
    assert len(run_all(s)) == 1


def test_fast_creates_widen_the_window_and_slow_or_failed_ones_halve_it_once():
    s = scheduler(machines=1000, creates=16, slow_s=1.0)
    asks(s, 400)
    run_all(s)
    node = s.nodes["n0"]
    assert node.window == 16
    s = scheduler(machines=1000, slow_s=1.0)
    asks(s, 100)
    starts = list(s.next(0.0))
    s.started(starts[0], 5.0)
    s.started(starts[1], 5.5)
    s.failed(starts[2], 5.6)
    assert s.nodes["n0"].window == FIRST_WINDOW / 2, "one congestion is cut once"
    s.failed(starts[3], 7.0)
    assert s.nodes["n0"].window == FIRST_WINDOW / 4


def test_pressure_stops_starts_but_never_the_only_one():
    s = scheduler(free_frac=0.2)
    asks(s, 3)
    s.sense("n0", 0.1)
    assert len(run_all(s)) == 1, "a node with nothing on it cannot relieve itself"
    s.sense("n0", 0.5)
    assert len(run_all(s)) == 2


def test_no_more_memory_is_promised_than_there_is():
    s = scheduler(machines=1000)
    asks(s, 100, promised_bytes=8 * GB)
    assert len(run_all(s)) == 8


def test_a_failed_create_is_tried_again_later_and_lost_after_the_last_try():
    s = scheduler(tries=3, retry_s=1.0)
    asks(s, 1)
    [start] = s.next(0.0)
    assert s.failed(start, 0.0) and list(s.next(0.5)) == []
    assert s.wake() == 1.0
    [second] = s.next(1.0)
    assert second.number == 2 and s.failed(second, 1.0, retry_after_s=7.0)
    assert s.wake() == 8.0
    [third] = s.next(8.0)
    assert not s.failed(third, 8.0) and s.wake() is None


def test_a_storm_of_failures_does_not_grow_by_itself():
    s = scheduler(machines=1000, creates=1000, tries=100, retry_s=0.0, retry_frac=0.2)
    asks(s, 500)
    creates, now = 0, 0.0
    while starts := list(s.next(now)):
        creates += len(starts)
        now += 1000.0
        for start in starts:
            s.failed(start, now)
    assert creates <= 500 * 1.2 + RETRIES + 1


def test_a_create_that_succeeds_after_it_counted_as_failed_is_to_be_ended():
    s = scheduler(retry_s=0.0)
    asks(s, 1)
    [late] = s.next(0.0)
    s.failed(late, 1.0)
    [again] = s.next(2.0)
    assert not s.started(late, 2.5), "its place belongs to the second try by now"
    assert s.started(again, 2.6) and not s.started(again, 2.7)


def test_a_lost_node_frees_its_asks_for_other_nodes():
    s = scheduler(nodes=2, machines=64)
    asks(s, 32)
    starts = list(s.next(0.0))
    alive = [start for start in starts if start.node == "n0"][:2]
    for start in alive:
        s.started(start, 0.1)
    assert sorted(s.lose("n0")) == [start.ask.id for start in alive]
    for start in starts:
        if start.node == "n1":
            s.started(start, 0.1)
    more = run_all(s, 0.2)
    assert {start.node for start in more} == {"n1"}
    ids = {start.ask.id for start in starts} | {start.ask.id for start in more}
    assert ids == set(range(32))


def test_who_gives_up_gives_up_the_place():
    s = scheduler(machines=1)
    asks(s, 3, group=1)
    run_all(s)
    s.withdraw(1)
    s.ended(0)
    assert [start.ask.id for start in run_all(s)] == [2]


def test_nothing_is_remembered_of_what_has_ended():
    s = scheduler(nodes=3)
    asks(s, 64)
    alive = run_all(s)
    while alive:
        for start in alive:
            s.ended(start.ask.id)
        alive = run_all(s)
    assert not s._homes and not s._tries and not s._held
    assert all((n.alive, n.creating, n.promised_bytes, len(n.queue)) == (0, 0, 0, 0) for n in s.nodes.values())


def test_an_ask_is_made_once():
    s = scheduler()
    asks(s, 1)
    with pytest.raises(ValueError, match="ask 0 was made before"):
        asks(s, 1)


@pytest.mark.parametrize("wrong", [{"machines": 0}, {"creates": 0}, {"tries": 0}, {"free_frac": 1.0}, {"slow_s": 0.0}])
def test_an_impossible_configuration_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PoolConfig(**wrong)
