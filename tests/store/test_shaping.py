"""A link is never faster than it says. That it is hardly slower, bench/_link.py measures alone on a machine."""

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from msgspec import structs

from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.flight import Progress, TransferConfig
from twinmill.store.proxy.shaping import Fall, Outage, Shape, ShapingProxy
from twinmill.store.sinks import Buffers
from twinmill.store.spans import Want
from twinmill.store.transfer import download, upload

from .s3_server import S3Server


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends everything back."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass  # the link was cut

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[:2]
    server.close()


def there_and_back(port: int, data: bytes) -> float:
    """Seconds until all of `data` has come back as it was."""
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        threading.Thread(target=send, args=(connection, data), daemon=True).start()
        got = bytearray()
        while len(got) < len(data):
            more = connection.recv(65536)
            if not more:
                raise ConnectionError(f"ended after {len(got)} of {len(data)} bytes")
            got += more
    assert got == data
    return time.monotonic() - started


def send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the link was cut: the reader says so
        connection.sendall(data)


DATA = random.Random(0).randbytes(200_000)


def test_bandwidth_by_direction(echo: tuple[str, int]) -> None:
    for shape in (Shape(up_bytes_per_s=400_000), Shape(down_bytes_per_s=400_000)):
        with ShapingProxy(echo, shape) as proxy:
            assert 0.45 < there_and_back(proxy.port, DATA) < 10
            assert proxy.up.bytes == proxy.down.bytes == len(DATA)
            slow = proxy.up if shape.up_bytes_per_s else proxy.down
            assert slow.busy_s >= 0.999 * len(DATA) / 400_000
            assert 0.1 < slow.use(400_000) <= 1.001


def test_connections_share_the_link(echo: tuple[str, int]) -> None:
    with ShapingProxy(echo, Shape(up_bytes_per_s=800_000)) as proxy:
        started = time.monotonic()
        threads = [threading.Thread(target=there_and_back, args=(proxy.port, DATA)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert time.monotonic() - started > 3 * len(DATA) / 800_000 - 0.05
        assert proxy.up.bytes == 3 * len(DATA)
        proxy.forget()
        assert proxy.up.bytes == 0 and proxy.up.use(1.0) == 0.0


def test_a_round_trip_and_one_to_connect(echo: tuple[str, int]) -> None:
    with ShapingProxy(echo, Shape(rtt_s=0.1)) as proxy:
        assert 0.2 <= there_and_back(proxy.port, b"x") < 5
        assert 0.2 <= there_and_back(proxy.port, DATA) < 10


def test_one_connection_gets_a_window_per_round_trip(echo: tuple[str, int]) -> None:
    with ShapingProxy(echo, Shape(rtt_s=0.1, window_bytes=100_000, up_bytes_per_s=10_000_000)) as proxy:
        assert there_and_back(proxy.port, DATA * 2) > 0.1 + 3 * 0.1


def test_a_cut_link_resets_and_a_silent_one_waits(echo: tuple[str, int]) -> None:
    with ShapingProxy(echo, Shape(up_bytes_per_s=400_000)) as proxy:
        threading.Timer(0.1, proxy.fall, (Fall.CUT,)).start()
        with pytest.raises(ConnectionError):
            there_and_back(proxy.port, DATA)
        with pytest.raises(ConnectionError):
            there_and_back(proxy.port, b"x")
        proxy.mend()
        time.sleep(0.05)
        there_and_back(proxy.port, DATA)
        proxy.fall(Fall.SILENT)
        time.sleep(0.05)
        threading.Timer(0.3, proxy.mend).start()
        assert there_and_back(proxy.port, b"x") > 0.25


def test_outages_by_script(echo: tuple[str, int]) -> None:
    outages = [Outage(0.0, 0.4, Fall.SILENT), Outage(0.6, 30.0, Fall.CUT)]
    with ShapingProxy(echo, Shape(), outages) as proxy:
        started = time.monotonic()
        there_and_back(proxy.port, b"x")
        assert time.monotonic() - started > 0.3
        time.sleep(max(0.0, started + 0.8 - time.monotonic()))
        with pytest.raises(ConnectionError):
            there_and_back(proxy.port, b"x")


def test_impossible_links_are_refused() -> None:
    with pytest.raises(ValueError, match="want numbers >= 0"):
        Shape(rtt_s=-1)
    with pytest.raises(RuntimeError, match="did not start"), ShapingProxy(("127.0.0.1", 1), Shape(), port=1 << 20):
        pass


def test_as_a_program(echo: tuple[str, int]) -> None:
    command = [sys.executable, "-m", "twinmill.store.proxy.shaping", f"{echo[0]}:{echo[1]}", "--rtt", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            assert there_and_back(port, b"x") >= 0.1
        finally:
            process.kill()


@contextmanager
def far(s3: S3Server, shape: Shape, outages: list[Outage] | None = None) -> Iterator[tuple[ShapingProxy, Blobs]]:
    port = int(s3.config.endpoint.rpartition(":")[2])
    with ShapingProxy(("127.0.0.1", port), shape, outages or ()) as proxy:
        yield proxy, open_blobs(s3.blobs().url, config=structs.replace(s3.config, endpoint=proxy.url))


PARTS = [random.Random(i).randbytes(100_000) for i in range(16)]


@pytest.mark.parametrize("fall", list(Fall))
def test_a_transfer_outlives_an_outage(s3: S3Server, fall: Fall) -> None:
    config = TransferConfig(deadline_s=3.0, silence_s=1.0, backoff_s=0.1, retries=30, seed=1)
    shape = Shape(up_bytes_per_s=2_000_000, down_bytes_per_s=2_000_000, rtt_s=0.02)
    with far(s3, shape, [Outage(0.4, 1.0, fall)]) as (proxy, blobs):
        started, seen = time.monotonic(), list[Progress]()
        refs = upload(blobs, PARTS, config, seen.append, prefix="o")
        assert time.monotonic() - started > 1.4
        proxy.fall(fall)
        threading.Timer(0.5, proxy.mend).start()
        sink = Buffers()
        download(blobs, refs, sink, config)
        assert [bytes(sink[Want.of(ref)]) for ref in refs] == PARTS


def test_too_many_streams_for_a_slow_link_become_fewer(s3: S3Server) -> None:
    """Sixteen at once would each take 1.6 s, where each may take 0.9."""
    with far(s3, Shape(up_bytes_per_s=1_000_000)) as (_, blobs):
        config = TransferConfig(streams=16, deadline_s=0.9, backoff_s=0.01, retries=20, seed=1)
        seen: list[Progress] = []
        refs = upload(blobs, PARTS, config, seen.append, prefix="o")
        assert seen[-1].retries > 0
        assert [ref.bytes for ref in refs] == [100_000] * 16
