import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinmill.publish.serve import MirrorServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MirrorServer]:
    folder = tmp_path / "mirror"
    (folder / "weights/objects").mkdir(parents=True)
    (folder / "weights/objects/ab").write_bytes(bytes(range(256)) * 10_000)
    (folder / "weights/objects/cd#123").write_bytes(b"half")
    (folder / "empty").write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    with MirrorServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def ask(server: MirrorServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


WHOLE = bytes(range(256)) * 10_000


def test_objects_and_ranges(server: MirrorServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert ask(server, "/weights/objects/ab")[:2] == (200, WHOLE)
    for asked, wanted in {"0-0": WHOLE[:1], "5-300": WHOLE[5:301], "2559990-": WHOLE[-10:], "-7": WHOLE[-7:]}.items():
        status, body, headers = ask(server, "/weights/objects/ab", Range=f"bytes={asked}")
        assert (status, body) == (206, wanted)
        assert headers["Content-Range"].endswith(f"/{len(WHOLE)}")
    assert ask(server, "/weights/objects/ab", Range="bytes=2559999-99999999")[1] == WHOLE[-1:]
    status, body, headers = ask(server, "/weights/objects/ab", method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(WHOLE)))
    assert ask(server, "/empty")[:2] == (200, b"")


@pytest.mark.parametrize("asked", ["bytes=2560000-", "bytes=9-3", "bytes=-", "bytes=-0", "lines=1-2", "bytes=1-2,4-5"])
def test_ranges_that_cannot_be(server: MirrorServer, asked: str) -> None:
    assert ask(server, "/weights/objects/ab", Range=asked)[0] == 416


@pytest.mark.parametrize(
    "path",
    ["/none", "/weights", "/", "/../secret", "/%2e%2e/secret", "/link", "/weights/objects/cd%23123", "//etc/passwd"],
)
def test_nothing_else_is_served(server: MirrorServer, path: str) -> None:
    assert ask(server, path)[:2] == (404, b"")


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
def test_nothing_can_be_written(server: MirrorServer, method: str) -> None:
    assert ask(server, "/weights/objects/ab", method=method)[0] == 501
    assert (server.folder / "weights/objects/ab").read_bytes() == WHOLE
