"""The two-lane picture: the training mill above, the rollout mills below, who was busy when and with what.

whole run   per lane, bin by bin, the share of the bin that went to each kind of work, stacked
close-up    some seconds from the middle of RL, span by span; a line from where a version was published to where
            each engine flipped to it, while episodes went on
"""

from collections.abc import Sequence
from typing import NamedTuple

from . import units
from .curves import Axes, dress
from .points import Span
from .state import IDLE, RunView
from .theme import Palette, doing_colours

_BINS = 240
_CLOSE_UP_STEPS = 4


class Window(NamedTuple):
    """Seconds since the epoch."""

    start: float
    end: float


def whole(view: RunView) -> Window:
    return Window(view.first or 0.0, max(view.last or 1.0, (view.first or 0.0) + 1e-3))


def close_up(view: RunView) -> Window | None:
    """A stretch of RL, a few steps long (2 to 60 s), around the middle flip. None = no engine ever flipped during
    RL."""
    steps = view.of("rl")
    if len(steps) < 2 or not view.swaps:
        return None
    length = (steps[-1].t - steps[0].t) / (len(steps) - 1) * _CLOSE_UP_STEPS
    length = max(2.0, min(60.0, length))
    flips = sorted(swap.t for swap in view.swaps if steps[0].t <= swap.t <= steps[-1].t)
    if not flips:
        return None
    middle = flips[len(flips) // 2]
    return Window(middle - length / 2, middle + length / 2)


def bins_for(view: RunView, window: Window) -> int:
    """So many that a bin holds at least one training step: narrower ones would show a step's inside as flicker."""
    steps = view.of("rl")
    if len(steps) < 2:
        return _BINS
    step_s = (steps[-1].t - steps[0].t) / (len(steps) - 1)
    return max(40, min(_BINS, int((window.end - window.start) / max(step_s, 1e-3))))


def binned(spans: Sequence[Span], window: Window, bins: int) -> dict[str, list[float]]:
    """What -> share of each bin. Where spans of one lane overlap, shares are scaled so that a bin holds 1 at most."""
    width = (window.end - window.start) / bins
    shares: dict[str, list[float]] = {}
    for span in spans:
        low, high = max(span.start, window.start), min(span.end, window.end)
        if high <= low:
            continue
        row = shares.setdefault(span.what, [0.0] * bins)
        first = int((low - window.start) / width)
        last = min(bins - 1, int((high - window.start) / width))
        for n in range(first, last + 1):
            left = window.start + n * width
            row[n] += max(0.0, min(high, left + width) - max(low, left)) / width
    for n in range(bins):
        total = sum(row[n] for row in shares.values())
        if total > 1:
            for row in shares.values():
                row[n] /= total
    return shares


def joined(spans: Sequence[Span], window: Window, gap_s: float) -> dict[str, list[tuple[float, float]]]:
    """What -> (start, length) of what lies in the window; neighbours of one kind that are closer than `gap_s` (less
    than the eye can part) are one, so that a picture of a long run stays small."""
    found: dict[str, list[tuple[float, float]]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        low, high = max(span.start, window.start), min(span.end, window.end)
        if high <= low:
            continue
        row = found.setdefault(span.what, [])
        if row and low - (row[-1][0] + row[-1][1]) < gap_s:
            start = row[-1][0]
            row[-1] = (start, max(high, start + row[-1][1]) - start)
        else:
            row.append((low, high - low))
    return found


def colours(view: RunView) -> dict[str, str]:
    """What -> colour name, for every kind of work in the run."""
    return doing_colours(sorted({span.what for spans in view.spans.values() for span in spans}))


def draw_whole(axes: Axes, view: RunView, colour: Palette) -> None:
    window = whole(view)
    hues, lanes = colours(view), view.lanes()
    bins = bins_for(view, window)
    xs = [n * (window.end - window.start) / bins for n in range(bins + 1)]
    for row, lane in enumerate(lanes):
        floor = [_base(row, lanes)] * bins
        shares = binned(view.spans[lane], window, bins)
        for what in sorted(shares, key=lambda what: (what in IDLE, list(hues).index(what))):
            top = [f + 0.8 * s for f, s in zip(floor, shares[what])]
            axes.stairs(top, xs, baseline=floor, fill=True, color=_hue(colour, hues[what], what), linewidth=0)
            floor = top
    _phases(axes, view, window, colour, len(lanes))
    _frame(axes, lanes, colour, window.end - window.start)
    axes.set_xticks(_ticks(window.end - window.start))
    axes.xaxis.set_major_formatter(lambda value, _: units.clock(value))
    axes.set_xlabel("time since the start; height = share of time busy", loc="right")


def draw_close_up(axes: Axes, view: RunView, colour: Palette) -> None:
    window = close_up(view)
    assert window is not None
    hues, lanes = colours(view), view.lanes()
    gap = (window.end - window.start) / 1500
    for row, lane in enumerate(lanes):
        base = _base(row, lanes)
        for what, bars in joined(view.spans[lane], window, gap).items():
            bars = [(start - window.start, length) for start, length in bars]
            axes.broken_barh(bars, (base, 0.8), color=_hue(colour, hues[what], what), linewidth=0)
    _versions(axes, view, window, colour, lanes)
    _frame(axes, lanes, colour, window.end - window.start)
    axes.set_xlabel(
        "seconds; each line is one weight version on its way from the trainer into the engines", loc="right"
    )


def _ticks(seconds: float) -> list[float]:
    """At most a dozen, at round times."""
    steps = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
    every = next((step for step in steps if seconds / step <= 12), steps[-1])
    return [float(t) for t in range(0, int(seconds) + 1, every)]


def _hue(colour: Palette, hue: str, what: str) -> str:
    return colour["grid"] if what in IDLE else colour[hue]


def _base(row: int, lanes: Sequence[str]) -> float:
    """Bottom of a row. The first is on top; the rollout mills stand apart from the training mill."""
    apart = 0.35 if row and lanes[0] == "train" else 0.0
    return -row - apart - 0.4


def _frame(axes: Axes, lanes: Sequence[str], colour: Palette, seconds: float) -> None:
    dress(axes, colour, "")
    axes.grid(visible=False)
    axes.xaxis.label.set(color=colour["muted"], fontsize=8)
    axes.set_xlim(0, seconds)
    axes.set_ylim(_base(len(lanes) - 1, lanes) - 0.15, 0.75)
    axes.set_yticks([_base(row, lanes) + 0.4 for row in range(len(lanes))], lanes)
    axes.tick_params(axis="y", colors=colour["ink"], labelsize=9)


def _phases(axes: Axes, view: RunView, window: Window, colour: Palette, rows: int) -> None:
    """Where each phase lies, as names above and thin lines between."""
    for phase in view.phases:
        low, high = phase.start - window.start, (phase.end or window.end) - window.start
        axes.axvline(low, color=colour["muted"], linewidth=0.6, linestyle=":", alpha=0.7)
        if high - low > 0.03 * (window.end - window.start):
            axes.text((low + high) / 2, 0.56, phase.name, ha="center", fontsize=8, color=colour["muted"])


def _versions(axes: Axes, view: RunView, window: Window, colour: Palette, lanes: Sequence[str]) -> None:
    """From the publish of each version to the flip in each engine."""
    inside = [p for p in view.publishes if window.start <= p.t <= window.end]
    below = _base(0, lanes) if "train" in lanes else 0.4
    for publish in inside:
        x = publish.t - window.start
        axes.text(x, 0.5, f"v{publish.version}", ha="center", fontsize=8, color=colour["orange"])
        for swap in view.swaps:
            lane = f"engine/{swap.cluster}"
            if swap.version != publish.version or lane not in lanes or swap.t > window.end:
                continue
            top = _base(lanes.index(lane), lanes) + 0.8
            flip = swap.t - window.start
            axes.plot([x, flip], [below, top], color=colour["orange"], linewidth=0.9, alpha=0.8)
            axes.plot([flip, flip], [top - 0.8, top], color=colour["orange"], linewidth=1.4)
