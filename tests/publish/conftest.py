from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.s3_server import S3Server, serving
from twinmill.store.blobs import Blobs, open_blobs


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture(params=["local", "memory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    """An empty store of each kind."""
    if request.param == "s3":
        return request.getfixturevalue("s3").blobs()
    return open_blobs("memory://" if request.param == "memory" else str(tmp_path / "store"))


@pytest.fixture
def local(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "store"))
