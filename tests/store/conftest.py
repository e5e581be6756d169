from collections.abc import Iterator
from pathlib import Path

import pytest

from twinmill.store import blobs as blobs_module
from twinmill.store.backends import StoreConfig
from twinmill.store.blobs import Blobs, open_blobs

from .s3_server import S3Server, serving


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture(params=["local", "synced", "memory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    """An empty store of each kind."""
    if request.param == "s3":
        return request.getfixturevalue("s3").blobs()
    if request.param == "memory":
        return open_blobs("memory://")
    return open_blobs(str(tmp_path / "store"), config=StoreConfig(fsync=request.param == "synced"))


@pytest.fixture
def local(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
def _no_crash_point_survives_a_test() -> Iterator[None]:
    yield
    assert blobs_module.crash_points is blobs_module._no_crash
