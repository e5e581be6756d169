from collections.abc import Iterator
from pathlib import Path

import pytest

from .agent import make_agent
from .real import RealRun


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that acts."""
    return make_agent(tmp_path_factory.mktemp("agent") / "model")


@pytest.fixture
def run(tmp_path: Path, agent: Path) -> Iterator[RealRun]:
    """A run that is not started yet, and of which nothing is left afterwards."""
    with RealRun(tmp_path / "runs", agent) as made:
        yield made
    if made.started:
        made.no_strays(groups=False)
