"""The two-lane picture: the training mill above, the rollout mills below, who was busy when and with what.

whole run   per lane, bin by bin, the share of the bin that went to each kind of work, stacked
close-up    some seconds from the middle of RL, span by span and attempt by attempt; a line from where a version was
            published to where each engine flipped to it, while attempts went on
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from . import units
from .curves import Axes, dress
from .points import AttemptEnd, Span
from .state import IDLE, RunView
from .theme import Palette, doing_colours

_BINS = 240
_CLOSE_UP_STEPS = 4
_ATTEMPT, _LOST = "attempt", "lost attempt"


class Window(NamedTuple):
    """Seconds since the epoch."""

    start: float
    end: float


class Row(NamedTuple):
    """Where a lane lies in the picture."""

    base: float
    height: float


def whole(view: RunView) -> Window:
    return Window(view.first or 0.0, max(view.last or 1.0, (view.first or 0.0) + 1e-3))


def close_up(view: RunView) -> Window | None:
    """A stretch of RL, a few steps long (2 to 60 s), around the middle flip. None = no engine ever flipped during
    RL."""
    steps = view.of("rl")
    if len(steps) < 2 or not view.swaps:
        return None
    length = max(2.0, min(60.0, _step_s(view) * _CLOSE_UP_STEPS))
    flips = sorted(swap.t for swap in view.swaps if steps[0].t <= swap.t <= steps[-1].t)
    if not flips:
        return None
    middle = flips[len(flips) // 2]
    return Window(middle - length / 2, middle + length / 2)


def bins_for(view: RunView, window: Window) -> int:
    """So many that a bin holds at least one training step: narrower ones would show a step's inside as flicker."""
    if len(view.of("rl")) < 2:
        return _BINS
    return max(40, min(_BINS, int((window.end - window.start) / max(_step_s(view), 1e-3))))


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


def in_flight(attempts: Sequence[AttemptEnd], window: Window, bins: int) -> list[float]:
    """Mean number of attempts in flight, per bin."""
    width = (window.end - window.start) / bins
    found = [0.0] * bins
    for attempt in attempts:
        low, high = max(attempt.start, window.start), min(attempt.end, window.end)
        for n in range(int((low - window.start) / width), min(bins - 1, int((high - window.start) / width)) + 1):
            left = window.start + n * width
            found[n] += max(0.0, min(high, left + width) - max(low, left)) / width
    return found


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


