"""The supervisor against real processes that crash, hang, flood and will not go."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twinmill.launch.beat import BEAT_FILE
from twinmill.launch.outcome import Ending, What
from twinmill.launch.spec import ProcessSpec, Restart, SpecError
from twinmill.launch.supervisor import Supervisor

from .processes import QUICK, Run, gone, pids_in, spec

FOREVER = "import time\nwhile True: time.sleep(.05)"
BEATING = """
import os, time, pathlib
while True:
    pathlib.Path(os.environ["TWINMILL_BEAT_FILE"]).touch()
    time.sleep(.05)
"""


def test_run_ends_when_the_main_process_is_done_and_takes_the_others_along(tmp_path):
    run = Run([spec("side", FOREVER), spec("main", "print('hello')")], tmp_path)
    assert run.outcome.ending is Ending.DONE
    assert run.outcome.code == 0
    assert run.of("main") == ["hello"]
    assert run.supervisor.pids() == {}
    assert not run.said(What.FAILED)


def test_another_process_that_ends_well_does_not_end_the_run(tmp_path):
    run = Run([spec("side", "pass"), spec("main", "import time; time.sleep(.6)")], tmp_path)
    assert run.outcome.ending is Ending.DONE
    assert [n.name for n in run.said(What.FINISHED)] == ["side", "main"]


def test_a_crash_is_restarted_and_the_run_goes_on(tmp_path):
    crash_once = "import os, sys\nif not os.path.exists('seen'): open('seen', 'w'); sys.exit(3)\nprint('back')"
    run = Run([spec("main", crash_once, restart=QUICK, cwd=str(tmp_path))], tmp_path)
    assert run.outcome.code == 0
    assert run.outcome.restarts == {"main": 1}
    assert run.said(What.FAILED)[0].text == "exit 3"
    assert run.of("main") == ["back"]


def test_a_crash_loop_stops_the_run_and_shows_the_last_lines(tmp_path):
    crash = "import sys\nprint('about to fail')\nraise RuntimeError('no such shard 7')"
    started = time.monotonic()
    run = Run([spec("side", FOREVER), spec("main", crash, restart=QUICK)], tmp_path)
    assert run.outcome.ending is Ending.FAILED
    assert run.outcome.code == 1
    assert run.outcome.culprit == "main"
    assert "3 failures" in run.outcome.reason
    assert run.outcome.restarts == {"main": 2}
    assert run.outcome.tail[-1] == "RuntimeError: no such shard 7"
    assert time.monotonic() - started < 10


def test_backoff_doubles_and_old_failures_are_forgotten():
    policy = Restart(backoff_s=1, backoff_max_s=5)
    assert [policy.delay_s(n) for n in (1, 2, 3, 4, 99)] == [1, 2, 4, 5, 5]


def test_failures_outside_the_window_do_not_count(tmp_path):
    crash_thrice = """
