"""Colours of the report. The page follows the reader's light or dark setting, the picture (PNG) is light.

Charts are drawn once, by matplotlib. For the page every colour is a CSS variable: matplotlib draws with a
colour that stands for it and means nothing else, and `to_css` puts the variable in its place.
"""

import re
from collections.abc import Mapping

LIGHT = {
    "paper": "#faf9f6",
    "card": "#ffffff",
    "ink": "#1c2330",
    "muted": "#667085",
    "grid": "#e6e4de",
    "blue": "#2b6cb0",
    "sky": "#7fb2e5",
    "green": "#2f8f5b",
    "teal": "#1b8a96",
    "yellow": "#c99a1e",
    "orange": "#d9742b",
    "red": "#c4453c",
    "purple": "#7b55b3",
    "pink": "#c95d92",
    "brown": "#8a6244",
    "grey": "#b4b9c2",
}

DARK = {
    "paper": "#11141a",
    "card": "#191e26",
    "ink": "#e7eaf0",
    "muted": "#98a2b3",
    "grid": "#2a313c",
    "blue": "#5b9fe8",
    "sky": "#2f5f93",
    "green": "#52bd84",
    "teal": "#45bccb",
    "yellow": "#e0bb4a",
    "orange": "#f0985a",
    "red": "#ee766d",
    "purple": "#ae8fe8",
    "pink": "#e88bb8",
    "brown": "#bd9272",
    "grey": "#4d5564",
}

Palette = Mapping[str, str]

MARKERS: Palette = {name: f"#0d0e{number:02x}" for number, name in enumerate(LIGHT)}
"""name -> the colour that stands for its variable while drawing for the page"""

AGES = ("blue", "teal", "yellow", "orange", "red")
"""age in versions -> colour; the last one is "and older" """

DOINGS = {
    "forward": "blue",
    "backward": "blue",
    "step": "blue",
    "compute": "blue",
    "midtrain": "teal",
    "sft": "purple",
    "read": "sky",
    "optimizer": "purple",
    "update": "purple",
    "commit": "orange",
    "reference": "teal",
    "publish": "orange",
    "checkpoint": "brown",
    "eval": "yellow",
    "wait": "grey",
    "prefill": "teal",
    "decode": "green",
    "generate": "green",
    "score": "sky",
    "swap": "red",
    "tools": "yellow",
    "grade": "pink",
}
"""what a span says -> colour; others take turns through `_OTHERS`"""

_OTHERS = ("sky", "pink", "red", "brown", "teal", "purple")


def doing_colours(whats: list[str]) -> dict[str, str]:
    """A colour for each what, known ones first, in a stable order."""
    others = [what for what in whats if what not in DOINGS]
    known = {what: DOINGS[what] for what in DOINGS if what in whats}
    return {**known, **{what: _OTHERS[n % len(_OTHERS)] for n, what in enumerate(others)}}


def variables(palette: Palette) -> str:
    """The palette as CSS declarations: "--ink:#1c2330;..."."""
    return "".join(f"--{name}:{value};" for name, value in palette.items())


def to_css(svg: str) -> str:
    """A matplotlib SVG drawn with MARKERS -> one that is put into the page and takes its colours and font
    from it."""
    names = {value: name for name, value in MARKERS.items()}
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"#0d0e[0-9a-f]{2}", lambda found: f"var(--{names[found[0]]})", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", svg)
    svg = re.sub(r"font: (\w+) ([\d.]+)px [^;\"]+", r"font-weight: \1; font-size: \2px", svg)
    # Its own size gives way to the page's.
    return re.sub(
        r'<svg ([^>]*?)width="[^"]+"', r"<svg \1", re.sub(r'(<svg [^>]*?)height="[^"]+"', r"\1", svg, count=1)
    )
