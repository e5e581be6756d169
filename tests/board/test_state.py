"""The fold: hand-made lines with known answers, and the synthetic run in any order of its processes."""

import random

import msgspec
import pytest

from twinmill.board.follow import Follower
from twinmill.board.panels import plain
from twinmill.board.state import fold
from twinmill.board.summary import summary
from twinmill.records.samples import Mismatch, StepReport
from twinmill.store.metrics import MetricsWriter, read_metrics

from . import synthetic


def line(kind, t=0.0, process="p", **fields):
    return {"t": t, "kind": kind, "process": process, **fields}


def step(n, source="rl", t=None, version=None, **fields):
    base = dict(step=n, version=n if version is None else version, source=source, samples=8, tokens=10, grad_norm=1.0)
    base |= dict(lr=1e-4, loss={"total": 1.0}, seconds={})
    return line("train", float(n) if t is None else t, **{**base, **fields})


def span(lane, start, end, what="forward"):
    return line("busy", end, lane=lane, start=start, end=end, what=what)


def an_eval(version, pass_at_1, **fields):
    base = dict(name="e", version=version, step=version, pass_at_1=pass_at_1, ci_low=pass_at_1 - 0.1)
    base |= dict(ci_high=pass_at_1 + 0.1, tasks=100, temperature=0.7, split="heldout")
    return line("eval", float(version), **{**base, **fields})


def test_a_whole_run_is_read_without_loss():
    lines = synthetic.lines()
    view = fold(lines)
    assert not view.malformed
    assert not view.unknown
    assert [phase.name for phase in view.phases] == ["midtrain", "sft", "eval", "rl", "eval"]
    assert (len(view.of("midtrain")), len(view.of("sft")), len(view.of("rl"))) == (50, 45, 60)
    assert view.lanes() == ["train", "rollout/east", "engine/east", "rollout/west", "engine/west"]
    assert len(view.publishes) == 61
    assert len(view.swaps) == 122
    assert sum(map(len, view.spans.values())) == sum(entry["kind"] == "busy" for entry in lines)


def test_the_order_between_processes_does_not_matter():
    lines = synthetic.lines()
    by_process: dict[str, list] = {}
    for entry in lines:
        by_process.setdefault(entry["process"], []).append(entry)
    names = list(by_process)
    random.Random(1).shuffle(names)
    a, b = fold(lines), fold(entry for name in names for entry in by_process[name])
    assert a.totals == pytest.approx(b.totals)
    for name in ("first", "last", "phases", "rollouts", "engines", "slots", "spans"):
        assert getattr(a, name) == getattr(b, name), name
    assert a.of("rl") == b.of("rl")


def test_busy_time_counts_overlaps_once_and_waiting_not_at_all():
    view = fold([span("train", 0, 4), span("train", 2, 6), span("train", 6, 8, "wait"), span("train", 9, 30)])
    assert view.busy_frac("train", 0, 10) == pytest.approx(0.7)
    assert view.busy_frac("train", 3, 5) == 1.0
    assert view.busy_frac("train", 6, 9) == 0.0
    assert view.busy_frac("engine/x", 0, 10) is None
    assert view.busy_frac("train", 5, 5) is None


def test_spans_that_come_late_are_found_all_the_same():
    spans = [span("train", n, n + 0.5) for n in range(100)]
    random.Random(0).shuffle(spans)
    view = fold(spans)
    assert view.busy_frac("train", 90, 100) == pytest.approx(0.5)


def test_counters_survive_a_restart_of_their_process():
    entries = [(10, 1), (25, 3), (4, 1), (9, 1)]  # the third is a new life
    view = fold(line("rollout", t, cluster="east", episodes=n, lost=lost) for t, (n, lost) in enumerate(entries))
    assert view.totals["episodes"] == 25 + 9
    assert view.totals["lost"] == 3 + 1
    assert view.rollouts["east"].episodes == 9


