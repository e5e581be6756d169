import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from blake3 import blake3

from twinmill.store.blobs import digest_of, open_blobs
from twinmill.store.errors import StoreRefused
from twinmill.store.sinks import PIECE_BYTES, Buffers, Folder
from twinmill.store.spans import Span, Want

BODY = random.Random(0).randbytes(3 * PIECE_BYTES + 1000)
WANT = Want("a/b", 0, len(BODY), digest_of(BODY), whole=True)


def write(sink: Folder | Buffers, offset: int, size: int, body: bytes = BODY) -> None:
    sink.write(WANT, offset, memoryview(body)[offset : offset + size])


def left(sink: Folder) -> list[Span]:
    spans = sink.missing(WANT)
    assert spans is not None
    return spans


def test_a_file_appears_when_it_is_whole_and_right(tmp_path: Path) -> None:
    sink = Folder(tmp_path)
    assert left(sink) == [Span(0, len(BODY))]
    rng = random.Random(1)
    cuts = sorted({0, len(BODY), *(rng.randrange(len(BODY)) for _ in range(20))})
    for low, high in rng.sample(list(itertools.pairwise(cuts)), len(cuts) - 1):
        assert not (tmp_path / "a/b").exists()
        write(sink, low, high - low)
    assert sink.settle(WANT) is None
    assert (tmp_path / "a/b").read_bytes() == BODY
    assert os.listdir(tmp_path / "a") == ["b"]
    assert left(sink) == [], "what is there is not fetched"
    assert sink.settle(WANT) is None


def test_parts_that_arrived_whole_are_kept_for_the_next(tmp_path: Path) -> None:
    first = Folder(tmp_path)
    left(first)
    write(first, PIECE_BYTES, PIECE_BYTES + 5)
    write(first, 3 * PIECE_BYTES, 1000)
    first.close()
    second = Folder(tmp_path)
    spans = left(second)
    assert spans == [Span(0, PIECE_BYTES), Span(2 * PIECE_BYTES, PIECE_BYTES)]
    for span in spans:
        write(second, span.offset, span.bytes)
    assert second.settle(WANT) is None
    assert (tmp_path / "a/b").read_bytes() == BODY


@pytest.mark.parametrize("at", [0, PIECE_BYTES + 17, 3 * PIECE_BYTES + 999])
def test_a_part_that_rotted_meanwhile_is_fetched_again(tmp_path: Path, at: int) -> None:
    first = Folder(tmp_path)
    left(first)
    write(first, 0, len(BODY))
    first.close()
    with open(tmp_path / "a/b#0", "r+b") as file:
        file.seek(at)
        file.write(bytes([BODY[at] ^ 4]))
    piece = at // PIECE_BYTES
    assert left(Folder(tmp_path)) == [Span(piece * PIECE_BYTES, min(PIECE_BYTES, len(BODY) - piece * PIECE_BYTES))]


