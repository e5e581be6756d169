"""The weights log as a table, for `twinmill weights log`."""

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from twinmill.records.weights import VersionKind, WeightVersion

from . import units

_KIND_STYLES = {VersionKind.FULL: "bold", VersionKind.DELTA: ""}


def weights_table(versions: Iterable[WeightVersion], *, now: float) -> Table:
    """One row per version, in the order given. `now`: seconds since the epoch, for ages."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in (
        "version",
        "kind",
        "parent",
        "step",
        "slots",
        "changed",
        "bytes",
        "of full",
        "age",
        "model",
        "resumes",
    ):
        right = name in ("version", "parent", "step", "changed", "bytes", "of full", "age")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for version in versions:
        share = version.payload_bytes / version.full_bytes if version.full_bytes else None
        table.add_row(
            f"v{version.number}",
            Text(version.kind.value, _KIND_STYLES[version.kind]),
            units.DASH if version.parent is None else f"v{version.parent}",
            str(version.step),
            slot_ranges(version.slots),
            units.count(version.changed),
            units.size(version.payload_bytes),
            units.percent(share, 1),
            units.clock(now - version.created_at) if version.created_at else units.DASH,
            version.model_digest[:12],
            "yes" if version.checkpoint else units.DASH,
        )
    return table


def parts_table(version: WeightVersion) -> Table:
    """The objects of a version: one row each."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("object", "tiles", "changed", "bytes", "head"):
        table.add_column(name, justify="left" if name == "object" else "right", no_wrap=True)
    for part in version.parts:
        last = part.first_tile + part.tiles - 1
        table.add_row(
            part.object.digest[:16],
            str(last) if part.tiles == 1 else f"{part.first_tile}-{last}",
            units.count(part.changed),
            units.size(part.object.bytes),
            units.size(part.head_bytes),
        )
    return table


def density_table(groups: Mapping[str, tuple[int, int]]) -> Table:
    """Tensor group -> (elements that changed, elements): one row each, and the whole."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("tensors", "changed", "elements", "share"):
        table.add_column(name, justify="left" if name == "tensors" else "right", no_wrap=True)
    whole = (sum(changed for changed, _ in groups.values()), sum(size for _, size in groups.values()))
    for name, (changed, size) in [*groups.items(), ("all", whole)]:
        style = "bold" if name == "all" else ""
        table.add_row(
            Text(name, style),
            units.count(changed),
            units.count(size),
            units.percent(changed / size if size else None, 2),
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
