"""The benchmark of four agents, at its smallest: two of them, one killed, and all bounds hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import agents
from twinmill.env.machine import native
from twinmill.env.machine.remote.journal import Journal
from twinmill.records.machines import LeaseEnd, LeaseEnded, LeaseOpened

PROGRAM = Path(__file__).parents[2] / "bench" / "agents.py"


@pytest.mark.skipif(bool(native.supported()), reason="no native machines here")
@pytest.mark.parametrize("more", [(), ("--plain",)])
def test_a_tiny_run_loses_nothing(more):
    tiny = ("--machines", "24", "--agents", "2", "--at-once", "4", *more)
    done = subprocess.run([sys.executable, PROGRAM, *tiny], capture_output=True, text=True, timeout=280)
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and result["ok"], done.stdout + done.stderr
    found = result["measured"]
    assert (found["leases_not_ended_once"], found["orphans"], found["infra_rewards"]) == (0, 0, 0)
    assert found["graded"] == found["alive_at_once"] == 24
    # every try had one lease. The kill may take a machine whose attempt is graded and whose end is still on its way
    assert found["leases"] == 24 + found["tries_lost"] > 24
    assert found["leases_killed"] > 0
    assert (
        found["namespaces"] == 0 if more else ("NO NETWORK NAMESPACES HERE" in done.stdout) == (not found["namespaces"])
    )


def test_leases_without_an_end_and_with_two_are_counted(tmp_path):
    agent = agents.Agent(agents.Namespace("", "127.0.0.1"), tmp_path)
    with Journal(tmp_path) as journal:
        for lease in ("once", "never", "twice"):
            journal.write(LeaseOpened(lease=lease, tenant="t", key=lease * 3))
        for lease in ("once", "twice", "twice", "unknown"):
            journal.write(LeaseEnded(lease=lease, reason=LeaseEnd.CLOSED))
    assert agent.not_ended_once() == (3, 3)


def test_where_no_namespace_can_be_made_nothing_is_left_of_the_trial(monkeypatch):
    ran = []

    def ip(*words):
        ran.append(words)
        if words[0] == "link":
            raise OSError("ip link: Operation not permitted")

    monkeypatch.setattr(agents, "_ip", ip)
    with pytest.raises(OSError, match="not permitted"):
        agents.make_namespaces(2)
    names = [words[2] for words in ran if words[:2] == ("netns", "add")]
    assert names == [words[2] for words in ran if words[:2] == ("netns", "del")] != []
