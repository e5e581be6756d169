"""What a killed server left is ended by the next one, and every lease ends exactly once."""

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from twinmill.env.machine.base import MachineStartError
from twinmill.env.machine.remote import journal
from twinmill.env.machine.remote.journal import Journal, read
from twinmill.records.machines import LeaseEnd, LeaseEnded, LeaseOpened, LifeBegan, LifeEnded

DEAD = 2**22 - 1
"""a process that is not there"""


def opened(name):
    return LeaseOpened(lease=name, tenant="t", key=f"key-of-{name}")


def killed_after(folder, lines, tail=b""):
    """A life that wrote these and was killed."""
    folder.mkdir(exist_ok=True)
    file = journal._open(folder / f"{len(list(folder.glob('*.jsonl'))) + 1}.jsonl")
    for line in (LifeBegan(pid=DEAD), *lines):
        journal._append(file, line)
    os.write(file, tail)
    os.close(file)


def ends(folder):
    lines = [line.what for path in sorted(folder.glob("*.jsonl")) for line in read(path)]
    return Counter((line.lease, line.reason) for line in lines if isinstance(line, LeaseEnded))


def test_a_life_that_ended_in_order_leaves_nothing_to_do(tmp_path):
    with Journal(tmp_path) as first:
        first.write(opened("a"))
        first.write(LeaseEnded(lease="a", reason=LeaseEnd.CLOSED))
    with Journal(tmp_path) as second:
        assert second.ended_before == []
    assert ends(tmp_path) == {("a", LeaseEnd.CLOSED): 1}
    assert [line.what for line in read(tmp_path / "1.jsonl")][-1] == LifeEnded()


@pytest.mark.parametrize("tail", [b"", b'{"record":"JournalLine","at":1.0,"what":{"record":"LeaseOp'])
def test_a_killed_life_is_ended_once_over_any_number_of_kills(tmp_path, tail):
    done = LeaseEnded(lease="b", reason=LeaseEnd.CLOSED)
    killed_after(tmp_path, [opened("a"), opened("b"), done, opened("c")], tail)
    killed_after(tmp_path, [opened("d")], tail)
    for found in (["a", "c", "d"], [], []):
        with Journal(tmp_path) as next_one:
            assert next_one.ended_before == found
    assert ends(tmp_path) == {
        ("a", LeaseEnd.KILLED): 1, ("b", LeaseEnd.CLOSED): 1, ("c", LeaseEnd.KILLED): 1, ("d", LeaseEnd.KILLED): 1,
    }  # fmt: skip


def test_a_kill_in_the_middle_of_reconciling(tmp_path):
    """Some ends were written, the last line was not."""
    killed_after(tmp_path, [opened("a"), opened("b"), LeaseEnded(lease="a", reason=LeaseEnd.KILLED)])
    with Journal(tmp_path) as next_one:
        assert next_one.ended_before == ["b"]
    assert ends(tmp_path) == {("a", LeaseEnd.KILLED): 1, ("b", LeaseEnd.KILLED): 1}


def test_two_servers_cannot_share_a_folder(tmp_path):
    with Journal(tmp_path), pytest.raises(MachineStartError, match="give this one another --folder"):
        Journal(tmp_path).__enter__()


def test_an_end_that_was_not_in_order_has_no_last_line(tmp_path):
    first = Journal(tmp_path).__enter__()
    first.write(opened("a"))
    first.__exit__(RuntimeError, RuntimeError(), None)
    with Journal(tmp_path) as second:
        assert second.ended_before == ["a"]


def test_old_lives_are_forgotten_but_never_the_newest(tmp_path):
    for _ in range(3):
        with Journal(tmp_path):
            pass
    for path in tmp_path.glob("*.jsonl"):
        os.utime(path, (0, 0))
    with Journal(tmp_path):
        assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["3.jsonl", "4.jsonl"]


def test_processes_that_outlived_their_server_are_ended():
    """By their mark, and only while no other process has the number of the dead one."""
    marked = [sys.executable, "-c", "import time; time.sleep(60)", f"twinmill-{DEAD}"]
    stray = subprocess.Popen(marked)
    try:
        journal.end_processes(os.getppid())  # alive: not ours to touch
        assert stray.poll() is None
        journal.end_processes(DEAD)
        assert stray.wait(5) == -signal.SIGKILL
    finally:
        stray.kill()


def test_a_journal_that_was_written_by_somebody_else_is_no_crash(tmp_path):
    (tmp_path / "1.jsonl").write_bytes(b'\x00\xff\n{"a": 1}\n')
    with Journal(tmp_path) as found:
        assert found.ended_before == []
