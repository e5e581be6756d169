"""RunView: everything a view shows of one run, as one fold over its metric lines.

    fold(lines) -> RunView            from the beginning
    fold(new_lines, view) -> view     and on

The fold does not care in which order processes' lines come in, only about the order within one process. All
of it stays in memory: made for runs of hours on a few clusters (a million spans are some 300 MB).
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from twinmill.records.samples import StepReport

from .points import (
    AttemptEnd,
    Cpu,
    EngineNow,
    Eval,
    Event,
    Experts,
    Heldout,
    PairedGain,
    PhaseMark,
    Point,
    Publish,
    RolloutNow,
    SlotMark,
    Span,
    Step,
    Swap,
)

IDLE = frozenset({"wait", "idle"})
"""spans that are shown, with their cause, but are not work"""


_SOURCES = {"corpus": "midtrain", "chats": "sft", "groups": "rl"}
"""what a step was trained on -> the phase it belongs to"""


@dataclass
class Phase:
    """One stretch of a phase; eval may come several times. `end` None = still going on. A phase that a resume
    starts again goes on where it was."""

    name: str
    start: float
    end: float | None = None
    steps: int | None = None
    seconds: float | None = None


@dataclass
class RunView:
    """Lists are in the order in which lines came; `first` and `last` are the times of the earliest and latest
    line."""

    first: float | None = None
    last: float | None = None
    phases: list[Phase] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    evals: list[Eval] = field(default_factory=list)
    gains: dict[int, PairedGain] = field(default_factory=dict)
    """version -> its gain over version 0"""
    experts: Experts | None = None
    heldout: list[Heldout] = field(default_factory=list)
    publishes: list[Publish] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    engines: dict[str, EngineNow] = field(default_factory=dict)
    """ "cluster/engine" -> latest"""
    engine_points: list[EngineNow] = field(default_factory=list)
    rollouts: dict[str, RolloutNow] = field(default_factory=dict)
    """cluster -> latest"""
    spans: dict[str, list[Span]] = field(default_factory=dict)
    """lane -> spans, by their end"""
    cpu: dict[str, list[Cpu]] = field(default_factory=dict)
    """lane -> processor time of its process"""
    attempts: list[AttemptEnd] = field(default_factory=list)
    slots: dict[int, SlotMark] = field(default_factory=dict)
    """slot -> latest"""
    events: list[Event] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)
    """counter -> its sum over all processes and all their lives"""
    unknown: dict[str, int] = field(default_factory=dict)
    """kind that this board does not know -> lines"""
    malformed: list[str] = field(default_factory=list)
    """what was wrong with lines that were left out, latest last"""
    _counted: dict[tuple[str, str], float] = field(default_factory=dict)

    # ---- what views ask

    def of(self, source: str) -> list[Step]:
        """Steps of one source (midtrain, sft, rl), in order. A step that was redone after a crash counts
        once, as it came out last."""
        return [step for _, step in sorted({s.report.step: s for s in self.steps if s.report.source == source}.items())]

    @property
    def phase(self) -> Phase | None:
        """The phase that goes on, else the last one."""
        running = [phase for phase in self.phases if phase.end is None]
        return next(reversed(running or self.phases), None)

    @property
    def seconds(self) -> float:
        return 0.0 if self.first is None or self.last is None else self.last - self.first

    def lanes(self) -> list[str]:
        """Lanes in the order of the picture: the training mill, then per cluster its rollout process and engines, then
        what belongs to no cluster."""
        lanes = {*self.spans, *(f"rollout/{attempt.cluster}" for attempt in self.attempts)}
        return sorted(
            lanes, key=lambda lane: (lane != "train", "/" not in lane, lane.partition("/")[2], lane[0] == "e")
        )

    def attempts_of(self, lane: str) -> list[AttemptEnd]:
        """Attempts that a rollout lane is made of."""
        return [attempt for attempt in self.attempts if lane == f"rollout/{attempt.cluster}"]

    def open_slots(self, cluster: str) -> int:
        return sum(mark.event == "admit" and mark.cluster == cluster for mark in self.slots.values())

    def busy_frac(self, lane: str, start: float, end: float) -> float | None:
        """Share of [start, end] in which the lane worked; overlapping spans count once. Without spans: the processor
        time of its process. None = it has neither."""
        spans = self.spans.get(lane)
        if not spans or end <= start:
            return self.cpu_frac(lane, start, end)
        return _covered([span for span in _since(spans, start) if span.what not in IDLE], start, end) / (end - start)

    def cpu_frac(self, lane: str, start: float, end: float) -> float | None:
        """Processor time of the lane's process per second of [start, end]; above 1 with several threads. None = not
        known: fewer than two samples, or a new life in between."""
        points = [point for point in self.cpu.get(lane, []) if start <= point.t <= end]
        if len(points) < 2 or points[-1].wall_s <= points[0].wall_s:
            return None
        return (points[-1].cpu_s - points[0].cpu_s) / (points[-1].wall_s - points[0].wall_s)

    def waiting_frac(self, start: float, end: float) -> float:
        """Share of [start, end] in which the trainer had nothing to train on, as the steps that ended there report."""
        waits = [s.report.seconds.get("wait", 0.0) for s in self.of("rl") if start < s.t <= end]
        return min(1.0, sum(waits) / (end - start)) if end > start else 0.0

    def staleness(self, last_steps: int | None = None) -> dict[int, float]:
        """Age in versions -> share of the tokens that RL trained on; over the last steps, or all (None)."""
        steps = self.of("rl")
        tokens: dict[int, int] = {}
        for step in steps if last_steps is None else steps[-last_steps:]:
            for age, n in step.report.staleness.items():
                tokens[age] = tokens.get(age, 0) + n
        total = sum(tokens.values())
        return {age: n / total for age, n in sorted(tokens.items())} if total else {}

    def dropped(self) -> dict[str, int]:
        """Reason -> what was dropped, over the whole run."""
        found: dict[str, int] = {}
        for source in ("midtrain", "sft", "rl"):
            for step in self.of(source):
                for reason, n in step.report.dropped.items():
                    found[reason] = found.get(reason, 0) + n
        return found

    def hack_frac(self, last_steps: int | None = None) -> float | None:
        """Flagged share of the audited attempts that RL trained on; over the last steps, or all (None). None = nobody
        audits."""
        steps = self.of("rl")
        reports = [step.report for step in (steps if last_steps is None else steps[-last_steps:])]
        attempts = sum(report.attempts for report in reports)
        return sum(report.hacked_frac * report.attempts for report in reports) / attempts if attempts else None

    def hacks(self) -> dict[str, int]:
        """Rule of the audit -> attempts that it flagged, over the whole run; the most frequent first."""
        found: dict[str, int] = {}
        for step in self.of("rl"):
            for rule, n in step.report.hacked.items():
                found[rule] = found.get(rule, 0) + n
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def held_out(self) -> list[Eval]:
        """The best eval per version on tasks that were not trained on, by version. Where several temperatures
        were tried, best means: at its best temperature."""
        best: dict[int, Eval] = {}
        for point in self.evals:
            if point.split != "train" and (
                point.version not in best or point.pass_at_1 > best[point.version].pass_at_1
            ):
                best[point.version] = point
        return [best[version] for version in sorted(best)]

    def before_and_after(self) -> tuple[Eval, Eval] | None:
        """The held-out evals between which RL lies: the last of a version that RL started from, and the last
        of all."""
        evals, steps = self.held_out(), self.of("rl")
        if len(evals) < 2 or not steps:
            return None
        earlier = [e for e in evals[:-1] if e.version <= steps[0].report.version]
        return (earlier or evals)[-1 if earlier else 0], evals[-1]


def fold(lines: Iterable[dict[str, Any]], view: RunView | None = None) -> RunView:
    """Take metric lines into a view (a new one if None) and return it. Never raises for what a line holds."""
    view = view or RunView()
    for line in lines:
        kind = line.get("kind", "")
        taker = _TAKERS.get(kind)
        if taker is None:
            view.unknown[kind] = view.unknown.get(kind, 0) + 1
            continue
        try:
            point = _point(kind, line)
        except (msgspec.ValidationError, KeyError) as error:
            view.malformed = [*view.malformed[-19:], f"{kind} in {line.get('process', '?')}: {error}"]
            continue
        view.first = point.t if view.first is None else min(view.first, point.t)
        view.last = point.t if view.last is None else max(view.last, point.t)
        taker(view, point)
    return view


def _point(kind: str, line: dict[str, Any]) -> Point:
    if kind != "train":
        return msgspec.convert(line, _KINDS[kind], strict=False)
    fields = {name: value for name, value in line.items() if name not in ("t", "kind", "process")}
    fields["source"] = _SOURCES.get(fields["source"], fields["source"])
    report = msgspec.convert(fields, StepReport, strict=False, str_keys=True)
    return Step(t=float(line["t"]), process=str(line.get("process", "")), report=report)


def _take_phase(view: RunView, mark: PhaseMark) -> None:
    phase = next((p for p in reversed(view.phases) if p.name == mark.name), None)
    if phase is None or (phase.end is not None and mark.state == "start"):
        phase = Phase(mark.name, mark.t)
        view.phases.append(phase)
    phase.end = mark.t if mark.state == "end" else None
    phase.steps = mark.steps if mark.steps is not None else phase.steps
    phase.seconds = mark.seconds if mark.seconds is not None else phase.seconds


def _take_engine(view: RunView, now: EngineNow) -> None:
    name = f"{now.cluster}/{now.engine}"
    view.engines[name] = now
    view.engine_points.append(now)
    _count(view, f"engine {name}", "sampled_tokens", now.sampled_tokens)


def _take_rollout(view: RunView, now: RolloutNow) -> None:
    view.rollouts[now.cluster] = now
    for counter in ("episodes", "infra_failures", "lost", "hacks", "machine_s", "engine_wait_s"):
        _count(view, f"rollout {now.cluster}", counter, getattr(now, counter))


def _take_attempt(view: RunView, attempt: AttemptEnd) -> None:
    view.attempts.append(attempt)
    for counter, value in (
        ("episodes", 1),
        ("infra_failures", attempt.failure is not None),
        ("lost", not attempt.finished),
        ("hacks", bool(attempt.hacks)),
        ("machine_s", attempt.machine_s),
        ("engine_wait_s", attempt.engine_s),
    ):
        view.totals[counter] = view.totals.get(counter, 0) + value


def _take_experts(view: RunView, experts: Experts) -> None:
    view.experts = experts


def _take_gain(view: RunView, gain: PairedGain) -> None:
    view.gains[gain.version] = gain


def _count(view: RunView, who: str, counter: str, value: float) -> None:
    """A counter that runs from a process's start: where it falls, the process was started again."""
    before = view._counted.get((who, counter), 0)
    view._counted[who, counter] = value
    view.totals[counter] = view.totals.get(counter, 0) + (value - before if value >= before else value)