def side_by_side(attempts: Sequence[AttemptEnd], window: Window) -> list[tuple[int, AttemptEnd]]:
    """(row, attempt) for those that reach into the window, in as few rows as keep them from overlapping."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    placed: list[tuple[int, AttemptEnd]] = []
    rows = 0
    for attempt in sorted(attempts, key=lambda attempt: attempt.start):
        if attempt.end <= window.start or attempt.start >= window.end:
            continue
        while busy and busy[0][0] <= attempt.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, rows = rows, rows + 1
        heapq.heappush(busy, (attempt.end, row))
        placed.append((row, attempt))
    return placed


def colours(view: RunView) -> dict[str, str]:
    """What -> colour name, for every kind of work in the run."""
    found = doing_colours(sorted({span.what for spans in view.spans.values() for span in spans}))
    if view.attempts:
        found[_ATTEMPT] = "sky"
        if any(attempt.failure for attempt in view.attempts):
            found[_LOST] = "red"
    return found


def draw_whole(axes: Axes, view: RunView, colour: Palette) -> None:
    window, hues = whole(view), colours(view)
    rows = _rows(view, tall=1.0)
    bins = bins_for(view, window)
    xs = [n * (window.end - window.start) / bins for n in range(bins + 1)]
    for lane, row in rows.items():
        floor = [row.base] * bins
        attempts = view.attempts_of(lane)
        if attempts:
            flying = in_flight(attempts, window, bins)
            shares = {_ATTEMPT: [n / (max(flying) or 1.0) for n in flying]}
        else:
            shares = binned(view.spans.get(lane, []), window, bins)
        for what in sorted(shares, key=lambda what: (what in IDLE, list(hues).index(what))):
            top = [f + row.height * s for f, s in zip(floor, shares[what])]
            axes.stairs(top, xs, baseline=floor, fill=True, color=_hue(colour, hues[what], what), linewidth=0)
            floor = top
    _phases(axes, view, window, colour)
    _frame(axes, rows, colour, window.end - window.start)
    axes.set_xticks(_ticks(window.end - window.start))
    axes.xaxis.set_major_formatter(lambda value, _: units.clock(value))
    note = ", of attempts in flight against the most there were" if view.attempts else ""
    axes.set_xlabel(f"time since the start; height = share of time busy{note}", loc="right")


def draw_close_up(axes: Axes, view: RunView, colour: Palette) -> None:
    window, hues = close_up(view), colours(view)
    assert window is not None
    rows = _rows(view, tall=2.2)
    gap = (window.end - window.start) / 1500
    for lane, row in rows.items():
        attempts = view.attempts_of(lane)
        if attempts:
            _attempts(axes, side_by_side(attempts, window), window, row, colour)
            continue
        for what, found in joined(view.spans.get(lane, []), window, gap).items():
            bars = [(start - window.start, length) for start, length in found]
            axes.broken_barh(bars, (row.base, row.height), color=_hue(colour, hues[what], what), linewidth=0)
    _versions(axes, view, window, colour, rows)
    _frame(axes, rows, colour, window.end - window.start)
    axes.set_xlabel(
        "seconds; each line is one weight version on its way from the trainer into the engines", loc="right"
    )


def height(view: RunView, *, tall: float) -> float:
    """Of the picture, in rows; `tall` is the height of a lane of attempts."""
    return sum(tall if view.attempts_of(lane) else 1.0 for lane in view.lanes())


def _rows(view: RunView, *, tall: float) -> dict[str, Row]:
    """The training mill on top, the rollout mills a little apart below it."""
    rows: dict[str, Row] = {}
    edge = 0.5
    for lane in view.lanes():
        if rows and next(iter(rows)) == "train" and len(rows) == 1:
            edge -= 0.35
        size = tall if view.attempts_of(lane) else 1.0
        rows[lane] = Row(edge - size + 0.1, size - 0.2)
        edge -= size
    return rows


def _step_s(view: RunView) -> float:
    steps = view.of("rl")
    return (steps[-1].t - steps[0].t) / (len(steps) - 1)


def _attempts(axes: Axes, placed: list[tuple[int, AttemptEnd]], window: Window, row: Row, colour: Palette) -> None:
    """One thin bar per attempt, neighbours in two shades, so that flips are seen to fall into the middle of them."""
    bars: dict[tuple[int, bool, bool], list[tuple[float, float]]] = {}
    turn: dict[int, bool] = {}
    for n, attempt in placed:
        turn[n] = not turn.get(n, False)
        start = max(attempt.start, window.start)
        bar = (start - window.start, min(attempt.end, window.end) - start)
        bars.setdefault((n, turn[n], bool(attempt.failure)), []).append(bar)
    thick = row.height / (max(turn, default=0) + 1)
    for (n, dark, lost), found in bars.items():
        hue = colour["red" if lost else "sky"]
        axes.broken_barh(found, (row.base + n * thick, 0.75 * thick), color=hue, alpha=1 if dark else 0.55, linewidth=0)


def _ticks(seconds: float) -> list[float]:
    """At most a dozen, at round times."""
    steps = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
    every = next((step for step in steps if seconds / step <= 12), steps[-1])
    return [float(t) for t in range(0, int(seconds) + 1, every)]


def _hue(colour: Palette, hue: str, what: str) -> str:
    return colour["grid"] if what in IDLE else colour[hue]


def _frame(axes: Axes, rows: dict[str, Row], colour: Palette, seconds: float) -> None:
    dress(axes, colour, "")
    axes.grid(visible=False)
    axes.xaxis.label.set(color=colour["muted"], fontsize=8)
    axes.set_xlim(0, seconds)
    axes.set_ylim(min(row.base for row in rows.values()) - 0.15, 0.85)
    axes.set_yticks([row.base + row.height / 2 for row in rows.values()], list(rows))
    axes.tick_params(axis="y", colors=colour["ink"], labelsize=9)


def _phases(axes: Axes, view: RunView, window: Window, colour: Palette) -> None:
    """Where each phase lies, as names above and thin lines between."""
    for phase in view.phases:
        low, high = phase.start - window.start, (phase.end or window.end) - window.start
        axes.axvline(low, color=colour["muted"], linewidth=0.6, linestyle=":", alpha=0.7)
        if high - low > 0.03 * (window.end - window.start):
            axes.text((low + high) / 2, 0.58, phase.name, ha="center", fontsize=8, color=colour["muted"])


def _versions(axes: Axes, view: RunView, window: Window, colour: Palette, rows: dict[str, Row]) -> None:
    """From the publish of each version to the flip in each engine, and through the attempts that it fell into."""
    below = rows["train"].base if "train" in rows else 0.4
    for publish in (p for p in view.publishes if window.start <= p.t <= window.end):
        x = publish.t - window.start
        axes.text(x, 0.56, f"v{publish.version}", ha="center", fontsize=8, color=colour["orange"])
        for swap in view.swaps:
            engine, rollout = rows.get(f"engine/{swap.cluster}"), rows.get(f"rollout/{swap.cluster}")
            if swap.version != publish.version or engine is None or swap.t > window.end:
                continue
            flip = swap.t - window.start
            top = max(row.base + row.height for row in (engine, rollout) if row is not None)
            axes.plot([x, flip], [below, top], color=colour["orange"], linewidth=0.9, alpha=0.8)
            axes.plot([flip, flip], [engine.base, top], color=colour["orange"], linewidth=1.4)
