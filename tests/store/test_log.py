from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.records.episodes import LogPos
from twinmill.store import blobs as blobs_module
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import Corrupt, LaneTaken, NotFound, StoreUnavailable
from twinmill.store.frame import HEAD_BYTES, seal, unseal
from twinmill.store.log import Cursor, Log, first_free, index_of, indexed

payloads = st.one_of(st.binary(max_size=200), st.integers(0, 300).map(lambda n: b"ab" * n))


class Killed(BaseException):
    """Stands for the end of the process: nothing in the code under test may catch it."""


@given(payloads, st.text(min_size=1, max_size=20))
def test_a_frame_gives_back_its_payload(payload: bytes, key: str) -> None:
    assert unseal(key, seal(key, payload)) == payload


@given(payloads)
def test_a_frame_cut_at_any_byte_is_seen(payload: bytes) -> None:
    data = seal("k", payload)
    for end in range(len(data)):
        with pytest.raises(Corrupt, match="'k'"):
            unseal("k", data[:end])
    with pytest.raises(Corrupt):
        unseal("k", data + b"\0")


@given(payloads, st.data())
def test_any_flipped_bit_of_a_frame_is_seen(payload: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal("k", payload))
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt):
        unseal("k", bytes(sealed))


def test_a_frame_moved_to_another_key_is_seen() -> None:
    with pytest.raises(Corrupt, match="another key"):
        unseal("log/0000000002", seal("log/0000000001", b"entry"))


def test_a_frame_claims_no_memory_before_its_checksum_matched() -> None:
    sealed = bytearray(seal("k", b"ab" * 1000))
    sealed[12:20] = (1 << 60).to_bytes(8, "little")  # a payload of an exabyte
    with pytest.raises(Corrupt, match="checksum"):
        unseal("k", bytes(sealed))


@given(st.integers(0, 500), st.integers(0, 500))
def test_first_free_finds_the_end_in_few_probes(size: int, start: int) -> None:
    probes: list[int] = []

    def taken(index: int) -> bool:
        probes.append(index)
        return index < size

    assert first_free(taken, start) == max(size, start)
    assert len(probes) <= 2 * max(1, (max(size - start, 0)).bit_length()) + 2


@given(st.integers(0, 10**10 - 1))
def test_indexed_keys_sort_as_numbers(index: int) -> None:
    assert index_of(indexed("p", index)) == index
    if index:
        assert indexed("p", index - 1) < indexed("p", index)


def test_foreign_objects_in_a_log_are_named() -> None:
    for name in ("abc", "123", "00000000001", "０００００００００１"):
        with pytest.raises(Corrupt, match="10-digit"):
            index_of(f"p/{name}")


def test_entries_come_back_in_order(blobs: Blobs) -> None:
    log = Log(blobs, "log")
    lane = log.lane("c0")
    entries = [b"%d" % i * (i + 1) for i in range(5)]
    assert [lane.append(entry) for entry in entries] == [LogPos(lane="c0", index=i) for i in range(5)]
    assert [data for _, data in log.tail("c0")] == entries
    assert [(pos.index, data) for pos, data in log.tail("c0", 3)] == [(3, entries[3]), (4, entries[4])]
    assert list(log.tail("c0", 5)) == []
    assert log.read(LogPos(lane="c0", index=2)) == entries[2]
    assert log.lanes() == ["c0"]
    with pytest.raises(NotFound):
        log.read(LogPos(lane="c0", index=5))


def test_a_restarted_writer_goes_on_at_the_end(blobs: Blobs) -> None:
    for index in range(4):
        assert Log(blobs, "log").lane("c0").append(b"%d" % index).index == index


