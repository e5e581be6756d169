"""A server of machines as tables: every tenant, every lease, every way to end."""

import io

from rich.console import Console

from twinmill.board.leases import leases_table, summary, tenants_table
from twinmill.records.machines import LeaseEnd, LeaseRow, MachinesStatus, TenantRow

STATUS = MachinesStatus(
    backend="native", started_at=1000.0, alive=2, machines=64, draining=True,
    tenants=(
        TenantRow(
            name="acme", alive=2, machines=32, creates_last_minute=7, creates_per_minute=600, created=9,
            ended={"closed": 5, "expired": 2},
        ),
    ),
    leases=tuple(
        LeaseRow(lease=f"00000{n}", tenant="acme", key=f"key-{n}", state=state, age_s=90.0, left_s=12.5, calls=n)
        for n, state in enumerate(("starting", "ready", "working", "ending"))
    ),
)  # fmt: skip


def shown(*things: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    for thing in things:
        console.print(thing)
    return console.file.getvalue()


def test_what_is_up_and_that_it_drains():
    said = shown(summary(STATUS, now=1120.0))
    assert said.startswith("2 of at most 64 machines (native), up ") and "it drains: no new machine is made" in said


def test_tenants_with_every_way_that_a_lease_can_end():
    head, row = shown(tenants_table(STATUS)).splitlines()
    assert head.split()[-len(LeaseEnd) :] == [reason.value for reason in LeaseEnd]
    assert row.split()[:8] == ["acme", "2", "32", "7", "600", "9", "5", "2"]


def test_leases():
    head, *rows = shown(leases_table(STATUS)).splitlines()
    assert head.split() == ["lease", "tenant", "machine", "state", "age", "left", "calls"]
    assert [row.split()[3] for row in rows] == ["starting", "ready", "working", "ending"]
    assert [row.split()[-1] for row in rows] == ["0", "1", "2", "3"]
