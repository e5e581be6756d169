"""The heartbeat of a process."""

import time

from twinmill.launch.beat import Heart, pulse


def test_every_beat_changes_the_pulse_but_not_too_often(tmp_path):
    path = tmp_path / "beat"
    heart = Heart(path)
    assert pulse(path) is None
    heart.beat()
    first = pulse(path)
    assert first is not None
    heart.beat()
    assert pulse(path) == first, "inner loops must not pay for every call"
    time.sleep(0.25)
    heart.beat()
    assert pulse(path) > first


def test_a_thread_beats_until_it_is_told_to_stop(tmp_path):
    path = tmp_path / "beat"
    stop = Heart(path).start(interval_s=0.21)
    time.sleep(0.3)
    early = pulse(path)
    time.sleep(0.5)
    assert pulse(path) > early
    stop.set()
    time.sleep(0.3)
    last = pulse(path)
    time.sleep(0.5)
    assert pulse(path) == last


def test_without_a_supervisor_a_beat_is_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Heart(None).beat()
    assert list(tmp_path.iterdir()) == []
