"""Ctrl-C, SIGTERM and kill -9 of the supervisor itself: nobody is left, and the run is free for a resume."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from twinmill.launch.death import watch_parent
from twinmill.launch.lock import RunHeld, RunLock

from .processes import alive, gone, pids_in

SUPERVISOR = """
import os, sys
from twinmill.launch.lock import RunLock
from twinmill.launch.spec import ProcessSpec
from twinmill.launch.supervisor import Supervisor

folder = sys.argv[1]
with RunLock(folder + "/lock", wait_s=0) as lock:
    specs = [ProcessSpec(name=name, argv=(sys.executable, "-c", code, folder), cwd=folder, grace_s=5,
    tier=tier)
             for name, code, tier in SPECS]
    outcome = Supervisor(specs, main="main", log_dir=folder, environment=dict(os.environ),
    keep_fds=(lock.fd,),
                         on_line=lambda *line: print(*line, flush=True)).run()
print(outcome.ending.value, outcome.reason, flush=True)
sys.exit(outcome.code)
"""

# A role: watches the death pipe, has a grandchild in its group, and leaves its own pid and the grandchild's.
ROLE = """
import os, signal, subprocess, sys, time
from twinmill.launch.death import DEATH_FD, watch_parent
if HANDLER:
    def end(*_):
        open(os.path.basename(str(os.getpid())) + ".left", "w").close()
        child.kill(); child.wait(); sys.exit(0)
    signal.signal(signal.SIGTERM, end)
watch_parent(int(os.environ[DEATH_FD]), grace_s=GRACE)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
for pid in (os.getpid(), child.pid):
    open(f"{pid}.tmp", "w").write(str(pid)); os.rename(f"{pid}.tmp", f"{pid}.pid")
while True: time.sleep(.05)
"""


def start(folder, *roles):
    """roles: (name, handler, grace_s)"""
    specs = [
        (name, ROLE.replace("HANDLER", str(handler)).replace("GRACE", str(grace)), tier)
        for tier, (name, handler, grace) in enumerate(roles)
    ]
    code = textwrap.dedent(SUPERVISOR).replace("SPECS", repr(specs))
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # nohup has it ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    return supervisor, pids_in(folder, 2 * len(roles))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_in_order_and_is_told_to_the_caller(tmp_path, number):
    supervisor, pids = start(tmp_path, ("main", True, 5), ("side", True, 5))
    supervisor.send_signal(number)
    out, _ = supervisor.communicate(timeout=15)
    assert supervisor.returncode == 128 + number
    assert out.splitlines()[-1] == f"interrupted {number.name}"
    assert gone(pids, within_s=0.5)
    assert len(list(tmp_path.glob("*.left"))) == 2  # both had the time to leave in order


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ROLE.replace("HANDLER", "False")
    code = SUPERVISOR.replace("grace_s=5", "grace_s=60").replace(
        "SPECS", repr([("main", deaf.replace("GRACE", "1"), 0)])
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], start_new_session=True)
    pids = pids_in(tmp_path, 2)
    supervisor.send_signal(signal.SIGINT)
    time.sleep(0.7)
    assert alive(pids[0])
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(timeout=5) == 130
    assert gone(pids, within_s=0.5)


def test_kill_9_of_the_supervisor_leaves_no_orphan_and_frees_the_run(tmp_path):
    supervisor, pids = start(tmp_path, ("main", True, 5), ("side", False, 0))
    with pytest.raises(RunHeld, match=str(supervisor.pid)), RunLock(tmp_path / "lock", wait_s=0.1):
        pass
    supervisor.kill()
    supervisor.wait()
    with RunLock(tmp_path / "lock", wait_s=10):  # free as soon as the last one is gone, not before
        assert gone(pids, within_s=0.5)
    assert len(list(tmp_path.glob("*.left"))) == 1  # the one with a handler left in order


def test_kill_9_of_the_supervisor_ends_a_stopped_process_too(tmp_path):
    supervisor, pids = start(tmp_path, ("main", True, 1))
    roles = [pid for pid in pids if os.getsid(pid) == pid]
    os.kill(roles[0], signal.SIGSTOP)
    supervisor.kill()
    supervisor.wait()
    assert gone(pids)


def test_a_role_that_does_not_end_within_its_grace_is_killed_with_its_group(tmp_path):
    stubborn = ROLE.replace("child.kill(); child.wait(); sys.exit(0)", "pass").replace("HANDLER", "True")
    code = SUPERVISOR.replace("SPECS", repr([("main", stubborn.replace("GRACE", "0.3"), 0)]))
    supervisor = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], start_new_session=True)
    pids = pids_in(tmp_path, 2)
    supervisor.kill()
    supervisor.wait()
    assert gone(pids)
    assert len(list(tmp_path.glob("*.left"))) == 1


def test_a_wrong_descriptor_is_the_callers_mistake_not_a_death():
    with pytest.raises(OSError):
        watch_parent(999)


def test_the_lock_is_free_after_a_normal_end(tmp_path):
    for _ in range(2):
        with RunLock(tmp_path / "lock", wait_s=0):
            pass
