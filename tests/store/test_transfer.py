import asyncio
import hashlib
import itertools
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinmill.records.base import Ref
from twinmill.store import blobs as blobs_module
from twinmill.store.blobs import Blobs, digest_of, open_blobs
from twinmill.store.errors import Corrupt, NotFound, StoreUnavailable, TransferFailed
from twinmill.store.flight import Progress, TransferConfig
from twinmill.store.sinks import PIECE_BYTES, Buffers, Folder
from twinmill.store.spans import Span, Want
from twinmill.store.transfer import absent, cut, download, remove, upload

from .places import Asked, Watched

QUICK = TransferConfig(backoff_s=0.001, backoff_max_s=0.01, retries=3, seed=1)


def bodies(count: int, size: int = 1000, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size + i) for i in range(count)]


def got(blobs: Blobs | Watched, refs: list[Ref], config: TransferConfig = QUICK) -> list[bytes]:
    sink = Buffers()
    download(blobs, refs, sink, config)
    return [bytes(sink[Want.of(ref)]) for ref in refs]


@pytest.mark.parametrize("in_threads", [False, True], ids=["client", "threads"])
def test_what_goes_up_comes_down(blobs: Blobs, in_threads: bool) -> None:
    place = Watched(blobs, in_threads=in_threads)
    parts = [*bodies(9), b"", bodies(1)[0]]
    seen: list[Progress] = []
    refs = upload(place, parts, QUICK, seen.append, prefix="o")
    assert refs == [Ref(key=f"o/{digest_of(part)}", digest=digest_of(part), bytes=len(part)) for part in parts]
    assert [blobs.get_ref(ref) for ref in refs] == parts
    total = sum(map(len, parts))
    assert seen[-1][:2] == (total, total)
    assert got(place, refs) == parts
    assert absent(place, refs) == []
    remove(place, [ref.key for ref in refs[:3]])
    assert absent(place, refs) == refs[:3]
    remove(place, [ref.key for ref in refs[:3]])


def test_a_body_is_cut_without_a_copy() -> None:
    body = bytearray(b"0123456789")
    parts = cut(body, 4)
    assert [bytes(part) for part in parts] == [b"0123", b"4567", b"89"]
    body[0] = ord("x")
    assert bytes(parts[0]) == b"x123"
    assert [bytes(part) for part in cut(b"", 4)] == [b""]


def test_what_is_there_is_not_sent_again(local: Blobs) -> None:
    parts = bodies(12)
    place = Watched(local)
    refs = upload(place, parts[:7], QUICK, prefix="o")
    local.put(refs[3].key, b"cut sho")  # another size: it is not there
    seen: list[Progress] = []
    again = upload(place, parts, QUICK, seen.append, prefix="o")
    assert again[:7] == refs
    assert len(place.of("write")) == 7 + 5 + 1
    assert seen[-1].reused_bytes == sum(map(len, parts[:7])) - len(parts[3])
    assert absent(local, again) == []


def test_sending_again_heals_a_damaged_copy(local: Blobs) -> None:
    refs = upload(local, bodies(2), QUICK, prefix="o")
    local.put(refs[1].key, bytes(refs[1].bytes))
    upload(local, bodies(2), QUICK, prefix="o")
    with pytest.raises(Corrupt):
        local.get_ref(refs[1])
    upload(local, bodies(2), QUICK, prefix="o", again=True)
    assert local.get_ref(refs[1]) == bodies(2)[1]


def test_bounds_on_what_is_in_flight_and_on_what_is_made(local: Blobs) -> None:
    """A part is made only when there is room for it; not in the loop's thread, so the others move on meanwhile."""
    config = TransferConfig(streams=3, in_flight_bytes=5000, seed=1)
    place, made, threads = Watched(local), [], set()

    def parts() -> Iterator[bytes]:
        for part in bodies(40):
            made.append(len(part))
            threads.add(threading.get_ident())
            assert len(made) <= len(place.of("write")) + 2 * 3 + 2
            yield part

    refs = upload(place, parts(), config, prefix="o")
    assert len(refs) == 40
    assert 1 < place.most[0] <= 3
    assert place.most[1] <= 5000
    assert threading.get_ident() not in threads
    place.most = (0, 0)
    assert got(place, refs, config) == bodies(40)
    assert 1 < place.most[0] <= 3
    assert place.most[1] <= 5000


