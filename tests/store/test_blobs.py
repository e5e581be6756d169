import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from twinmill.store import blobs as blobs_module
from twinmill.store.backends import StoreConfig
from twinmill.store.blobs import Blobs, check_key, digest_of, named_write, open_blobs
from twinmill.store.errors import Corrupt, NotFound, StoreRefused, StoreUnavailable

from .s3_server import S3Server


def test_what_is_put_is_what_is_got(blobs: Blobs) -> None:
    blobs.put("a/b", b"one")
    blobs.put("a/b", b"two")
    assert blobs.get("a/b") == b"two"
    blobs.put("a/empty", b"")
    assert blobs.get("a/empty") == b""


def test_create_if_absent_never_changes_what_is_there(blobs: Blobs) -> None:
    assert blobs.put_new("a/b", b"first")
    assert not blobs.put_new("a/b", b"second")
    assert blobs.get("a/b") == b"first"


def test_a_repeated_claim_is_the_same_claim(blobs: Blobs) -> None:
    assert blobs.claim("k", b"mine")
    assert blobs.claim("k", b"mine")
    assert not blobs.claim("k", b"theirs")


def test_lists_are_sorted_whole_folders(blobs: Blobs) -> None:
    for key in ("x/10", "x/9", "x/1/z", "xy/1", "y"):
        blobs.put(key, b".")
    assert blobs.list("x") == ["x/1/z", "x/10", "x/9"]
    assert blobs.list("x", after="x/10") == ["x/9"]
    assert blobs.list() == ["x/1/z", "x/10", "x/9", "xy/1", "y"]
    assert blobs.list("none") == []


def test_ranges_are_exact_or_an_error(blobs: Blobs) -> None:
    blobs.put("k", b"0123456789")
    assert blobs.get_range("k", 2, 3) == b"234"
    assert blobs.get_range("k", 2, 0) == b""
    with pytest.raises(Corrupt, match="ends at 10"):
        blobs.get_range("k", 8, 3)


def test_absent_objects(blobs: Blobs) -> None:
    assert not blobs.exists("k")
    with pytest.raises(NotFound, match="'k'"):
        blobs.get("k")
    blobs.delete("k")
    blobs.put("k", b"1")
    assert blobs.exists("k")
    blobs.delete("k")
    assert not blobs.exists("k")


def test_refs_are_verified_and_heal(blobs: Blobs) -> None:
    ref = blobs.put_ref("big", b"content")
    assert ref.key == f"big/{digest_of(b'content')}"
    assert blobs.get_ref(ref) == b"content"
    for damage in (b"conten", b"contenT", b""):
        blobs.put(ref.key, damage)
        with pytest.raises(Corrupt, match=ref.key):
            blobs.get_ref(ref)
    assert blobs.put_ref("big", b"content") == ref
    assert blobs.get_ref(ref) == b"content"


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", ".", "a#1", "a\nb"])
def test_keys_that_some_store_could_not_hold_are_refused(key: str) -> None:
    with pytest.raises(StoreRefused, match="no key"):
        check_key(key)


def test_staging_files_are_never_keys_and_are_swept(tmp_path: Path) -> None:
    blobs = open_blobs(f"file://{tmp_path}")
    blobs.put("a/real", b"1")
    torn = tmp_path / "a" / "torn#1"
    torn.write_bytes(b"half an ob")
    fresh = tmp_path / "a" / "fresh#2"
    fresh.write_bytes(b"")
    os.utime(torn, (1, 1))
    assert blobs.list() == ["a/real"]
    assert blobs.sweep() == 1
    assert fresh.exists()
    assert not torn.exists()


def test_wrong_urls_and_settings_say_what_to_mend(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="unknown scheme 'ftp'"):
        open_blobs("ftp://host/dir")
    with pytest.raises(StoreRefused, match="names no bucket"):
        open_blobs("s3:///prefix")
    with pytest.raises(StoreRefused, match="deadline_s is 0"):
        open_blobs("memory://", deadline_s=0)
    with pytest.raises(StoreRefused, match="endpoint is for s3:// only"):
        open_blobs("gs://bucket/x", config=StoreConfig(endpoint="http://localhost"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreRefused, match="cannot make"):
        open_blobs(str(tmp_path / "file" / "store"))


def test_a_missing_bucket_is_named(s3: S3Server) -> None:
    blobs = open_blobs("s3://no-such-bucket/x", config=s3.config)
    with pytest.raises(StoreRefused, match="no such bucket"):
        blobs.put_new("k", b"1")


def test_a_store_that_hangs_is_noticed_within_its_deadline(s3: S3Server) -> None:
    blobs = s3.blobs(deadline_s=1.0)
    blobs.put("k", b"1")
    attempts = {
        "read": lambda: blobs.get("k"),
        "write": lambda: blobs.put_new("new", b"1"),
        "look up": lambda: blobs.exists("k"),
        "list": lambda: blobs.list("x"),
    }
    with s3.stopped():
        for doing, call in attempts.items():
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match=rf"could not {doing} .* in s3://.* deadline of 1 s"):
                call()
            assert time.monotonic() - started < 1.5
    assert blobs.get("k") == b"1"  # and it is well again when the store is


def test_a_store_that_hangs_in_the_middle_of_an_answer_is_noticed() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    held = []

    def half_an_answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            held.append(connection)
            connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: x\r\n"
                b"Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n\r\nhalf"
            )

    threading.Thread(target=half_an_answer, daemon=True).start()
    config = StoreConfig(
        endpoint=f"http://127.0.0.1:{server.getsockname()[1]}", region="x", access_key_id="x", secret_access_key="x"
    )
    started = time.monotonic()
    try:
        with pytest.raises(StoreUnavailable, match="'k'"):
            open_blobs("s3://bucket", config=config, deadline_s=1.0).get("k")
        assert time.monotonic() - started < 2.0
    finally:
        server.close()
        for connection in held:
            connection.close()


def test_a_store_that_is_gone_is_noticed_within_its_deadline() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = StoreConfig(endpoint=f"http://127.0.0.1:{port}", region="x", access_key_id="x", secret_access_key="x")
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        open_blobs("s3://bucket", config=config, deadline_s=1.0).get("k")
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize("fsync", [False, True])
def test_a_full_disk_is_loud_and_leaves_no_torn_object(tmp_path: Path, fsync: bool) -> None:
    """A file-size limit stands in for a full disk: the write ends in the middle with the same kind of error."""
    code = f"""
        import resource, signal
        from twinmill.store.blobs import StoreConfig, open_blobs
        from twinmill.store.errors import StoreFull
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        blobs = open_blobs({str(tmp_path)!r}, config=StoreConfig(fsync={fsync}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        blobs.put("small", b"x")
        for write in (blobs.put, blobs.put_new):
            try:
                write("large", b"x" * 100_000)
            except StoreFull as error:
                assert "large" in str(error) and "free some" in str(error), error
            else:
                raise SystemExit("no error")
        assert blobs.list() == ["small"], blobs.list()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_named_writes_are_crash_points(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(blobs_module, "crash_points", seen.append)
    open_blobs("memory://").put_ref("x", b"1")
    assert seen == ["blob.ref:before", "blob.ref:after"]
    with pytest.raises(ValueError, match="NAMED_WRITES"), named_write("no.such"):
        pass
    monkeypatch.undo()
