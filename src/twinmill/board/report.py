"""report.html and report.png: what a run leaves behind for people.

The page is one file that needs no network: charts are inline SVG in the page's own colours, so that it reads in light
and dark, wide and narrow. The picture shows the same charts at a glance.
"""

import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from twinmill.records.runs import RunRecord

from . import lanes, units
from .curves import Axes, Curve, curves, legend
from .panels import event_line
from .state import IDLE, RunView
from .summary import gain_of, held_out_words, summary
from .theme import DARK, LIGHT, MARKERS, Palette, to_css, variables

_TEMPLATE = "report.html"
_EVENTS = 200
_PICTURE_CURVES = ("pass", "reward", "staleness", "mismatch", "bytes", "pause")


class Tile(NamedTuple):
    """One figure large enough to be read across a room."""

    name: str
    value: str
    note: str


def write_report(
    view: RunView, folder: str | Path, *, title: str, record: RunRecord | None = None
) -> tuple[Path, Path]:
    """Write report.html and report.png into `folder`; returns their paths. `record`: what the run was started with;
    None leaves the page's last section out."""
    folder = Path(folder)
    page, picture = folder / "report.html", folder / "report.png"
    with _style():
        _replace(page, page_html(view, title=title, record=record).encode())
        _replace(picture, picture_png(view, title=title))
    return page, picture


def page_html(view: RunView, *, title: str, record: RunRecord | None = None) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    # A number and its unit stay on one line.
    environment.filters["tight"] = lambda text: re.sub(r"(?<=\d) (?=[\d%A-Za-z]{1,3}\b|%)", "\u00a0", text)
    sections: dict[str, list[Any]] = {}
    for row in summary(view):
        sections.setdefault(row.section, []).append(row)
    return environment.get_template(_TEMPLATE).render(
        title=title,
        started=_date(view.first),
        seconds=units.clock(view.seconds),
        tiles=tiles(view),
        sections=sections,
        whole=_lanes_svg(view, lanes.draw_whole, 0.45, 1.0) if view.lanes() else "",
        close_up=_lanes_svg(view, lanes.draw_close_up, 0.5, 2.2) if lanes.close_up(view) else "",
        doings=[(what, "grid" if what in IDLE else hue) for what, hue in lanes.colours(view).items()],
        curves=[(curve, _curve_svg(curve, view)) for curve in curves(view)],
        events=[(event.level, event_line(event)) for event in view.events[-_EVENTS:]],
        left_out=max(0, len(view.events) - _EVENTS),
        record=record,
        light=variables(LIGHT),
        dark=variables(DARK),
    )


def tiles(view: RunView) -> list[Tile]:
    """The few figures that come first. A run that has not got that far has fewer."""
    found = []
    pair, evals = view.before_and_after(), view.held_out()
    if pair:
        before, after = pair
        change, _ = gain_of(view, before, after)
        note = f"from {units.percent(before.pass_at_1, 1)}; gain {units.points(change.points)} points"
        interval = f" [{units.points(change.low)}, {units.points(change.high)}]"
        found.append(Tile("held-out pass@1", units.percent(after.pass_at_1, 1), note + interval))
    elif evals:
        found.append(Tile("held-out pass@1", units.percent(evals[-1].pass_at_1, 1), held_out_words(evals[-1])))
    steps = view.of("rl")
    if len(steps) > 1:
        busy = view.busy_frac("train", steps[0].t, steps[-1].t)
        waits = view.waiting_frac(steps[0].t, steps[-1].t)
        found.append(Tile("trainer busy in RL", units.percent(busy), f"waits for episodes {units.percent(waits, 1)}"))
    rows = {(row.section, row.name): row for row in summary(view)}
    for name, key in (
        ("delta published", ("weights", "delta")),
        ("swap pause", ("weights", "swap pause")),
        ("token age", ("loop", "staleness")),
        ("infrastructure", ("health", "infrastructure")),
    ):
        if key in rows:
            value, _, more = rows[key].value.partition(", ")
            found.append(Tile(name, value, f"{more}; {rows[key].note}" if more else rows[key].note))
    return found