def test_an_error_of_the_maker_ends_the_upload(local: Blobs) -> None:
    def parts() -> Iterator[bytes]:
        yield b"one"
        raise ZeroDivisionError("the encoder's")

    with pytest.raises(ZeroDivisionError, match="encoder's"):
        upload(local, parts(), QUICK, prefix="o")


def test_uploads_are_crash_points(local: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    points: list[str] = []

    def crash(point: str) -> None:
        points.append(point)
        if len(points) == 6:
            raise Killed

    monkeypatch.setattr(blobs_module, "crash_points", crash)
    with pytest.raises(Killed):
        upload(local, bodies(8), TransferConfig(streams=1), prefix="o", point="weights.object")
    assert set(points) == {"weights.object:before", "weights.object:after"}
    monkeypatch.undo()
    seen: list[Progress] = []
    upload(local, bodies(8), QUICK, seen.append, prefix="o")
    assert seen[-1].reused_bytes >= 1000


def test_ranges_into_memory_of_ones_own(blobs: Blobs) -> None:
    body = bodies(1, 300_000)[0]
    blobs.put("k", body)
    room = bytearray(5000)
    wants = [Want("k", offset, 1000) for offset in (7, 1007, 2500, 250_000, 290_000)]
    sink = Buffers({want: memoryview(room)[i * 1000 : (i + 1) * 1000] for i, want in enumerate(wants)})
    place = Watched(blobs)
    download(place, wants, sink, TransferConfig(gap_bytes=1000))
    assert room == b"".join(body[want.offset : want.offset + 1000] for want in wants)
    assert sorted((asked.offset, asked.bytes) for asked in place.of("read")) == [
        (7, 3493),
        (250_000, 1000),
        (290_000, 1000),
    ]


def test_a_range_is_checked_when_its_digest_is_known(local: Blobs) -> None:
    local.put("k", b"0123456789")
    good, bad = Want("k", 2, 3, digest_of(b"234")), Want("k", 2, 3, digest_of(b"235"))
    sink = Buffers()
    download(local, [good], sink, QUICK)
    assert bytes(sink[good]) == b"234"
    with pytest.raises(Corrupt, match=r"'k' is damaged: fetched 2 times from file://.*: never with its digest"):
        download(local, [good, bad], sink, QUICK)


def test_an_object_of_another_size_is_damaged(blobs: Blobs) -> None:
    ref = blobs.put_ref("o", bytes(1000))
    for damage in (bytes(999), bytes(1001), b""):
        blobs.put(ref.key, damage)
        with pytest.raises(Corrupt, match=ref.key):
            got(blobs, [ref])
    with pytest.raises(Corrupt, match="ends at 0"):
        download(blobs, [Want(ref.key, 10, 5)], Buffers(), QUICK)


def test_a_missing_object_is_said_at_once(blobs: Blobs) -> None:
    place = Watched(blobs)
    with pytest.raises(NotFound, match="'no'"):
        got(place, [Ref(key="no", digest="d", bytes=5)])
    assert len(place.asked) == 1


def test_what_the_link_damaged_is_fetched_again(local: Blobs) -> None:
    refs = upload(local, bodies(4), QUICK, prefix="o")
    flips = random.Random(3)
    seen: list[Progress] = []

    def bend(asked: Asked, chunk: bytes) -> bytes:
        if flips.random() < 0.5:
            return chunk
        at = flips.randrange(len(chunk))
        return chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :]

    place, sink = Watched(local, bend=bend), Buffers()
    download(place, refs, sink, TransferConfig(backoff_s=0.001, retries=30, seed=1), seen.append)
    assert [bytes(sink[Want.of(ref)]) for ref in refs] == bodies(4)
    assert len(place.of("read")) > 4
    assert seen[-1].done_bytes == seen[-1].total_bytes
    assert seen[-1].retries == len(place.of("read")) - 4


def test_what_a_place_has_damaged_or_lost_comes_from_another(tmp_path: Path) -> None:
    bucket, neighbour = open_blobs("memory://"), open_blobs(str(tmp_path / "n"))
    refs = upload(bucket, bodies(4), QUICK, prefix="o")
    upload(neighbour, bodies(4), QUICK, prefix="o")
    bucket.put(refs[0].key, bytes(refs[0].bytes))
    bucket.put(refs[1].key, b"short")
    bucket.delete(refs[2].key)
    here, there = Watched(bucket), Watched(neighbour)
    sink = Buffers()
    download(here, refs, sink, QUICK, others=[there])
    assert [bytes(sink[Want.of(ref)]) for ref in refs] == bodies(4)
    assert {asked.key for asked in there.asked} == {ref.key for ref in refs[:3]}
    neighbour.put(refs[0].key, bytes(refs[0].bytes))
    with pytest.raises(Corrupt, match=f"{refs[0].key}.*fetched 4 times from memory://, then file://"):
        download(here, refs, Buffers(), QUICK, others=[there])


