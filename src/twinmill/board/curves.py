"""The report's curves: each one draws itself on matplotlib axes, in either palette, and says when it has
nothing to show.

A curve's title says what is plotted, its note how to read it and what it rests on.
"""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any, NamedTuple

from twinmill.records.samples import StepReport

from . import units
from .state import IDLE, RunView
from .theme import AGES, Palette, doing_colours

_HUES = ("green", "blue", "yellow", "purple", "teal")  # of clusters

Axes = Any  # matplotlib is imported by who draws; it is slow to import and ships no strict types


class Curve(NamedTuple):
    id: str
    title: str
    note: str
    shown: Callable[[RunView], bool]
    draw: Callable[[Axes, RunView, Palette], None]


def curves(view: RunView) -> list[Curve]:
    """Those that this run has data for."""
    return [curve for curve in ALL if curve.shown(view)]


def dress(axes: Axes, colour: Palette, xlabel: str, ylabel: str = "") -> None:
    """What all axes of the report share."""
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colour["grid"])
    axes.grid(axis="y", color=colour["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=colour["muted"], labelsize=8, length=0, pad=4)
    axes.set_xlabel(xlabel, color=colour["muted"], fontsize=8, loc="right", labelpad=2)
    if ylabel:
        axes.set_ylabel(ylabel, color=colour["muted"], fontsize=8)


def legend(axes: Axes, colour: Palette, **settings: Any) -> None:
    defaults = {"frameon": False, "fontsize": 8, "labelcolor": colour["muted"], "handlelength": 1.2}
    axes.legend(**{**defaults, "borderaxespad": 0.2, "columnspacing": 1.2, **settings})


def smooth(values: Sequence[float]) -> list[float]:
    """Centred mean over a tenth of the values, less at the ends: it does not lag behind a fall as a trailing mean
    does."""
    half = len(values) // 20
    return [mean(values[max(0, n - half) : n + half + 1]) for n in range(len(values))]


def _line(axes: Axes, xs: Sequence[float], ys: Sequence[float], colour: str, label: str = "") -> None:
    """Raw values faintly, their smoothed course on top."""
    axes.plot(xs, ys, color=colour, linewidth=0.8, alpha=0.35)
    axes.plot(xs, smooth(ys), color=colour, linewidth=1.8, label=label or None)


def _percent_axis(axes: Axes, top: float = 1.0) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set_ylim(0, top)


def _loss(source: str) -> Callable[[Axes, RunView, Palette], None]:
    def draw(axes: Axes, view: RunView, colour: Palette) -> None:
        steps = [(s.report.step, s.loss) for s in view.of(source) if s.loss is not None]
        xs, ys = [s for s, _ in steps], [loss for _, loss in steps]
        _line(axes, xs, ys, colour["blue"], "training")
        if source == "midtrain" and view.heldout:
            at = {"before": xs[0], "after": xs[-1]}
            points = [(p.step if p.step is not None else at.get(p.stage, xs[-1]), p.loss) for p in view.heldout]
            axes.plot(*zip(*points), color=colour["orange"], marker="o", markersize=5, linestyle=":", linewidth=1,
                      label="held out")  # fmt: skip
            for x, y in points:
                side = "left" if x < (xs[0] + xs[-1]) / 2 else "right"
                axes.annotate(f"{y:.2f}", (x, y), (0, 6), textcoords="offset points", ha=side, fontsize=8,
                              color=colour["orange"])  # fmt: skip
            legend(axes, colour)
        dress(axes, colour, "step", "nats per token")

    return draw


def _reward(axes: Axes, view: RunView, colour: Palette) -> None:
    steps = [s.report for s in view.of("rl") if s.report.reward is not None]
    _line(axes, [r.step for r in steps], [r.reward or 0.0 for r in steps], colour["blue"])
    dress(axes, colour, "step")


def _pass_at_1(axes: Axes, view: RunView, colour: Palette) -> None:
    evals = view.held_out()
    xs, ys = [e.version for e in evals], [e.pass_at_1 for e in evals]
    below = [e.pass_at_1 - e.ci_low for e in evals]
    above = [e.ci_high - e.pass_at_1 for e in evals]
    pair = view.before_and_after()
    if pair:
        axes.axhspan(pair[0].ci_low, pair[0].ci_high, color=colour["grey"], alpha=0.18, linewidth=0)
        axes.axhline(pair[0].pass_at_1, color=colour["muted"], linewidth=0.8, linestyle=":")
    axes.errorbar(xs, ys, yerr=[below, above], color=colour["green"], marker="o", markersize=5, linewidth=1.8,
                  elinewidth=1, capsize=3)  # fmt: skip
    for e in {evals[0].version: evals[0], evals[-1].version: evals[-1]}.values():
        axes.annotate(f"{100 * e.pass_at_1:.1f} %\nn = {e.tasks}", (e.version, e.ci_high), (0, 3), ha="center",
                      textcoords="offset points", fontsize=8, color=colour["ink"], linespacing=1.3)  # fmt: skip
    _percent_axis(axes, min(1.08, max(e.ci_high for e in evals) + 0.2))
    axes.margins(x=0.12)
    dress(axes, colour, "weight version")


def _varied(axes: Axes, view: RunView, colour: Palette) -> None:
    steps = [s.report for s in view.of("rl")]
    _line(axes, [r.step for r in steps], [r.varied_frac for r in steps], colour["purple"])
    _percent_axis(axes)
    dress(axes, colour, "step")


def _staleness(axes: Axes, view: RunView, colour: Palette) -> None:
    steps = [s.report for s in view.of("rl") if sum(s.report.staleness.values())]
    xs = [r.step for r in steps]
    oldest = len(AGES) - 1
    floor = [0.0] * len(xs)
    for age in sorted({min(a, oldest) for r in steps for a in r.staleness}):
        share = [
            sum(n for a, n in r.staleness.items() if min(a, oldest) == age) / sum(r.staleness.values()) for r in steps
        ]
        top = [f + s for f, s in zip(floor, share)]
        label = "0: this very version" if age == 0 else f"{age}" + (" and more" if age == oldest else "")
        axes.fill_between(xs, floor, top, color=colour[AGES[age]], alpha=0.85, linewidth=0, label=label, step="mid")
        floor = top
    _percent_axis(axes)
    dress(axes, colour, "step")
    legend(axes, colour, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    axes.margins(x=0)


def _mismatch(axes: Axes, view: RunView, colour: Palette) -> None:
    for which, hue, label in (("stale", "orange", "older versions"), ("fresh", "blue", "same version")):
        found = [(s.report.step, getattr(s.report, which)) for s in view.of("rl")]
        points = [(step, m.k3) for step, m in found if m.tokens and m.k3 > 0]
        if points:
            xs, ys = zip(*points)
            axes.plot(xs, ys, color=colour[hue], linewidth=1.4, label=label)
    axes.set_yscale("log")
    axes.minorticks_off()
    dress(axes, colour, "step")
    legend(axes, colour, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _step_time(axes: Axes, view: RunView, colour: Palette) -> None:
    """Stacked; what took a small share of the whole is summed up as "other", so that few colours suffice."""
    reports = [step.report for step in view.of("rl") if step.report.seconds]
    xs = [report.step for report in reports]
    total: dict[str, float] = {}
    for report in reports:
        for phase, seconds in _parts(report).items():
            total[phase] = total.get(phase, 0.0) + seconds
    large = sorted(total, key=lambda phase: -total[phase])[:5]
    large = [phase for phase in large if phase in IDLE] + [phase for phase in large if phase not in IDLE]
    hues = {**doing_colours(large), "other": "brown"}
    floor = [0.0] * len(xs)
    for phase in [*large, "other"] if len(total) > len(large) else large:
        own = [_parts(r).get(phase, 0.0) for r in reports]
        if phase == "other":
            own = [sum(s for name, s in _parts(r).items() if name not in large) for r in reports]
        top = [f + s for f, s in zip(floor, own)]
        axes.fill_between(xs, floor, top, color=colour[hues[phase]], alpha=0.85, linewidth=0, label=phase, step="mid")
        floor = top
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} s")
    dress(axes, colour, "step")
    legend(axes, colour, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6)


def _parts(report: StepReport) -> dict[str, float]:
    return {phase: seconds for phase, seconds in report.seconds.items() if phase != "total"}


def _tokens(axes: Axes, view: RunView, colour: Palette) -> None:
    start = view.first or 0.0
    for n, cluster in enumerate(sorted({point.cluster for point in view.engine_points})):
        points = [point for point in view.engine_points if point.cluster == cluster]
        rates = [point.tokens_per_s for point in points]
        _line(axes, [(point.t - start) / 60 for point in points], rates, colour[_HUES[n % len(_HUES)]], cluster)
    axes.set_ylim(bottom=0)
    dress(axes, colour, "minutes")
    legend(axes, colour, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)


def _bytes(axes: Axes, view: RunView, colour: Palette) -> None:
    xs = [p.version for p in view.publishes]
    axes.bar(xs, [p.delta_bytes for p in view.publishes], color=colour["teal"], width=0.8, label="published")
    axes.plot(xs, [p.full_bytes for p in view.publishes], color=colour["muted"], linewidth=1.2, linestyle="--",
              label="whole model")  # fmt: skip
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: units.size(value))
    dress(axes, colour, "weight version")
    legend(axes, colour, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _pause(axes: Axes, view: RunView, colour: Palette) -> None:
    for n, cluster in enumerate(sorted({swap.cluster for swap in view.swaps})):
        swaps = [swap for swap in view.swaps if swap.cluster == cluster]
        axes.scatter([s.version for s in swaps], [1e3 * s.pause_s for s in swaps], s=10, alpha=0.85,
                     color=colour[_HUES[n % len(_HUES)]], linewidths=0, label=cluster)  # fmt: skip
    mended = [swap for swap in view.swaps if swap.repaired]
    if mended:
        axes.scatter([s.version for s in mended], [1e3 * s.pause_s for s in mended], s=50, facecolors="none",
                     edgecolors=colour["red"], linewidths=1.2, label="repaired")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
    dress(axes, colour, "weight version")
    legend(axes, colour, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)


def _replay(axes: Axes, view: RunView, colour: Palette) -> None:
    steps = [s.report for s in view.of("rl") if s.report.tokens]  # a step without variance replays nothing
    xs = [r.step for r in steps]
    for hue, label, values in (
        ("orange", "ratio clipped (tokens)", [r.clipped_frac for r in steps]),
        ("purple", "experts not replayed", [1 - r.replayed_frac for r in steps]),
    ):
        axes.plot(xs, [100 * value for value in values], color=colour[hue], linewidth=1.4, label=label)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    dress(axes, colour, "step")
    legend(axes, colour, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _trained_on(source: str) -> Callable[[RunView], bool]:
    return lambda view: any(step.loss is not None for step in view.of(source))


def _compared(view: RunView) -> bool:
    return any(m.tokens and m.k3 > 0 for step in view.of("rl") for m in (step.report.fresh, step.report.stale))


ALL = (
    Curve("midtrain", "Mid-training loss", "On packed code; held out by file.",
          _trained_on("midtrain"), _loss("midtrain")),
    Curve("sft", "SFT loss", "Imitating the scripted expert's episodes, per trained token.",
          _trained_on("sft"), _loss("sft")),
    Curve("pass", "pass@1 on held-out tasks",
          "Bars: the interval the evaluator reports. Grey band: the start of RL. Small n, wide bars.",
          lambda view: bool(view.held_out()), _pass_at_1),
    Curve("reward", "Reward", "Mean over a step's attempts at training tasks; not the held-out score.",
          lambda view: any(step.report.reward is not None for step in view.of("rl")), _reward),
    Curve("varied", "Groups with any variance", "Only these carry a gradient: all right or all wrong teaches nothing.",
          lambda view: bool(view.of("rl")), _varied),
    Curve("staleness", "Age of trained tokens", "In weight versions; share of each step's tokens.",
          lambda view: bool(view.staleness()), _staleness),
    Curve("mismatch", "Trainer against engine",
          "k3 estimate of the KL divergence. Same version: numerics alone; older: numerics and staleness.",
          _compared, _mismatch),
    Curve("replay", "Clipped, and not replayed",
          "Share of tokens whose importance weight was cut; share of expert choices that were not the recorded ones.",
          lambda view: bool(view.of("rl")), _replay),
    Curve("time", "A step's time", "Where the trainer's seconds went, by phase.",
          lambda view: any(step.report.seconds for step in view.of("rl")), _step_time),
    Curve("tokens", "Tokens sampled per second", "By cluster, evals included.",
          lambda view: any(point.tokens_per_s for point in view.engine_points), _tokens),
    Curve("bytes", "Bytes per published version", "Logarithmic. A delta holds what changed since the version before.",
          lambda view: any(p.delta_bytes > 0 for p in view.publishes), _bytes),
    Curve("pause", "Swap pause", "Time in which an engine's generation stood still for a new version.",
          lambda view: bool(view.swaps), _pause),
)  # fmt: skip
