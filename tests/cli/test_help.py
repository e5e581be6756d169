"""Help answers at once: no torch, whatever is asked about."""

import subprocess
import sys

import pytest

from tests.cases.real import ROOT, twinmill
from twinmill import __version__
from twinmill.cli.main import COMMANDS

from .conftest import Cli

ALL = (*COMMANDS, "tasks", "episodes", "weights", "machines")
ASK = """
import sys
from twinmill.cli.main import main
for words in {asked!r}:
    sys.argv = ["twinmill", *words, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
heavy = [name for name in ("torch", "matplotlib", "transformers") if name in sys.modules]
assert not heavy, heavy
"""


def test_help_imports_nothing_heavy() -> None:
    asked = [
        (),
        *((name,) for name in ALL),
        ("tasks", "play"),
        ("weights", "materialize"),
        ("weights", "plan"),
        ("episodes", "show"),
        ("machines", "serve"),
        ("machines", "plan"),
    ]
    code = ASK.format(asked=asked)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in ALL:
        assert f" {name} " in done.stdout


def test_help_says_what_parameters_mean() -> None:
    said = twinmill("serve", "--help").stdout
    assert "one bearer key a line" in " ".join(said.replace("│", " ").split())


def test_help_names_every_command_and_what_it_does() -> None:
    done = twinmill("--help")
    assert done.returncode == 0
    assert "torch" not in done.stderr
    for name, (_, text) in COMMANDS.items():
        [line] = [line for line in done.stdout.splitlines() if line.split()[1:2] == [name]]
        assert text[:40] in line


def test_version() -> None:
    assert twinmill("--version").stdout.strip() == __version__


@pytest.mark.parametrize("words", [("bogus",), ("run", "--bogus"), ("tasks", "bogus"), ("weights", "materialize")])
def test_what_cannot_be_read_is_exit_code_2(cli: Cli, words: tuple[str, ...]) -> None:
    said = cli(*words)
    assert said.code == 2
    assert "Traceback" not in said.err + said.out