def picture_png(view: RunView, *, title: str) -> bytes:
    """The run at a glance, 1800 pixels wide."""
    from matplotlib.figure import Figure

    drawn = [curve for curve in curves(view) if curve.id in _PICTURE_CURVES]
    shows = [(lanes.draw_close_up, 2.2)] if lanes.close_up(view) else []
    shows += [(lanes.draw_whole, 1.0)] if view.lanes() else []
    rows = -(-len(drawn) // 3)
    pictures = [0.4 * lanes.height(view, tall=tall) + 0.75 for _, tall in shows]
    heights = [0.75, *pictures, *([2.35 * rows] if rows else [])]
    figure = Figure(figsize=(12, sum(heights)), dpi=150, facecolor=LIGHT["paper"], layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part in parts:
        part.set_facecolor("none")
    _headline(parts[0], view, title)
    for part, (show, _) in zip(parts[1:], shows):
        axes = part.subplots()
        show(axes, view, LIGHT)
        words = "A few seconds of RL" if show is lanes.draw_close_up else "The whole run"
        axes.set_title(words, loc="left", fontsize=10, fontweight="bold", color=LIGHT["ink"], pad=4)
        if show is shows[0][0]:
            _doings(axes, view)
    if drawn:
        _grid(parts[-1], drawn, view)
    data = io.BytesIO()
    figure.savefig(data, format="png", facecolor=LIGHT["paper"])
    return data.getvalue()


def _grid(part: Any, drawn: list[Curve], view: RunView) -> None:
    """Curves in rows of three."""
    places = part.subplots(-(-len(drawn) // 3), 3, squeeze=False).flatten()
    for axes, curve in zip(places, drawn):
        curve.draw(axes, view, LIGHT)
        axes.set_title(curve.title, loc="left", fontsize=10, fontweight="bold", color=LIGHT["ink"], pad=18)
    for axes in places[len(drawn) :]:
        axes.set_axis_off()


def _headline(part: Any, view: RunView, title: str) -> None:
    part.text(0.01, 0.72, f"twinmill  {title}", fontsize=15, fontweight="bold", color=LIGHT["ink"], va="center")
    when = f"{_date(view.first)}, {units.clock(view.seconds)} long"
    part.text(0.99, 0.72, when, fontsize=9, color=LIGHT["muted"], ha="right", va="center")
    shown = tiles(view)[:5]
    for n, tile in enumerate(shown):
        x = 0.01 + n / max(1, len(shown)) * 0.99
        part.text(x, 0.3, tile.value, fontsize=12, fontweight="bold", color=LIGHT["blue"], va="center")
        part.text(x, 0.02, tile.name, fontsize=8, color=LIGHT["muted"], va="center")


def _doings(axes: Axes, view: RunView) -> None:
    """What the spans' colours mean."""
    from matplotlib.patches import Patch

    hues = lanes.colours(view)
    patches = [Patch(color=LIGHT["grid" if what in IDLE else hue], label=what) for what, hue in hues.items()]
    legend(axes, LIGHT, handles=patches, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(patches),
           handlelength=0.9, handleheight=0.9)  # fmt: skip


def _lanes_svg(view: RunView, draw: Callable[[Axes, RunView, Palette], None], row: float, tall: float) -> str:
    """`row`: inches of one lane; `tall`: how many of them a lane of attempts takes."""
    return _svg((11, 0.5 + row * lanes.height(view, tall=tall)), lambda axes, colour: draw(axes, view, colour))


def _curve_svg(curve: Curve, view: RunView) -> str:
    return _svg((4.6, 2.5), lambda axes, colour: curve.draw(axes, view, colour))


def _svg(size: tuple[float, float], draw: Callable[[Axes, Palette], None]) -> str:
    """One chart for the page, in CSS variables."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.patch.set_visible(False)
    draw(figure.subplots(), MARKERS)
    data = io.StringIO()
    figure.savefig(data, format="svg", transparent=True, metadata={"Date": None})
    return to_css(data.getvalue())


def _style() -> Any:
    """matplotlib settings for these files only."""
    import matplotlib

    return matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "twinmill", "font.family": "DejaVu Sans"})


def _date(t: float | None) -> str:
    return units.DASH if t is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(t))


def _replace(path: Path, data: bytes) -> None:
    """Whole or not at all: a report that is looked at while it is written anew is the old one."""
    aside = path.with_name(f"{path.name}#{os.getpid()}")
    aside.write_bytes(data)
    os.replace(aside, path)
