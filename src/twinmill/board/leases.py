"""A server of machines as tables, for `twinmill machines status`."""

from rich.table import Table
from rich.text import Text

from twinmill.records.machines import LeaseEnd, MachinesStatus

from . import units

_STATE_STYLES = {"working": "green", "starting": "yellow", "ending": "dim"}


def summary(status: MachinesStatus, *, now: float) -> Text:
    """One line. `now`: seconds since the epoch."""
    text = Text(f"{status.alive} of at most {status.machines} machines ({status.backend}), up ")
    text.append(units.clock(now - status.started_at))
    if status.draining:
        text.append("; it drains: no new machine is made", "bold yellow")
    return text


def tenants_table(status: MachinesStatus) -> Table:
    """One row for each tenant that may be seen."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("tenant", no_wrap=True)
    for name in ("alive", "most", "creates/min", "of", "created", *(reason.value for reason in LeaseEnd)):
        table.add_column(name, justify="right", no_wrap=True)
    for row in status.tenants:
        numbers = (row.alive, row.machines, row.creates_last_minute, row.creates_per_minute, row.created)
        ends = (row.ended.get(reason.value, 0) for reason in LeaseEnd)
        table.add_row(row.name, *map(str, numbers), *(str(n) if n else units.DASH for n in ends))
    return table


def leases_table(status: MachinesStatus) -> Table:
    """One row for each lease, the oldest first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("lease", "tenant", "machine", "state", "age", "left", "calls"):
        table.add_column(name, justify="right" if name in ("age", "left", "calls") else "left", no_wrap=True)
    for row in status.leases:
        table.add_row(
            row.lease,
            row.tenant,
            row.key,
            Text(row.state, _STATE_STYLES.get(row.state, "")),
            units.short_time(row.age_s),
            units.short_time(row.left_s),
            str(row.calls),
        )
    return table
