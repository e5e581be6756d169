"""The simulator: equal arguments, equal outcomes; what follows from arithmetic; faults that end as they must."""

import time

import pytest

from twinmill.env.machine.pool.scheduler import PoolConfig
from twinmill.env.machine.pool.simulator import Faults, simulate, stages
from twinmill.records.burst import BurstPlan, MachineCosts

COSTS = MachineCosts(
    host="made up", cores=2, make_s=(0.004, 0.005, 0.02), run_s=(0.002, 0.002, 0.01), end_s=(0.001, 0.002, 0.005),
    cycles_per_s=400.0, work_s=0.02, work_frac=1.0, idle_bytes=430_000, samples=3,
)  # fmt: skip
WIDE = PoolConfig(machines=10_000, creates=10_000)


def burst(machines, **more):
    return simulate(BurstPlan(machines=machines, **more.pop("plan", {})), COSTS, more.pop("config", WIDE), **more)


def test_equal_arguments_give_equal_outcomes():
    plan = {"hold_s": 1.0, "nodes": 3}
    assert burst(500, plan=plan, seed=4) == burst(500, plan=plan, seed=4) != burst(500, plan=plan, seed=5)


def test_processors_bound_what_computes():
    made = burst(4000)
    assert made.makespan_s == pytest.approx(4000 / 400, rel=0.05)
    assert made.bottleneck == "processors"
    assert burst(4000, plan={"work_s": 0.01}).makespan_s == pytest.approx(4000 / 400 + 4000 * 0.01 / 2, rel=0.05)
    assert burst(4000, plan={"nodes": 4}).makespan_s == pytest.approx(4000 / 400 / 4, rel=0.1)


def test_room_bounds_what_waits():
    held = burst(640, plan={"hold_s": 5.0}, config=PoolConfig(machines=64, creates=64))
    assert held.most_alive <= 64 and held.bottleneck == "machines"
    assert held.makespan_s == pytest.approx(640 / 64 * 5.0, rel=0.35)


def test_a_stage_is_split_into_computing_and_waiting():
    make, run, end = stages(COSTS)
    assert make.cpu_s + run.cpu_s + end.cpu_s == pytest.approx(2 / 400)
    assert all(wait >= 0 for stage in (make, run, end) for wait in stage.waits)


def test_an_image_is_fetched_once_by_each_node():
    plan = {"image_bytes": 10**9, "link_bytes_s": 1e9, "nodes": 2}
    assert burst(64, plan=plan).makespan_s > 1.0
    assert burst(64, plan={**plan, "images": 4, "nodes": 1}).makespan_s > 4.0
    assert burst(6400, plan=plan).makespan_s == pytest.approx(burst(6400, plan={"nodes": 2}).makespan_s + 1.0, rel=0.2)


def test_every_lease_ends_once_whatever_fails():
    faults = Faults(failing_frac=0.03, late_frac=0.02, late_s=5.0, lose_node_at_s=2.0)
    plan = {"nodes": 6, "hold_s": 2.0}
    made = burst(5000, plan=plan, config=PoolConfig(machines=300, creates=64), faults=faults)
    assert made.ended + made.lost == 5000 and made.orphans == 0
    assert made.lost <= 5 and 5000 < made.tries <= 1.2 * 5000


def test_where_every_create_fails_all_are_lost_without_a_storm():
    made = burst(500, faults=Faults(failing_frac=1.0))
    assert made.lost == 500 and made.ended == 0 and made.tries <= 500 * 1.2 + 11


def test_a_large_burst_takes_little_time():
    began = time.process_time()
    made = burst(8000, plan={"nodes": 120, "cores": 128, "hold_s": 30.0, "images": 50, "image_bytes": 10**9})
    assert made.ended == 8000 and time.process_time() - began < 10