@pytest.mark.parametrize("torn", [b"", b"x" * 10, b"x" * (len(BODY) + 4 * 32 + 8)])
def test_a_file_that_is_no_unfinished_download_counts_for_nothing(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b#0").write_bytes(torn)
    assert left(Folder(tmp_path)) == [Span(0, len(BODY))]


def test_what_arrived_wrong_is_forgotten(tmp_path: Path) -> None:
    sink = Folder(tmp_path)
    left(sink)
    wrong = BODY[:-1] + b"?"
    write(sink, 0, len(BODY), wrong)
    assert sink.settle(WANT) == digest_of(wrong)
    assert os.listdir(tmp_path / "a") == []
    assert left(sink) == [Span(0, len(BODY))]


def test_a_copy_that_rotted_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_bytes(BODY[:-1] + b"?")
    sink = Folder(tmp_path)
    assert left(sink) == []
    assert sink.settle(WANT) == digest_of(BODY[:-1] + b"?")
    assert left(sink) == [Span(0, len(BODY))]
    (tmp_path / "a/b").write_bytes(b"too short")
    sink.close()
    assert left(sink) == [Span(0, len(BODY))]


def test_one_of_several_fetches(tmp_path: Path) -> None:
    first, second = Folder(tmp_path), Folder(tmp_path)
    left(first)
    assert second.missing(WANT) is None
    write(first, 0, len(BODY))
    assert second.missing(WANT) is None
    assert first.settle(WANT) is None
    assert left(second) == []


def test_the_lock_of_a_killed_process_falls(tmp_path: Path) -> None:
    code = f"""
        import sys
        from twinmill.store.sinks import Folder
        from twinmill.store.spans import Want
        sink = Folder({str(tmp_path)!r})
        want = Want("a/b", 0, {len(BODY)}, {WANT.digest!r}, whole=True)
        sink.missing(want)
        sink.write(want, 0, memoryview(bytes.fromhex(sys.stdin.readline())))
        print("held", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(BODY[: PIECE_BYTES + 9].hex() + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "held\n"
        mine = Folder(tmp_path)
        assert mine.missing(WANT) is None
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    assert left(mine) == [Span(PIECE_BYTES, len(BODY) - PIECE_BYTES)]


def test_an_unfinished_file_is_no_object_and_outlives_a_sweep(tmp_path: Path) -> None:
    sink = Folder(tmp_path)
    left(sink)
    sink.close()
    blobs = open_blobs(str(tmp_path))
    assert blobs.list() == []
    assert blobs.sweep(older_s=0.0) == 0
    os.utime(tmp_path / "a/b#0", (1, 1))
    assert blobs.sweep(older_s=0.0) == 1


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """A file-size limit stands in for a full disk."""
    code = f"""
        import resource, signal
        from twinmill.store.errors import StoreFull
        from twinmill.store.sinks import Folder
        from twinmill.store.spans import Want
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            Folder({str(tmp_path)!r}).missing(Want("a/b", 0, 100_000, "d", whole=True))
        except StoreFull as error:
            assert "a/b" in str(error) and "free some" in str(error), error
        else:
            raise SystemExit("no error")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_a_folder_takes_whole_objects_only(tmp_path: Path) -> None:
    for want in (Want("k", 0, 5, "d"), Want("k", 0, 5, "", whole=True)):
        with pytest.raises(ValueError, match="keeps whole objects"):
            Folder(tmp_path).missing(want)


def test_keys_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="no key"):
        Folder(tmp_path / "m").missing(Want("../b", 0, 5, "d", whole=True))
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_file_is_what_the_page_says(tmp_path: Path) -> None:
    """docs/FORMATS.md."""
    sink = Folder(tmp_path)
    left(sink)
    write(sink, PIECE_BYTES, 2 * PIECE_BYTES - 1)
    data = (tmp_path / "a/b#0").read_bytes()
    body, slots, end = data[: len(BODY)], data[len(BODY) : -8], data[-8:]
    assert body[PIECE_BYTES : 3 * PIECE_BYTES - 1] == BODY[PIECE_BYTES : 3 * PIECE_BYTES - 1]
    assert not any(body[:PIECE_BYTES])
    assert slots == bytes(32) + blake3(BODY[PIECE_BYTES : 2 * PIECE_BYTES]).digest() + bytes(64)
    assert end == b"TWMP0001"


def test_buffers_fill_memory_that_is_there_already() -> None:
    room = bytearray(len(BODY))
    sink = Buffers({WANT: memoryview(room)})
    assert sink.missing(WANT) == [Span(0, len(BODY))]
    write(sink, 0, len(BODY), BODY[:-1] + b"?")
    assert sink.settle(WANT) is not None
    with pytest.raises(KeyError):
        sink[WANT]
    write(sink, 0, len(BODY))
    assert sink.settle(WANT) is None
    assert room == BODY
    assert sink[WANT].readonly
    with pytest.raises(ValueError, match="do not fit a buffer of 3"):
        Buffers({WANT: memoryview(bytearray(3))}).missing(WANT)
