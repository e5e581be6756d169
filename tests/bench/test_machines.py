"""bench machines at its smallest: every figure is there, and a host without PostgreSQL is told so."""

import json

import pytest

import machines
from twinmill.env.machine import native
from twinmill.env.machine.base import MachineRefused
from twinmill.env.machine.services import postgresql

SMALL = ("--runs", "3", "--starts", "4", "--at-once", "2", "--alive", "2", "--extrapolate", "--postgres", "2")


def played(monkeypatch, capsys, *arguments):
    """(measured, everything printed)"""
    if native.supported():
        pytest.skip(native.supported())
    monkeypatch.setattr("sys.argv", ["machines", *arguments])
    with pytest.raises(SystemExit):
        machines.main()
    printed = capsys.readouterr().out
    return json.loads(printed.splitlines()[-1])["measured"], printed


def test_all_figures_are_measured(monkeypatch, capsys):
    try:
        postgresql.find_postgres()
    except MachineRefused as missing:
        pytest.skip(str(missing))
    measured, _ = played(monkeypatch, capsys, *SMALL)
    wanted = ("p50_ms", "p99_ms", "speedup_over_bwrap_cgroup", "starts_per_s", "alive_10gb", "pg_p50_ms")
    assert all(measured[key] > 0 for key in wanted), measured


def test_a_host_without_postgresql_misses_that_figure_and_says_why(monkeypatch, capsys):
    postgresql.find_postgres.cache_clear()
    monkeypatch.setattr(postgresql, "_folders", lambda: iter(()))
    measured, printed = played(monkeypatch, capsys, *SMALL)
    postgresql.find_postgres.cache_clear()
    assert "pg_p50_ms" not in measured and "apt-get install postgresql" in printed
