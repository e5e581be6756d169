"""bench burst at its smallest: every figure is there."""

import json

import pytest

import burst
from twinmill.env.machine import native


def test_all_figures_are_measured(monkeypatch, capsys):
    if native.supported():
        pytest.skip(native.supported())
    monkeypatch.setattr("sys.argv", ["burst", "--cycles", "4", "--at-once", "2", "--scale", "0.02", "--samples", "5"])
    with pytest.raises(SystemExit):
        burst.main()
    measured = json.loads(capsys.readouterr().out.splitlines()[-1])["measured"]
    for key in (
        "sim_s",
        "makespan_error",
        "p99_error",
        "seconds",
        "leaks",
        "bare_makespan_s",
        "holding_p99_foreseen_s",
    ):
        assert isinstance(measured[key], int | float), key
    assert measured["sim_machines"] == 2000 and measured["sim_s"] < 30