def test_attempts_tell_what_was_lost_and_processor_time_how_busy():
    def attempt(t, **fields):
        return line("attempt", t, cluster="east", slot=1, attempt=0, start=t - 1, end=t, machine_s=0.25, **fields)

    lost = attempt(2.0, finished=False, failure="engine: EngineError: gone")
    cpu = [line("cpu", float(t), lane="rollout/east", cpu_s=0.5 * t, wall_s=float(t)) for t in range(1, 9)]
    view = fold([attempt(1.0, reward=1.0), lost, attempt(3.0, reward=0.0), *cpu])
    assert view.totals["episodes"] == 3
    assert (view.totals["infra_failures"], view.totals["lost"], view.totals["machine_s"]) == (1, 1, 0.75)
    assert view.lanes() == ["rollout/east"]
    assert view.busy_frac("rollout/east", 2, 6) == pytest.approx(0.5)
    assert view.busy_frac("rollout/east", 7.5, 8.5) is None, "one sample says nothing"
    reborn = fold([line("cpu", 9.0, lane="rollout/east", cpu_s=0.1, wall_s=0.2)], view)
    assert reborn.busy_frac("rollout/east", 2, 9) is None


def test_waiting_is_what_the_steps_report():
    steps = [step(n, t=float(n), seconds={"wait": 0.25, "compute": 0.7}) for n in range(1, 9)]
    assert fold(steps).waiting_frac(2, 6) == pytest.approx(0.25)
    assert fold([]).waiting_frac(0, 1) == 0.0


def test_what_a_step_was_trained_on_names_its_phase():
    view = fold([step(0, source="corpus"), step(0, source="chats"), step(0, source="groups")])
    assert [len(view.of(source)) for source in ("midtrain", "sft", "rl")] == [1, 1, 1]


def test_open_slots_are_those_admitted_and_not_yet_over():
    def mark(slot, event, cluster="east"):
        return line("slot", float(slot), slot=slot, event=event, cluster=cluster)

    view = fold([mark(0, "admit"), mark(1, "admit"), mark(2, "admit", "west"), mark(0, "close"), mark(1, "drop")])
    assert (view.open_slots("east"), view.open_slots("west")) == (0, 1)


def test_a_step_that_was_redone_counts_once_as_it_came_out_last():
    view = fold([step(0, reward=0.1), step(1, reward=0.2), step(1, t=9.0, reward=0.7), step(2, t=10.0, reward=0.3)])
    assert [s.report.reward for s in view.of("rl")] == [0.1, 0.7, 0.3]


def test_staleness_is_a_share_of_tokens():
    view = fold([step(0, staleness={"0": 30, "1": 10}), step(1, staleness={"0": 10, "2": 50})])
    assert view.staleness() == {0: 0.4, 1: 0.1, 2: 0.5}
    assert view.staleness(last_steps=1) == {0: pytest.approx(1 / 6), 2: pytest.approx(5 / 6)}
    assert fold([]).staleness() == {}


def test_drops_add_up_over_steps_and_sources():
    view = fold([step(0, dropped={"infrastructure": 1}), step(1, dropped={"infrastructure": 2, "cluster_lost": 1})])
    assert view.dropped() == {"infrastructure": 3, "cluster_lost": 1}


def test_loss_is_the_total_or_the_only_part():
    assert [s.loss for s in fold([step(0, loss={"a": 1.0, "total": 3.0})]).steps] == [3.0]
    assert [s.loss for s in fold([step(0, loss={"nll": 2.0})]).steps] == [2.0]
    assert [s.loss for s in fold([step(0, loss={"a": 1.0, "b": 2.0})]).steps] == [None]


def test_before_and_after_lie_on_both_sides_of_rl():
    steps = [step(n, version=n + 5) for n in range(4)]
    evals = [an_eval(0, 0.1), an_eval(5, 0.3), an_eval(7, 0.35), an_eval(9, 0.5)]
    before, after = fold([*steps, *evals]).before_and_after()
    assert (before.version, after.version) == (5, 9)
    assert fold(evals).before_and_after() is None  # no RL, nothing to compare
    assert fold([*steps, an_eval(9, 0.5)]).before_and_after() is None


def test_held_out_takes_the_best_temperature_and_no_training_tasks():
    view = fold([an_eval(3, 0.4, temperature=0.0), an_eval(3, 0.5, temperature=1.0), an_eval(3, 0.9, split="train")])
    assert [(e.pass_at_1, e.temperature) for e in view.held_out()] == [(0.5, 1.0)]


def test_a_resumed_phase_goes_on_and_a_repeated_one_is_another():
    def mark(name, state, t, **more):
        return line("phase", t, name=name, state=state, **more)

    view = fold([mark("rl", "start", 1.0, steps=60), mark("rl", "start", 50.0), mark("rl", "end", 90.0)])
    assert [(p.start, p.end, p.steps) for p in view.phases] == [(1.0, 90.0, 60)]
    view = fold([mark("eval", "start", 1.0), mark("eval", "end", 2.0), mark("eval", "start", 5.0)])
    assert [(p.start, p.end) for p in view.phases] == [(1.0, 2.0), (5.0, None)]
    assert view.phase is view.phases[1]