import pathlib, sys, time
time.sleep(.4)
seen = pathlib.Path('seen'); n = len(seen.read_text()) if seen.exists() else 0
seen.write_text('x' * (n + 1)); sys.exit(0 if n == 3 else 1)
"""
    lenient = Restart(attempts=1, within_s=0.3, backoff_s=0)
    run = Run([spec("main", crash_thrice, restart=lenient, cwd=str(tmp_path))], tmp_path)
    assert run.outcome.code == 0
    assert run.outcome.restarts == {"main": 3}


def test_without_restart_a_failure_is_final(tmp_path):
    run = Run([spec("main", FOREVER), spec("side", "raise SystemExit(7)")], tmp_path)
    assert (run.outcome.code, run.outcome.culprit, run.outcome.reason) == (1, "side", "side: exit 7")


def test_the_run_goes_on_without_a_process_that_is_not_critical(tmp_path):
    specs = [spec("main", "import time; time.sleep(.8)"), spec("side", "raise SystemExit(7)", critical=False)]
    run = Run(specs, tmp_path)
    assert run.outcome.code == 0
    assert "goes on without it" in run.said(What.GAVE_UP, "side")[0].text


def test_a_program_that_is_not_there_stops_the_run_with_its_name(tmp_path):
    missing = ProcessSpec(name="side", argv=("/no/such/program",), restart=QUICK)
    run = Run([spec("main", FOREVER), missing], tmp_path)
    assert run.outcome.code == 1
    assert "/no/such/program" in run.outcome.reason
    assert run.outcome.restarts == {}


def test_a_stopped_process_is_named_killed_and_restarted(tmp_path):
    stopped: list[int] = []

    def stop_it_once(run: Run) -> None:
        pids = run.supervisor.pids()
        beat = tmp_path / "engine.beat"
        if not stopped and "engine" in pids and beat.exists():
            stopped.append(pids["engine"])
            os.kill(pids["engine"], signal.SIGSTOP)
        if len(run.said(What.STARTED, "engine")) == 2 and beat.exists():
            run.supervisor.request_stop("seen enough")

    engine = spec("engine", BEATING, beat_s=0.8, start_s=20, restart=QUICK)
    run = Run([spec("main", FOREVER), engine], tmp_path, on_tick=stop_it_once)
    assert run.outcome.reason == "seen enough"
    assert run.said(What.HUNG, "engine")
    assert "(stopped)" in run.said(What.HUNG, "engine")[0].text
    assert run.outcome.restarts == {"engine": 1}
    assert gone(stopped)


def test_a_hanging_loop_is_asked_where_it_hangs(tmp_path):
    stuck = """
import os, time
from twinmill.launch.beat import Heart
heart = Heart(os.environ["TWINMILL_BEAT_FILE"])
heart.beat()
def the_stuck_place():
    time.sleep(100)
the_stuck_place()
"""
    run = Run([spec("main", stuck, beat_s=0.5, start_s=30)], tmp_path)
    assert run.outcome.culprit == "main"
    assert "(waiting)" in run.outcome.reason
    assert any("the_stuck_place" in line for line in run.outcome.tail)


def test_no_first_beat_within_start_s_is_a_hang_and_a_slow_start_is_not(tmp_path):
    run = Run([spec("main", FOREVER, beat_s=0.1, start_s=0.6)], tmp_path)
    assert run.outcome.ending is Ending.FAILED
    assert 0.6 < run.said(What.HUNG)[0].at - run.said(What.STARTED)[0].at < 3


def test_a_pulse_of_ones_own_replaces_the_file(tmp_path):
    run = Run([spec("main", "import time; time.sleep(1.5)", beat_s=0.4, start_s=0.4)], tmp_path / "a",
              pulses={"main": time.monotonic})  # fmt: skip
    assert run.outcome.code == 0
    run = Run([spec("main", FOREVER, beat_s=0.4, start_s=0.4)], tmp_path / "b", pulses={"main": lambda: 1})
    assert run.said(What.HUNG, "main")


def test_time_in_which_the_supervisor_itself_stood_still_is_no_hang(tmp_path):
    slept = []

    def sleep_once(run: Run) -> None:
        if not slept and (tmp_path / "main.beat").exists():
            os.kill(run.supervisor.pids()["main"], signal.SIGSTOP)  # the whole laptop is suspended ...
            time.sleep(2.5)
            os.kill(run.supervisor.pids()["main"], signal.SIGCONT)  # ... and wakes up
            slept.append(True)

    code = BEATING.replace("while True", "until = time.time() + 4\nwhile time.time() < until")
    run = Run([spec("main", code, beat_s=1.0, start_s=20)], tmp_path, on_tick=sleep_once)
    assert slept
    assert run.outcome.code == 0
    assert not run.said(What.HUNG)


def test_tiers_stop_in_descending_order_and_who_ignores_sigterm_is_killed(tmp_path):
    trap = """