def test_a_place_that_is_down_is_given_up_once(tmp_path: Path) -> None:
    bucket, neighbour = open_blobs("memory://"), open_blobs(str(tmp_path / "n"))
    refs = upload(neighbour, bodies(30), QUICK, prefix="o")

    def down(asked: Asked) -> None:
        raise StoreUnavailable("down")

    here, sink = Watched(bucket, spoil=down), Buffers()
    one_by_one = TransferConfig(backoff_s=0.001, retries=2, streams=1, seed=1)
    download(here, refs, sink, one_by_one, others=[neighbour])
    assert [bytes(sink[Want.of(ref)]) for ref in refs] == bodies(30)
    assert len(here.asked) <= 30 * 3
    with pytest.raises(TransferFailed, match="attempts, the last: down"):
        download(here, refs, Buffers(), one_by_one)


def test_what_came_before_a_connection_broke_is_not_read_again(local: Blobs) -> None:
    body = bodies(1, 50_000)[0]
    ref = local.put_ref("o", body)
    place = Watched(local, bend=lambda asked, chunk: chunk[: max(1, len(chunk) * 2 // 3)])  # ends early each time
    assert got(place, [ref], TransferConfig(retries=40, backoff_s=0.0)) == [body]
    reads = place.of("read")
    assert [one.offset + one.bytes for one in reads] == [len(body)] * len(reads)
    assert len(reads) > 5
    assert all(one.offset < two.offset for one, two in itertools.pairwise(reads))


def test_each_arrival_is_told_when_it_is_checked(local: Blobs, tmp_path: Path) -> None:
    refs = upload(local, bodies(5), QUICK, prefix="o")
    arrived: list[str] = []

    def told(want: Want) -> None:
        assert (tmp_path / "m" / want.key).read_bytes() == local.get(want.key)
        arrived.append(want.key)

    download(local, [*refs, refs[0]], Folder(tmp_path / "m"), QUICK, arrived=told)
    assert sorted(arrived) == sorted(ref.key for ref in refs)


def test_a_copy_that_rotted_in_the_folder_is_fetched_again(local: Blobs, tmp_path: Path) -> None:
    refs = upload(local, bodies(3), QUICK, prefix="o")
    download(local, refs, Folder(tmp_path / "m"), QUICK)
    (tmp_path / "m" / refs[1].key).write_bytes(bytes(refs[1].bytes))
    place = Watched(local)
    download(place, refs, Folder(tmp_path / "m"), QUICK)
    assert [asked.key for asked in place.of("read")] == [refs[1].key]
    assert (tmp_path / "m" / refs[1].key).read_bytes() == bodies(3)[1]


def test_a_killed_download_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """SIGKILL in the middle: what had arrived whole is not read again, whole objects and parts of one."""
    store = open_blobs(str(tmp_path / "store"))
    parts = bodies(6, PIECE_BYTES * 2)
    refs = upload(store, parts, QUICK, prefix="o")
    code = f"""
        import os, signal
        from tests.store.places import Watched
        from twinmill.records.base import Ref
        from twinmill.store.blobs import open_blobs
        from twinmill.store.flight import TransferConfig
        from twinmill.store.sinks import Folder
        from twinmill.store.transfer import download
        refs = {[(ref.key, ref.digest, ref.bytes) for ref in refs]}
        refs = [Ref(key=key, digest=digest, bytes=size) for key, digest, size in refs]
        def spoil(asked):
            if len(place.of("read")) == 13:
                os.kill(os.getpid(), signal.SIGKILL)
        place = Watched(open_blobs({str(tmp_path / "store")!r}), spoil=spoil)
        download(place, refs, Folder({str(tmp_path / "m")!r}), TransferConfig(streams=1, request_bytes=1 << 20))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], timeout=60, cwd=Path(__file__).parents[2], capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    place, seen = Watched(store), list[Progress]()
    download(place, refs, Folder(tmp_path / "m"), QUICK, seen.append)
    assert [(tmp_path / "m" / ref.key).read_bytes() for ref in refs] == parts
    assert seen[-1].reused_bytes == sum(map(len, parts[:4])) + PIECE_BYTES
    assert sum(asked.bytes for asked in place.of("read")) == seen[-1].total_bytes - seen[-1].reused_bytes
    assert not list((tmp_path / "m").rglob("*#*"))


def test_processes_share_what_each_fetches(tmp_path: Path) -> None:
    """Two at once fill one folder: every byte is read once."""
    store = open_blobs(str(tmp_path / "store"))
    refs = upload(store, bodies(20, 50_000), QUICK, prefix="o")
    places = [Watched(store), Watched(store)]
    threads = [threading.Thread(target=download, args=(place, refs, Folder(tmp_path / "m"), QUICK)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    reads = [asked.key for place in places for asked in place.of("read")]
    assert sorted(reads) == sorted(ref.key for ref in refs)
    assert [(tmp_path / "m" / ref.key).read_bytes() for ref in refs] == bodies(20, 50_000)


def test_many_objects_need_few_open_files(local: Blobs, tmp_path: Path) -> None:
    refs = upload(local, bodies(200, 50), QUICK, prefix="o")

    class Counting(Folder):
        open, most = 0, 0

        def missing(self, want: Want) -> list[Span] | None:
            spans = super().missing(want)
            self.open += 1
            self.most = max(self.most, self.open)
            return spans

        def settle(self, want: Want) -> str | None:
            self.open -= 1
            return super().settle(want)

    sink = Counting(tmp_path / "m")
    download(local, refs, sink, TransferConfig(streams=4))
    assert [(tmp_path / "m" / ref.key).read_bytes() for ref in refs] == bodies(200, 50)
    assert 4 <= sink.most <= 8


def test_another_process_is_not_waited_for_for_ever(local: Blobs, tmp_path: Path) -> None:
    ref = local.put_ref("o", b"x" * 100)
    other = Folder(tmp_path / "m")
    assert other.missing(Want.of(ref)) is not None
    with pytest.raises(TransferFailed, match="another process has been fetching it"):
        download(local, [ref], Folder(tmp_path / "m"), TransferConfig(budget_s=0.2))
    other.close()
    download(local, [ref], Folder(tmp_path / "m"), QUICK)


def test_nothing_goes_on_behind_a_failure(local: Blobs, tmp_path: Path) -> None:
    """The first failure ends the rest, and lets go of the files."""
    refs = upload(local, bodies(20, 5000), QUICK, prefix="o")
    local.delete(refs[7].key)
    with pytest.raises(NotFound):
        download(local, refs, Folder(tmp_path / "m"), QUICK)
    local.put(refs[7].key, bodies(20, 5000)[7])
    download(local, refs, Folder(tmp_path / "m"), TransferConfig(budget_s=20))
    assert [(tmp_path / "m" / ref.key).read_bytes() for ref in refs] == bodies(20, 5000)


def test_what_was_damaged_on_its_way_up_is_sent_again(local: Blobs) -> None:
    flips = iter([True, False, True, True, False, False])

    def send(data: bytes) -> tuple[bytes, str]:
        arrived = data[:-1] + b"?" if next(flips) else data
        return arrived, hashlib.md5(arrived).hexdigest()

    place = Watched(local, send=send)
    refs = upload(place, bodies(3), TransferConfig(streams=1, backoff_s=0.001), prefix="o")
    assert [local.get_ref(ref) for ref in refs] == bodies(3)
    assert len(place.of("write")) == 6


def test_etags_that_are_no_digests_are_looked_into_once(local: Blobs) -> None:
    """As where the store encrypts with keys of its own."""
    place = Watched(local, send=lambda data: (data, hashlib.md5(b"salt" + data).hexdigest()))
    refs = upload(place, bodies(5), TransferConfig(streams=1), prefix="o")
    assert [local.get_ref(ref) for ref in refs] == bodies(5)
    assert len(place.of("read")) == 1
    upload(place, bodies(5, seed=9), TransferConfig(check_etags=False), prefix="o")
    assert len(place.of("read")) == 1


def test_a_running_loop_is_no_obstacle(local: Blobs) -> None:
    async def run() -> list[Ref]:
        return upload(local, bodies(3), QUICK, prefix="o")

    assert got(local, asyncio.run(run())) == bodies(3)
