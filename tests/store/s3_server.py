"""A real S3-protocol server (moto's) in a process of its own, for as long as a test session."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import boto3

from twinmill.store.backends import StoreConfig
from twinmill.store.blobs import ObjectBlobs, open_blobs

BUCKET = "twinmill-tests"


class S3Server(NamedTuple):
    process: subprocess.Popen
    config: StoreConfig

    def blobs(self, deadline_s: float = 30.0) -> ObjectBlobs:
        """A fresh, empty prefix of the bucket."""
        return open_blobs(f"s3://{BUCKET}/{uuid.uuid4().hex}", config=self.config, deadline_s=deadline_s)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The server hangs: it keeps its connections and answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def serving() -> Iterator[S3Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_up(process, port)
        config = StoreConfig(
            endpoint=f"http://127.0.0.1:{port}",
            region="us-east-1",
            access_key_id="test",
            secret_access_key="test",
        )
        client = boto3.client(
            "s3",
            endpoint_url=config.endpoint,
            region_name=config.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        client.create_bucket(Bucket=BUCKET)
        yield S3Server(process, config)
    finally:
        process.kill()  # ends a stopped process too
        process.wait(timeout=10)


def _wait_until_up(process: subprocess.Popen, port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the S3 server ended with {process.returncode} before it answered")
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the S3 server did not answer within 60 s")
