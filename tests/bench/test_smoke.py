"""Benchmarks without a test of their own, from the command line to the last line, at a size at which figures mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {"startup": [], "engine": ["--runs=1", "--alone"], "cheaters": ["--honest=2"]}
"""program -> arguments"""


def test_no_program_is_forgotten():
    programs = {path.stem for path in (ROOT / "bench").glob("[!_]*.py")}
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert programs - tested == SMALL.keys()


@pytest.mark.slow
@pytest.mark.parametrize("bench", SMALL)
def test_a_program_says_what_it_measured(bench):
    command = [sys.executable, str(ROOT / "bench" / f"{bench}.py"), *SMALL[bench]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == bench and last["measured"] and last["must"].keys() <= last["measured"].keys()
    assert last["ok"] is (done.returncode == 0)