def test_a_lost_answer_does_not_duplicate_an_entry(local: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is there, but the writer never heard of it, and writes the same again."""
    lane = Log(local, "log").lane("c0")
    put_new = local.put_new

    def put_and_lose_the_answer(key: str, data: bytes) -> bool:
        put_new(key, data)
        return put_new(key, data)  # what a client's own retry then sees

    monkeypatch.setattr(local, "put_new", put_and_lose_the_answer)
    assert lane.append(b"a").index == 0
    assert lane.append(b"b").index == 1
    assert [data for _, data in Log(local, "log").tail("c0")] == [b"a", b"b"]


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_an_append_that_ended_in_an_error_may_be_repeated_at_once_or_later(
    local: Blobs, monkeypatch: pytest.MonkeyPatch, written: bool, order: str
) -> None:
    """Nobody knows whether "a" was written; meanwhile others append to the lane."""
    lane = Log(local, "log").lane("c0")
    assert lane.append(b"0").index == 0
    put_new = local.put_new

    def fail(key: str, data: bytes) -> bool:
        if written:
            put_new(key, data)
        raise StoreUnavailable(f"{key}: the connection was reset")

    monkeypatch.setattr(local, "put_new", fail)
    with pytest.raises(StoreUnavailable):
        lane.append(b"a")
    monkeypatch.setattr(local, "put_new", put_new)
    places = {entry: lane.append(entry.encode()).index for entry in order}
    assert lane.append(b"c").index == 3
    stored = [data for _, data in Log(local, "log").tail("c0")]
    assert stored == [b"0", *(sorted if written else list)([b"%c" % ord(entry) for entry in order]), b"c"]
    assert all(stored[index] == entry.encode() for entry, index in places.items())


def test_a_second_writer_of_a_lane_is_found_out(blobs: Blobs) -> None:
    mine, theirs = Log(blobs, "log").lane("c0"), Log(blobs, "log").lane("c0")
    mine.append(b"mine")
    with pytest.raises(LaneTaken, match="second process writes"):
        theirs.append(b"theirs")
    assert [data for _, data in Log(blobs, "log").tail("c0")] == [b"mine"]


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a#1", "x" * 101])
def test_lane_names_are_checked(local: Blobs, name: str) -> None:
    with pytest.raises(ValueError, match="lane name"):
        Log(local, "log").lane(name)


def test_a_torn_object_is_corrupt_never_short(local: Blobs) -> None:
    log = Log(local, "log")
    pos = log.lane("c0").append(b"payload that matters")
    key = "log/c0/0000000000"
    whole = local.get(key)
    for end in (0, 1, HEAD_BYTES - 1, HEAD_BYTES, len(whole) - 1):
        local.put(key, whole[:end])
        with pytest.raises(Corrupt, match=key):
            log.read(pos)
        with pytest.raises(Corrupt, match=key):
            list(log.tail("c0"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12))
def test_kills_around_appends_lose_and_repeat_nothing(kills: list[tuple[bool, bool]]) -> None:
    """At each append the writer may be killed before it, or behind it (and then looks for it at its restart)."""
    blobs = open_blobs("memory://")
    written: list[bytes] = []
    for number, (before, after) in enumerate(kills):
        entry = b"entry %d" % number

        def die(point: str, before: bool = before, after: bool = after) -> None:
            if (point == "lane.append:before" and before) or (point == "lane.append:after" and after):
                raise Killed

        lane = Log(blobs, "log").lane("c0")
        blobs_module.crash_points = die
        try:
            lane.append(entry)
        except Killed:
            pass
        finally:
            blobs_module.crash_points = blobs_module._no_crash
        there = [data for _, data in Log(blobs, "log").tail("c0")]
        if entry not in there:
            Log(blobs, "log").lane("c0").append(entry)
        written.append(entry)
    assert [data for _, data in Log(blobs, "log").tail("c0")] == written


def test_cursors_remember_the_last_position(blobs: Blobs) -> None:
    assert Cursor(blobs, "cursors/trainer").load() == {}
    cursor = Cursor(blobs, "cursors/trainer")
    for index in range(6):
        cursor.save({"c0": index, "c1": 2 * index})
    assert Cursor(blobs, "cursors/trainer").load() == {"c0": 5, "c1": 10}
    assert len(blobs.list("cursors/trainer")) == Cursor.KEEP
    Cursor(blobs, "cursors/trainer").save({})
    assert Cursor(blobs, "cursors/trainer").load() == {}


@pytest.mark.parametrize("rounds", [1, 5])
def test_two_owners_of_a_cursor_are_found_out(local: Blobs, rounds: int) -> None:
    mine, theirs = Cursor(local, "c"), Cursor(local, "c")
    mine.load()
    theirs.load()
    for index in range(rounds):
        mine.save({"mine": index})
    with pytest.raises(LaneTaken, match="another process"):
        theirs.save({"theirs": 0})
    assert Cursor(local, "c").load() == {"mine": rounds - 1}


def test_a_damaged_cursor_is_named(local: Blobs) -> None:
    Cursor(local, "c").save({"a": 1})
    local.put("c/0000000000", local.get("c/0000000000")[:-1])
    with pytest.raises(Corrupt, match="c/0000000000"):
        Cursor(local, "c").load()


@pytest.mark.parametrize("point", ["cursor.save:before", "cursor.save:after"])
def test_a_cursor_killed_at_its_save_is_old_or_new(local: Blobs, point: str) -> None:
    Cursor(local, "c").save({"a": 1})
    cursor = Cursor(local, "c")

    def die(here: str) -> None:
        if here == point:
            raise Killed

    _dying(die, lambda: cursor.save({"a": 2}))
    assert Cursor(local, "c").load() == {"a": 1 if point.endswith("before") else 2}
    Cursor(local, "c").save({"a": 3})
    assert Cursor(local, "c").load() == {"a": 3}


def _dying(die: Callable[[str], None], act: Callable[[], None]) -> None:
    blobs_module.crash_points = die
    try:
        with pytest.raises(Killed):
            act()
    finally:
        blobs_module.crash_points = blobs_module._no_crash
