"""bench learn: what it makes of made-up runs and scores."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import learn
from learn import Exam, best, exams, heldout_loss, rl_seconds, sft_steps_in
from twinmill.rollout.evaluate import Score


def a_score(*right: float) -> Score:
    return Score(task_ids=tuple(map(str, right)), rewards_T_K=tuple((r,) for r in right), temperature=0.0)


def metrics(folder: Path, *lines: dict) -> Path:
    (folder / "metrics").mkdir()
    (folder / "metrics" / "trainer.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_every_temperature_is_tried_and_the_best_one_counts():
    asked = exams("unopened", 8, eight=True)
    assert [e.temperature for e in asked if e.attempts == 1] == list(learn.TEMPERATURES)
    assert [(e.tasks, e.attempts) for e in asked if e.attempts > 1] == [(2, 8)]
    cold, warm = Exam("unopened", 2, 1, 0.0), Exam("unopened", 2, 1, 0.7)
    assert best({cold: a_score(1.0, 0.0), warm: a_score(1.0, 1.0)}) == (0.7, a_score(1.0, 1.0))


def test_the_arms_times_come_from_what_the_trainer_wrote(tmp_path):
    run = metrics(
        tmp_path,
        {"kind": "heldout", "stage": "before", "loss": 3.0, "t": 0.0},
        {"kind": "heldout", "stage": "after", "loss": 2.5, "t": 1.0},
        *({"kind": "train", "source": "sft", "t": 2.0 + 0.5 * i} for i in range(5)),
        {"kind": "phase", "name": "rl", "state": "start", "t": 10.0},
        {"kind": "phase", "name": "rl", "state": "end", "t": 40.0},
    )
    assert heldout_loss(run) == {"before": 3.0, "after": 2.5}
    assert rl_seconds(run) == 30.0
    assert sft_steps_in(run, 30.0) == 60


def test_a_run_that_was_broken_off_is_begun_anew_and_a_finished_one_used_again(tmp_path, monkeypatch):
    begun = []

    def fake(command, **_):
        root = Path(command[command.index("--root") + 1])
        assert not root.exists()
        (root / "learn-1").mkdir(parents=True)
        (root / "learn-1" / "run.json").touch()
        begun.append(root.name)

    monkeypatch.setattr(learn.subprocess, "run", fake)
    (tmp_path / "window2-0" / "half").mkdir(parents=True)
    assert (
        learn.run(tmp_path, "window2-0")[0] == learn.run(tmp_path, "window2-0")[0] == tmp_path / "window2-0" / "learn-1"
    )
    assert begun == ["window2-0"]


def test_help_says_what_it_measures():
    done = subprocess.run([sys.executable, learn.__file__, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "Does RL learn?" in done.stdout


@pytest.mark.parametrize("seconds", [0.1, 2.0])
def test_continued_sft_has_at_least_one_step(tmp_path, seconds):
    run = metrics(tmp_path, *({"kind": "train", "source": "sft", "t": 2.0 * i} for i in range(3)))
    assert sft_steps_in(run, seconds) == 1
