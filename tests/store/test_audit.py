from collections.abc import Callable

import pytest
from msgspec import structs

from twinmill.records.episodes import Close, DropReason, LogPos
from twinmill.records.weights import GridSpec, Part, VersionKind
from twinmill.store.audit import audit
from twinmill.store.blobs import Blobs
from twinmill.store.frame import seal_record
from twinmill.store.ledger import EpisodesLog
from twinmill.store.log import indexed

from .toys import admit, attempt, close, put_version


def small_run(blobs: Blobs) -> EpisodesLog:
    """Slots 0..3 in groups of two; slot 1 dropped; versions 1 and 2 trained on slots (0, 1) and (2,); 4 is open."""
    log = EpisodesLog(blobs)
    put_version(blobs, 0)
    for slot in range(5):
        log.admit(admit(slot))
    for slot in (0, 2, 3):
        log.append("c0", attempt(slot, 0, lost=True))
        entries = [log.append("c0", attempt(slot, index, versions=(0, 1) if slot == 2 else (0,))) for index in range(2)]
        log.close(structs.replace(close(slot, *entries), lost=1))
    log.close(structs.replace(close(1), drop=DropReason.INFRASTRUCTURE, lost=3))
    put_version(blobs, 1, (0, 1))
    put_version(blobs, 2, (2,))
    return log


def test_a_sound_run_passes(blobs: Blobs) -> None:
    small_run(blobs)
    found = audit(blobs, window=1, objects=True)
    assert found.problems == ()
    assert found.ok
    assert (found.admitted, found.closed, found.trained, found.open, found.untrained) == (5, 4, 3, (4,), (3,))
    assert found.dropped == {"infrastructure": 1}
    assert (found.attempts, found.unused, found.lost) == (9, 3, 6)
    assert found.sampled_tokens == 2 + 4 + 2
    assert found.ages == {0: 4, 1: 2}
    assert (found.versions, found.newest, found.oldest) == (3, 2, 1)


def test_an_empty_store_is_sound(local: Blobs) -> None:
    found = audit(local)
    assert found.ok
    assert (found.newest, found.admitted, found.ages) == (-1, 0, {})


def _put(blobs: Blobs, key: str, record: object) -> None:
    blobs.put(key, seal_record(key, record))


def _close_slot_4(blobs: Blobs, *entries: LogPos, **changes: object) -> None:
    EpisodesLog(blobs).close(structs.replace(close(4, *entries), **changes))


def _close_with_wrong_attempt(blobs: Blobs) -> None:
    _close_slot_4(blobs, LogPos(lane="c0", index=1))


def _close_with_lost_attempt(blobs: Blobs) -> None:
    _close_slot_4(blobs, EpisodesLog(blobs).append("c0", attempt(4, lost=True)))


def _close_another_task(blobs: Blobs) -> None:
    _close_slot_4(blobs, EpisodesLog(blobs).append("c0", attempt(4)), task_id="other")


def _close_unknown_version(blobs: Blobs) -> None:
    _close_slot_4(blobs, EpisodesLog(blobs).append("c0", attempt(4, versions=(9,))))


def _close_falling_versions(blobs: Blobs) -> None:
    _close_slot_4(blobs, EpisodesLog(blobs).append("c0", attempt(4, versions=(1, 0))))


def _close_older_than_admit(blobs: Blobs) -> None:
    log = EpisodesLog(blobs)
    log.admit(admit(5, version=2))
    log.close(close(5, log.append("c0", attempt(5, versions=(1,)))))


def _token_from_the_future(blobs: Blobs) -> None:
    _close_slot_4(blobs, EpisodesLog(blobs).append("c0", attempt(4, versions=(3,))))
    put_version(blobs, 3, (3, 4))


def _lane_gap(blobs: Blobs) -> None:
    blobs.delete("episodes/lanes/c0/0000000000")


def _torn_entry(blobs: Blobs) -> None:
    key = "episodes/lanes/c0/0000000001"
    blobs.put(key, blobs.get(key)[:-3])


def _missing_logprobs(blobs: Blobs) -> None:
    sick = attempt(4, versions=(0, 0))
    segment = sick.episode.segments[0]
    turn = structs.replace(segment.turns[0], logprobs=[-0.5])
    episode = structs.replace(sick.episode, segments=(structs.replace(segment, turns=(turn,)),))
    _close_slot_4(blobs, EpisodesLog(blobs).append("c0", structs.replace(sick, episode=episode)))