def _take_span(view: RunView, span: Span) -> None:
    insort(view.spans.setdefault(span.lane, []), span, key=_end)
    view.first = min(view.first or span.start, span.start)


def _take_slot(view: RunView, mark: SlotMark) -> None:
    view.slots[mark.slot] = mark


_KINDS: dict[str, type[Point]] = {
    "phase": PhaseMark,
    "eval": Eval,
    "experts": Experts,
    "gain": PairedGain,
    "attempt": AttemptEnd,
    "cpu": Cpu,
    "heldout": Heldout,
    "publish": Publish,
    "swap": Swap,
    "engine": EngineNow,
    "rollout": RolloutNow,
    "busy": Span,
    "slot": SlotMark,
    "event": Event,
}

_TAKERS: dict[str, Callable[[RunView, Any], None]] = {
    "phase": _take_phase,
    "train": lambda view, point: view.steps.append(point),
    "eval": lambda view, point: view.evals.append(point),
    "experts": _take_experts,
    "gain": _take_gain,
    "attempt": _take_attempt,
    "cpu": lambda view, point: view.cpu.setdefault(point.lane, []).append(point),
    "heldout": lambda view, point: view.heldout.append(point),
    "publish": lambda view, point: view.publishes.append(point),
    "swap": lambda view, point: view.swaps.append(point),
    "engine": _take_engine,
    "rollout": _take_rollout,
    "busy": _take_span,
    "slot": _take_slot,
    "event": lambda view, point: view.events.append(point),
}


def _end(span: Span) -> float:
    return span.end


def _since(spans: list[Span], start: float) -> list[Span]:
    """Spans that reach beyond `start`: a board that looks at the last seconds must not read hours."""
    return spans[bisect_right(spans, start, key=_end) :]


def _covered(spans: list[Span], start: float, end: float) -> float:
    """Seconds of [start, end] that lie in at least one span."""
    covered, reach = 0.0, start
    for span in sorted(spans, key=lambda span: span.start):
        low, high = max(span.start, reach), min(span.end, end)
        if high > low:
            covered += high - low
            reach = high
    return covered