import signal, sys, time
def end(*_): print('bye', flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('up', flush=True)
while True: time.sleep(.05)
"""
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n" + FOREVER

    def stop_when_up(run: Run) -> None:
        if [line for _, line in run.lines].count("up") == 3:
            run.supervisor.request_stop("enough")

    specs = [
        spec("main", trap, tier=0),
        spec("engine", deaf, tier=1, grace_s=0.5),
        spec("rollout", trap, tier=2),
    ]
    run = Run(specs, tmp_path, on_tick=stop_when_up)
    assert [name for name, line in run.lines if line == "bye"] == ["rollout", "main"]
    killed = run.said(What.KILLED)
    assert [n.name for n in killed] == ["engine"]
    assert run.supervisor.pids() == {}


def test_grandchildren_are_killed_with_a_crash_and_with_a_hang(tmp_path):
    # One shares the group, one has a group of its own in the same session, one a session of its own.
    parent = """
import os, signal, subprocess, sys, time
child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(100)"
for name, settings in [("a", {}), ("b", {"process_group": 0}), ("c", {"start_new_session": True})]:
    subprocess.Popen([sys.executable, "-c", child, os.environ["LAST"] + name + ".pid"], **settings)
while len([f for f in os.listdir() if f.endswith(".pid") and os.path.getsize(f)]) < int(os.environ["COUNT"]):
    time.sleep(.02)
if os.environ["LAST"] == "crash": os.kill(os.getpid(), signal.SIGKILL)
time.sleep(100)
"""
    crash, hang = tmp_path / "crash", tmp_path / "hang"
    crash.mkdir(), hang.mkdir()
    run = Run([spec("main", parent, cwd=str(crash), env={"LAST": "crash", "COUNT": "3"})], crash)
    assert "SIGKILL" in run.outcome.reason
    assert gone(pids_in(crash, 3))
    run = Run([spec("main", parent, cwd=str(hang), env={"LAST": "hang", "COUNT": "3"}, beat_s=3, start_s=3)], hang)
    assert run.said(What.HUNG)
    assert gone(pids_in(hang, 3))


def test_a_grandchild_that_holds_the_pipe_open_does_not_hold_up_the_end(tmp_path):
    code = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10)"], start_new_session=True, env={})
print("done")
"""
    started = time.monotonic()
    run = Run([spec("main", code)], tmp_path)
    assert run.outcome.code == 0
    assert run.of("main") == ["done"]
    assert time.monotonic() - started < 8


def test_what_a_killed_supervisor_left_is_gone_before_the_next_life_starts(tmp_path):
    beat = tmp_path / "main.beat"
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True, env={BEAT_FILE: str(beat)}
    )
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True, env={BEAT_FILE: f"{beat}2"}
    )
    try:
        run = Run([spec("main", "print('up')")], tmp_path)
        assert run.of("main") == ["up"]
        assert left.wait(timeout=1) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_relative_log_folder_serves_processes_in_other_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = BEATING.replace("while True", "until = time.time() + 1.5\nwhile time.time() < until")
    (tmp_path / "elsewhere").mkdir()
    run = Run([spec("main", code, cwd="elsewhere", beat_s=0.7, start_s=5)], Path("logs"))
    assert run.outcome.code == 0
    assert (tmp_path / "logs" / "main.beat").exists()


def test_a_callback_that_raises_leaves_nobody_behind(tmp_path):
    pids = []

    def explode(run: Run) -> None:
        if run.of("main"):
            pids.extend(run.supervisor.pids().values())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Run(
            [spec("main", "print('up', flush=True)\n" + FOREVER), spec("side", FOREVER)],
            tmp_path,
            on_tick=explode,
        )
    assert len(pids) == 2
    assert gone(pids, within_s=0.1)


def test_threads_and_environment_reach_the_process(tmp_path):
    code = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['EXTRA'], 'PATH' in os.environ)"
    run = Run([spec("main", code, cpu_threads=3, env={"EXTRA": "x"})], tmp_path)
    assert run.of("main") == ["3 x True"]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([ProcessSpec(name="other", argv=("true",))], "main"),
        ([ProcessSpec(name="main", argv=())], "argv is empty"),
        ([ProcessSpec(name="main", argv=("true",)), ProcessSpec(name="main", argv=("true",))], "main.log"),
        ([ProcessSpec(name="main", argv=("true",), grace_s=-1)], "grace_s"),
    ],
)
def test_specs_that_contradict_themselves_are_refused_before_anything_starts(specs, words, tmp_path):
    with pytest.raises(SpecError, match=words):
        Supervisor(specs, main="main", log_dir=tmp_path, environment={})