def test_lines_that_cannot_be_read_are_counted_not_fatal():
    view = fold([line("gossip"), line("swap", cluster="east"), step(0, loss="high"), step(1), {"kind": "eval"}])
    assert view.unknown == {"gossip": 1}
    assert len(view.malformed) == 3
    assert "swap in p" in view.malformed[0]
    assert len(view.steps) == 1


def test_the_hack_rate_is_that_of_audited_attempts():
    assert fold([step(0)]).hack_frac() is None  # nobody audits
    rows = [step(0, attempts=48), step(1, attempts=48, hacked={"clock": 2, "resources": 1}, hacked_frac=1 / 24)]
    view = fold([*rows, step(2, attempts=0)])
    assert view.hack_frac() == pytest.approx(1 / 48)
    assert view.hack_frac(2) == pytest.approx(1 / 24)
    assert view.hacks() == {"clock": 2, "resources": 1}
    [row] = [row for row in summary(view) if row.name == "hack rate"]
    assert (row.value, row.note, row.good) == ("2.08 %", "2 clock, 1 resources", False)
    assert "hacks 4.2 %" in plain(fold([line("phase", name="rl", state="start"), rows[1]]), 5.0)


def test_fields_of_a_newer_writer_are_ignored():
    assert fold([line("publish", version=1, delta_bytes=2, full_bytes=4, colour="red")]).publishes[0].version == 1


def test_following_gives_every_line_once_whatever_the_cut(tmp_path):
    wanted = synthetic.write(tmp_path / "all", steps=4)
    rng = random.Random(3)
    follower, got = Follower(tmp_path / "grown"), []
    (tmp_path / "grown").mkdir()
    sources = {path.name: path.read_bytes() for path in (tmp_path / "all").glob("*.jsonl")}
    written = dict.fromkeys(sources, 0)
    while any(written[name] < len(data) for name, data in sources.items()):
        name = rng.choice(list(sources))
        n = rng.randint(0, 4000)
        with (tmp_path / "grown" / name).open("ab") as file:
            file.write(sources[name][written[name] : written[name] + n])
        written[name] = min(len(sources[name]), written[name] + n)
        if rng.random() < 0.3:
            got += follower.new()
    got += follower.new()
    assert follower.damaged == 0
    assert len(got) == len(wanted)
    for process in sources:
        stem = process.removesuffix(".jsonl")
        assert [g for g in got if g["process"] == stem] == [w for w in wanted if w["process"] == stem]


def test_following_steps_over_damage_and_torn_ends(tmp_path):
    follower = Follower(tmp_path)
    assert follower.new() == []
    path = tmp_path / "trainer.jsonl"
    path.write_text('{"t": 1, "kind": "a"}\n{"t": oops}\n[]\n{"kind": "no time"}\n{"t": 2, "ki')
    assert [entry["kind"] for entry in follower.new()] == ["a"]
    assert follower.damaged == 3
    path.write_text(path.read_text().removesuffix('{"t": 2, "ki'))  # a restarted writer drops its torn end ...
    with path.open("a") as file:
        file.write('{"t": 3, "kind": "b"}\n')  # ... and goes on
    assert [entry["kind"] for entry in follower.new()] == ["b"]


def test_what_the_metrics_writer_writes_is_what_the_board_reads(tmp_path):
    report = StepReport(
        step=3,
        version=4,
        source="rl",
        samples=8,
        tokens=10,
        loss={"total": 0.5},
        grad_norm=1.0,
        lr=1e-4,
        seconds={"wait": 0.1},
        staleness={0: 5, 2: 1},
        fresh=Mismatch(tokens=5, k3=1e-6),
        slots=(24, 25),
    )
    with MetricsWriter(tmp_path / "trainer.jsonl") as metrics:
        metrics.write("train", **msgspec.to_builtins(report, str_keys=True))
        metrics.write("phase", name="rl", state="end")
    lines = Follower(tmp_path).new()
    assert lines == read_metrics(tmp_path)
    view = fold(lines)
    assert not view.malformed
    assert view.steps[0].report == report
    assert view.phases[0].end == lines[1]["t"]
