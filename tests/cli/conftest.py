import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cases.agent import make_agent
from tests.cases.real import SMOKE, RealRun, twinmill
from twinmill.cli.main import main
from twinmill.store.runs import RunFolder


class Said(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that acts."""
    return make_agent(tmp_path_factory.mktemp("agent") / "model")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """The entry point with these arguments, in this very process."""

    def call(*args: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["twinmill", *map(str, args)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        return Said(int(end.value.code or 0), out, err)

    return call


class Finished(NamedTuple):
    root: Path
    folder: RunFolder
    said: str


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, agent: Path) -> Iterator[Finished]:
    """One run of the whole smoke recipe, by hand of a user: all phases, real processes. Read it, do not change it."""
    root = tmp_path_factory.mktemp("finished") / "runs"
    done = twinmill("run", SMOKE, "--root", root, "--set", f"model={agent}")
    assert done.returncode == 0, done.stdout + done.stderr
    yield Finished(root, RunFolder.latest(root), done.stdout)
    with RealRun(root, agent) as run:
        run.no_strays()