def _closed_before_admitted(blobs: Blobs) -> None:
    EpisodesLog(blobs).close(Close(slot=5, task_id="t", entries_G=(), drop=DropReason.UNGRADABLE))


def _part(blobs: Blobs, **changes: object) -> Part:
    return structs.replace(put_version(blobs, 2, (2,)).parts[0], **changes)


FAULTS: dict[str, Callable[[Blobs], object]] = {
    "slot 0 was trained twice: for version 1 and for 3": lambda blobs: put_version(blobs, 3, (0,)),
    "slot 4 was trained for version 3 and never closed": lambda blobs: put_version(blobs, 3, (4,)),
    "holds attempt 0 of slot 0": _close_with_wrong_attempt,
    "closed in slot 0 already": _close_with_wrong_attempt,
    r"lost to infrastructure \(machine\), yet in a complete group": _close_with_lost_attempt,
    "admitted with task 'task/4', closed with 'other'": _close_another_task,
    "closed complete, without any attempt": _close_slot_4,
    "no such lane entry": lambda blobs: _close_slot_4(blobs, LogPos(lane="c0", index=99)),
    "sampled by version 9, which does not exist": _close_unknown_version,
    r"versions decrease: \[1, 0\]": _close_falling_versions,
    "a token of version 1, admitted at version 2": _close_older_than_admit,
    "sampled by version 3, yet trained for version 3": _token_from_the_future,
    "log-probabilities and version counts differ": _missing_logprobs,
    "slot 5 was closed and never admitted": _closed_before_admitted,
    "lanes/c0: 0 is missing, the next is 1": _lane_gap,
    "lanes/c0/0000000001: .* damaged": _torn_entry,
    "Admit in the place of slot 2 is of slot 3": lambda blobs: _put(blobs, "episodes/admit/0000000002", admit(3)),
    "admit: 1 is missing": lambda blobs: blobs.delete("episodes/admit/0000000001"),
    "version 2: lineage does not continue version 1": lambda blobs: put_version(blobs, 2, (2,), lineage="ff"),
    "version 2: run 'other' step 2 after 'run' 1": lambda blobs: put_version(blobs, 2, (2,), run_id="other"),
    "version 2: run 'run' step 1 after 'run' 1": lambda blobs: put_version(blobs, 2, (2,), step=1),
    "version 2: model digest is not": lambda blobs: put_version(blobs, 2, (2,), model_digest="ff"),
    "version 2: a part begins at tile 3": lambda blobs: put_version(
        blobs, 2, (2,), parts=(_part(blobs, first_tile=3),)
    ),
    "version 2: its parts are not 7 bytes": lambda blobs: put_version(blobs, 2, (2,), payload_bytes=7),
    "version 2: other tensors, or other tiles": lambda blobs: put_version(blobs, 2, (2,), grid=GridSpec(tp=2)),
    "version 2: delta on version 5": lambda blobs: put_version(blobs, 2, (2,), parent=5),
    "version 2: full, with parent 1": lambda blobs: put_version(blobs, 2, (2,), kind=VersionKind.FULL),
    "manifests: 1 is missing": lambda blobs: blobs.delete(indexed("weights/manifests", 1)),
    "version 1: .*damaged": lambda blobs: blobs.put(put_version(blobs, 1, (0, 1)).parts[0].object.key, b"?"),
}


@pytest.mark.parametrize("problem", FAULTS)
def test_every_fault_is_found_and_named(local: Blobs, problem: str) -> None:
    small_run(local)
    FAULTS[problem](local)
    found = audit(local, objects=True)
    assert not found.ok
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError("\n".join(found.problems))


def test_a_base_that_differs_is_found(local: Blobs) -> None:
    small_run(local)
    put_version(local, 2, (2,), parent=0)
    assert audit(local).ok, "the digests of tiles are in the objects"
    assert audit(local, objects=True).problems == ("version 2: tile 0 was made on another base than version 0",)


def test_the_window_is_held(local: Blobs) -> None:
    small_run(local)
    assert audit(local, window=1).ok
    assert audit(local, window=0).problems == ("tokens up to 1 versions old were trained; the window is 0",)
