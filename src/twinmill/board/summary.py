"""The figures of a run, as rows: what the table at its end and the page's table both show."""

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from . import units
from .points import Eval, Step
from .state import RunView

ALARM = 0.02
"""hack rate that is worth a look"""


class Row(NamedTuple):
    section: str
    name: str
    value: str
    note: str = ""
    """what the value rests on"""
    good: bool | None = None
    """False = worth a look; None = no opinion"""


class Gain(NamedTuple):
    """A difference of two pass rates with an interval, as shares."""

    points: float
    low: float
    high: float


def gain(before: Eval, after: Eval) -> Gain:
    """Newcombe's hybrid interval from the two evals' own intervals. It takes them as independent; where both ran on the
    same tasks the true interval is narrower, so this one errs on the safe side."""
    points = after.pass_at_1 - before.pass_at_1
    low = points - ((after.pass_at_1 - after.ci_low) ** 2 + (before.ci_high - before.pass_at_1) ** 2) ** 0.5
    high = points + ((after.ci_high - after.pass_at_1) ** 2 + (before.pass_at_1 - before.ci_low) ** 2) ** 0.5
    return Gain(points, low, high)


def gain_of(view: RunView, before: Eval, after: Eval) -> tuple[Gain, str]:
    """The gain, and what its interval rests on: the evaluator's own, paired by task, where it gave one."""
    paired = view.gains.get(after.version)
    if paired is not None and before.version == 0:
        return Gain(paired.points / 100, paired.ci_low / 100, paired.ci_high / 100), "the same tasks, paired"
    return gain(before, after), "the two evals taken as independent"


def summary(view: RunView) -> list[Row]:
    """Rows for what the run has done; what it has not done has no row."""
    return [*_learning(view), *_loop(view), *_overlap(view), *_weights(view), *_numerics(view), *_health(view)]


def table(view: RunView, *, title: str = "") -> Table:
    """The summary for the terminal."""
    shown = Table(title=title or None, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    shown.show_header = False
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=True)
    shown.add_column(style="dim", ratio=1)
    section = ""
    for row in summary(view):
        if row.section != section:
            shown.add_row(Text(row.section, "bold cyan"))
        shown.add_row(Text(f"  {row.name}"), Text(row.value, "bold yellow" if row.good is False else "bold"), row.note)
        section = row.section
    return shown


def held_out_words(point: Eval) -> str:
    """Example: "56.5 % [49.6, 63.4]"."""
    return f"{units.percent(point.pass_at_1, 1)} [{100 * point.ci_low:.1f}, {100 * point.ci_high:.1f}]"


def _learning(view: RunView) -> Iterator[Row]:
    stages = {point.stage: point.loss for point in view.heldout}
    if "before" in stages and "after" in stages:
        drop = stages["before"] - stages["after"]
        value = f"{stages['before']:.3f} → {stages['after']:.3f}"
        yield Row("learning", "held-out loss", value, "nats per token, before and after mid-training", drop > 0)
    pair = view.before_and_after()
    evals = view.held_out()
    if pair:
        before, after = pair
        change, how = gain_of(view, before, after)
        basis = f"{before.tasks} and {after.tasks} tasks" if before.tasks != after.tasks else f"{after.tasks} tasks"
        yield Row("learning", "pass@1, start of RL", held_out_words(before), f"{basis}, {_temperature(view, before)}")
        yield Row(
            "learning", "pass@1, end of RL", held_out_words(after), f"v{after.version}, {_temperature(view, after)}"
        )
        value = f"{units.points(change.points)} [{units.points(change.low)}, {units.points(change.high)}] points"
        yield Row("learning", "gain", value, how, change.low > 0)
        if before.pass_at_8 is not None and after.pass_at_8 is not None:
            value = f"{units.percent(before.pass_at_8, 1)} → {units.percent(after.pass_at_8, 1)}"
            yield Row("learning", "pass@8", value, "held-out tasks")
    elif evals:
        note = f"{evals[-1].tasks} {evals[-1].split} tasks, {_temperature(view, evals[-1])}"
        yield Row("learning", "pass@1", held_out_words(evals[-1]), note)
    rewards = [step.report.reward for step in view.of("rl") if step.report.reward is not None]
    if len(rewards) >= 2:
        n = max(1, min(8, len(rewards) // 2))
        value = f"{sum(rewards[:n]) / n:.3f} → {sum(rewards[-n:]) / n:.3f}"
        yield Row("learning", "reward", value, f"first and last {n} steps, training tasks")


def _temperature(view: RunView, point: Eval) -> str:
    """How the eval's temperature came about."""
    tried = {e.temperature for e in view.evals if e.version == point.version and e.split == point.split}
    chosen = f"temperature {point.temperature:g}"
    return chosen if len(tried) < 2 else f"{chosen}, the best of {len(tried)} tried"


def _loop(view: RunView) -> Iterator[Row]:
    steps = view.of("rl")
    if not steps:
        return
    reports = [step.report for step in steps]
    groups, samples = sum(r.groups for r in reports), sum(r.samples for r in reports)
    took = _took(view, steps)
    value = f"{len(steps)} steps, {units.count(groups)} groups, {units.count(samples)} samples"
    yield Row("loop", "trained", value, f"{samples / took:.1f} samples a second of RL" if took else "")
    varied = sum(r.varied_frac for r in reports) / len(reports)
    yield Row("loop", "groups with variance", units.percent(varied), "mean over steps")
    ages = view.staleness()
    if ages:
        mean = sum(age * share for age, share in ages.items())
        yield Row("loop", "staleness", f"mean {mean:.2f}, max {max(ages)}", "versions, over trained tokens")
    dropped = view.dropped()
    if dropped:
        words = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items()))
        yield Row("loop", "dropped", words, "by reason", False)


