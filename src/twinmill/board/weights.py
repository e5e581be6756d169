"""The weights log as a table, for `twinmill weights log`."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from twinmill.records.weights import VersionKind, WeightVersion

from . import units

_KIND_STYLES = {VersionKind.FULL: "bold", VersionKind.DELTA: "", VersionKind.SKIP: "cyan"}


def weights_table(versions: Iterable[WeightVersion], *, now: float) -> Table:
    """One row per version, in the order given. `now`: seconds since the epoch, for ages."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in (
        "version",
        "kind",
        "parent",
        "step",
        "slots",
        "tensors",
        "bytes",
        "of full",
        "age",
        "model",
        "resumes",
    ):
        right = name in ("version", "parent", "step", "bytes", "of full", "age")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for version in versions:
        changed = sum(patch.codec != "same" for patch in version.tensors)
        share = version.object.bytes / version.full_bytes if version.full_bytes else None
        table.add_row(
            f"v{version.number}",
            Text(version.kind.value, _KIND_STYLES[version.kind]),
            units.DASH if version.parent is None else f"v{version.parent}",
            str(version.step),
            slot_ranges(version.slots),
            f"{changed} of {len(version.tensors)}",
            units.size(version.object.bytes),
            units.percent(share, 1),
            units.clock(now - version.created_at) if version.created_at else units.DASH,
            version.model_digest[:12],
            "yes" if version.checkpoint else units.DASH,
        )
    return table


def slot_ranges(slots: Iterable[int]) -> str:
    """Slots as ranges: (8, 9, 10, 12) -> "8-10, 12"; none is a dash."""
    ranges: list[list[int]] = []
    for slot in sorted(slots):
        if ranges and slot == ranges[-1][1] + 1:
            ranges[-1][1] = slot
        else:
            ranges.append([slot, slot])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges) or units.DASH
