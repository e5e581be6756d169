import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec import structs

from twinmill.records.episodes import DropReason, LogPos
from twinmill.records.runs import Beat
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import Corrupt, LaneTaken
from twinmill.store.ledger import EpisodesLog

from .toys import admit, attempt, close


def test_a_slot_has_one_owner(blobs: Blobs) -> None:
    here, there = EpisodesLog(blobs), EpisodesLog(blobs)
    assert here.next_free_slot() == 0
    assert here.admit(admit(0, "c0"))
    assert not there.admit(admit(0, "c1"))
    assert there.admit_of(0) == admit(0, "c0")
    assert there.admit_of(1) is None
    assert there.next_free_slot() == 1
    assert here.admit(admit(0, "c0")), "the same Admit again is a repeated answer, not a second owner"


def test_a_repeated_admit_is_ours_though_the_lane_has_grown(local: Blobs) -> None:
    log = EpisodesLog(local)
    assert log.admit(admit(0))
    log.append("c0", attempt(0))
    assert log.admit(admit(0))
    assert log.admit_of(0).lane_from == 0


def test_a_closed_slot_never_changes(blobs: Blobs) -> None:
    log = EpisodesLog(blobs)
    log.admit(admit(0))
    entry = log.append("c0", attempt(0))
    assert log.close(close(0, entry))
    assert log.close(close(0, entry)), "repeated"
    lost = structs.replace(close(0), drop=DropReason.CLUSTER_LOST)
    assert not EpisodesLog(blobs).close(lost)
    assert log.close_of(0) == close(0, entry)
    assert log.close_of(1) is None


def test_open_slots_are_admitted_and_not_closed(blobs: Blobs) -> None:
    log = EpisodesLog(blobs)
    for slot in range(4):
        log.admit(admit(slot, f"c{slot % 2}"))
    for slot in (0, 2):
        log.close(structs.replace(close(slot), drop=DropReason.UNGRADABLE))
    assert [(found.slot, found.cluster) for found in log.open_slots()] == [(1, "c1"), (3, "c1")]
    assert [found.slot for found in log.open_slots(since=2)] == [3]
    assert log.closed_slots() == [0, 2]
    assert log.closed_slots(since=1) == [2]
    assert log.next_free_slot(2) == 4


def test_groups_are_read_from_their_close(blobs: Blobs) -> None:
    log = EpisodesLog(blobs)
    log.admit(admit(0))
    late_first = log.append("c0", attempt(0, 1))
    lost = log.append("c0", attempt(0, 0, lost=True))
    first = log.append("c0", attempt(0, 0, run=1))
    assert [late_first.index, lost.index, first.index] == [0, 1, 2]
    group = log.group_of(close(0, first, late_first))
    assert [episode.id for episode in group.episodes_G] == ["0-0-1", "0-1-0"]
    assert [verdict.reward for verdict in group.verdicts_G] == [0.0, 1.0]
    assert (group.size, group.drop) == (2, None)
    with pytest.raises(Corrupt, match="names it as attempt 0, but it holds attempt 1 of slot 0"):
        log.group_of(close(0, late_first, first))
    dropped = log.group_of(structs.replace(close(0), drop=DropReason.INFRASTRUCTURE))
    assert (dropped.size, dropped.drop) == (0, DropReason.INFRASTRUCTURE)


def test_a_restarted_cluster_sees_which_attempts_are_missing(blobs: Blobs) -> None:
    log = EpisodesLog(blobs)
    log.admit(admit(0))
    log.append("c0", attempt(0, 0))
    log.append("c0", attempt(0, 1))
    log.admit(admit(1))
    log.admit(admit(2))
    log.append("c0", attempt(2, 0))
    log.append("c0", attempt(1, 1, lost=True))
    log.append("c0", attempt(1, 0))
    assert log.admit_of(1).lane_from == 2, "the read for slot 1 starts behind slot 0's attempts"
    found = EpisodesLog(blobs).attempts_of("c0", [1, 2])
    assert {name: pos.index for name, (pos, _) in found.items()} == {(2, 0): 2, (1, 0): 4}
    assert EpisodesLog(blobs).attempts_of("c0", []) == {}
    assert EpisodesLog(blobs).attempts_of("c9", [7]) == {}


def test_the_first_finished_attempt_counts(local: Blobs) -> None:
    log = EpisodesLog(local)
    log.admit(admit(0))
    log.append("c0", attempt(0, 0, run=0, lost=True))
    log.append("c0", attempt(0, 0, run=1))
    log.append("c0", attempt(0, 0, run=2))
    position, found = log.attempts_of("c0", [0])[0, 0]
    assert (position, found.episode.id) == (LogPos(lane="c0", index=1), "0-0-1")


def test_regrades_are_kept_apart(blobs: Blobs) -> None:
    log = EpisodesLog(blobs)
    verdict = structs.replace(attempt(0).verdict, reward=0.25)
    assert log.append_verdict("grader-2", verdict) == LogPos(lane="grader-2", index=0)
    assert [found for _, found in log.regrades()] == [verdict]
    assert log.lanes() == []


def test_beats_are_overwritten(blobs: Blobs) -> None:
    log = EpisodesLog(blobs)
    assert log.beats() == {}
    log.put_beat(Beat(cluster="c0", at=1.0, serving=0))
    log.put_beat(Beat(cluster="c1", at=1.0, serving=0, open_slots=(3,)))
    log.put_beat(Beat(cluster="c0", at=2.0, serving=1))
    assert {name: beat.at for name, beat in log.beats().items()} == {"c0": 2.0, "c1": 1.0}


def test_a_second_process_in_a_lane_is_found_out(local: Blobs) -> None:
    here, there = EpisodesLog(local), EpisodesLog(local)
    here.append("c0", attempt(0))
    there.append("c0", attempt(1))
    with pytest.raises(LaneTaken):
        here.append("c0", attempt(2))


def test_a_record_of_another_type_is_corrupt(local: Blobs) -> None:
    log = EpisodesLog(local)
    log.admit(admit(0))
    local.put("episodes/close/0000000000", local.get("episodes/admit/0000000000"))
    with pytest.raises(Corrupt, match="episodes/close/0000000000"):
        log.close_of(0)


def test_processes_racing_for_slots_share_them_out(tmp_path: Path) -> None:
    code = """
        import json, sys
        from twinmill.records.episodes import Admit
        from twinmill.store.blobs import open_blobs
        from twinmill.store.ledger import EpisodesLog
        cluster, won = sys.argv[2], []
        log = EpisodesLog(open_blobs(sys.argv[1]))
        slot = 0
        while (slot := log.next_free_slot(slot)) < 60:
            if log.admit(Admit(slot=slot, task_id="t", seed=0, cluster=cluster, version=0)):
                won.append(slot)
        print(json.dumps(won))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    racers = [subprocess.Popen([*command, f"c{i}"], stdout=subprocess.PIPE) for i in range(3)]
    try:
        won = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert sorted(slot for slots in won for slot in slots) == list(range(60))
    log = EpisodesLog(open_blobs(str(tmp_path)))
    for index, slots in enumerate(won):
        assert all(log.admit_of(slot).cluster == f"c{index}" for slot in slots)
