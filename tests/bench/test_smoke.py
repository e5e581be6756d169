"""Every benchmark's program, from its command line to its last line, at a size at which its figures mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    "startup": [],
    "machines": ["--runs=3", "--starts=8", "--at-once=2", "--alive=4"],
    "burst": ["--cycles=12", "--at-once=2"],
    "engine": ["--runs=1", "--alone"],
    "cheaters": ["--honest=2"],
    "parity": ["--tokens=1500"],
    "agents": ["--machines=8"],
    "trl": None,
    "overlap": None,
    "learn": None,
}
"""program -> arguments; None = its runs of whole recipes take minutes, see test_real_sides.py"""


def test_no_program_is_forgotten():
    assert SMALL.keys() == {path.stem for path in (ROOT / "bench").glob("[!_]*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("bench", [name for name, arguments in SMALL.items() if arguments is not None])
def test_a_program_says_what_it_measured(bench):
    command = [sys.executable, str(ROOT / "bench" / f"{bench}.py"), *SMALL[bench]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["bench"] == bench and last["measured"] and last["must"].keys() <= last["measured"].keys()
    assert last["ok"] is (done.returncode == 0)
