import pytest

from . import rigs


@pytest.fixture(scope="session")
def real():
    """models/nano on the embedded engine."""
    engine = rigs.embedded()
    yield engine
    engine.close()