def _overlap(view: RunView) -> Iterator[Row]:
    steps = view.of("rl")
    if len(steps) < 2:
        return
    start, end = steps[0].t, steps[-1].t
    for lane in view.lanes():
        busy = view.busy_frac(lane, start, end)
        note = f"waits {units.percent(view.waiting_frac(start, end), 1)}" if lane == "train" else ""
        if busy is not None and lane not in view.spans:
            note = "processor time of its process"
        yield Row("busy during RL", lane, units.percent(busy), note)


def _weights(view: RunView) -> Iterator[Row]:
    deltas = [p for p in view.publishes if 0 < p.delta_bytes < p.full_bytes]
    if deltas:
        share = median(p.delta_bytes / p.full_bytes for p in deltas)
        value = f"{units.size(median(p.delta_bytes for p in deltas))}, {units.percent(share, 1)} of full"
        yield Row(
            "weights", "delta", value, f"median of {len(deltas)} versions; full {units.size(deltas[-1].full_bytes)}"
        )
    if view.publishes:
        yield Row("weights", "publish", units.short_time(median(p.seconds for p in view.publishes)), "median")
    if view.swaps:
        pauses = [swap.pause_s for swap in view.swaps]
        value = f"{units.short_time(median(pauses))}, worst {units.short_time(max(pauses))}"
        yield Row("weights", "swap pause", value, f"median of {len(pauses)}; generation stood still")
        repaired = sum(swap.repaired for swap in view.swaps)
        if repaired:
            yield Row("weights", "repaired", str(repaired), "did not match, taken from the full version", False)


def _numerics(view: RunView) -> Iterator[Row]:
    reports = [step.report for step in view.of("rl")]
    if not reports:
        return
    for name, kind in (("same version", "fresh"), ("older versions", "stale")):
        found = [getattr(r, kind) for r in reports if getattr(r, kind).tokens]
        if found:
            tokens = sum(m.tokens for m in found)
            k3 = sum(m.k3 * m.tokens for m in found) / tokens
            note = f"k3; largest |Δ log-probability| {units.small(max(m.max_abs for m in found))}, "
            yield Row("train/engine mismatch", name, units.small(k3), note + f"{units.count(tokens)} tokens")
    clipped = sum(r.clipped_frac for r in reports) / len(reports)
    trained = [r.replayed_frac for r in reports if r.tokens]  # a step without variance computes, and replays, nothing
    replayed = sum(trained) / len(trained) if trained else None
    yield Row("train/engine mismatch", "clipped", units.percent(clipped, 2), "of tokens, mean over steps")
    yield Row("train/engine mismatch", "experts replayed", units.percent(replayed, 2), "mean over steps that trained")
    refused = [r.refused_frac for r in reports if r.tokens]
    if any(refused):
        share = units.percent(sum(refused) / len(refused), 2)
        yield Row(
            "train/engine mismatch", "implausible experts", share, "replaced by the filter, rl.compute.replay_floor"
        )


def _health(view: RunView) -> Iterator[Row]:
    totals = view.totals
    if "episodes" in totals:
        failures, lost = int(totals.get("infra_failures", 0)), int(totals.get("lost", 0))
        value = f"{failures} failures, {lost} attempts lost"
        yield Row("health", "infrastructure", value, f"of {units.count(totals['episodes'])} episodes", not failures)
    share = view.hack_frac()
    if share is not None:
        rules = ", ".join(f"{n} {rule}" for rule, n in view.hacks().items())
        yield Row("health", "hack rate", units.percent(share, 2), rules or "of the attempts of RL", share < ALARM)
    restarts = sum(event.what == "restarting" for event in view.events)
    if restarts:
        yield Row("health", "restarts", str(restarts), "of processes", False)
    unread = len(view.malformed) + sum(view.unknown.values())
    if unread:
        yield Row("health", "metrics", f"{unread} lines not understood", "; ".join(view.malformed[-1:]), False)
    yield Row("health", "wall time", units.clock(view.seconds), _by_phase(view))


def _took(view: RunView, steps: list[Step]) -> float:
    """Seconds of the RL phase, as its marks say, else between its first and last step."""
    marked = sum((p.end or view.last or p.start) - p.start for p in view.phases if p.name == "rl")
    return marked or steps[-1].t - steps[0].t


def _by_phase(view: RunView) -> str:
    spent: dict[str, float] = {}
    for phase in view.phases:
        spent[phase.name] = spent.get(phase.name, 0.0) + (phase.end or view.last or phase.start) - phase.start
    return ", ".join(f"{name} {units.clock(seconds)}" for name, seconds in spent.items())
