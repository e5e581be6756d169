"""Numbers as short text. None is a dash everywhere: not measured is not zero."""

from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"
DASH = "–"


def percent(value: float | None, digits: int = 0) -> str:
    """0.385 -> "39 %"."""
    return DASH if value is None else f"{100 * value:.{digits}f} %"


def points(value: float | None) -> str:
    """A difference of two shares, in percentage points with its sign: 0.072 -> "+7.2"."""
    return DASH if value is None else f"{100 * value:+.1f}".replace("-", "−")


def size(value: float | None) -> str:
    """Bytes in powers of ten: 212_400 -> "212 kB"."""
    if value is None:
        return DASH
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"


def count(value: float | None) -> str:
    """1_234_567 -> "1.23 M"."""
    if value is None:
        return DASH
    if value < 10_000:
        return f"{value:,.0f}".replace(",", " ")
    if value < 999_500:
        return f"{value / 1e3:.0f} k"
    return f"{value / 1e6:.2f} M" if value < 999_500_000 else f"{value / 1e9:.2f} G"


def clock(seconds: float | None) -> str:
    """271 -> "4:31"; 3971 -> "1:06:11"."""
    if seconds is None:
        return DASH
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def short_time(seconds: float | None) -> str:
    """0.0031 -> "3.1 ms"; 4.25 -> "4.2 s"."""
    if seconds is None:
        return DASH
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.0995 else f"{seconds * 1e3:.1f} ms"


def small(value: float | None) -> str:
    """A quantity that spans decades: 1.2e-6 -> "1.2e-06"; exactly zero is "0"."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    return f"{value:.3g}" if 1e-2 <= abs(value) < 1e4 else f"{value:.1e}"


def sparkline(values: Sequence[float], width: int) -> str:
    """`values` in `width` columns at most (older ones averaged together), from their least to their
    greatest."""
    if not values or width < 1:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    if high == low:
        return _BLOCKS[3] * len(values)
    return "".join(_BLOCKS[min(7, int(8 * (v - low) / (high - low)))] for v in values)


def bar(share: float, width: int) -> str:
    """A share of 1 as blocks: 0.71, 10 -> "███████░░░"."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)
