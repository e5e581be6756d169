"""bench trl: both sides get the same problems, ours plays them as one turn, and the figures are medians of what counts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import _single_turn
import trl
from _single_turn import SAMPLES_PER_STEP, Problem, reward
from _trl_rollout import SingleTurn
from tests.bench.traces import slot, step, trace
from tests.data.test_render import RENDERERS
from twinmill.cli.config import load_recipe
from twinmill.data.curriculum import task_of
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.engine.scripted import ScriptedEngine
from twinmill.env.harness.loop import HarnessConfig
from twinmill.env.machine.fake import FakeMachine
from twinmill.records.episodes import StopReason

NANO = RENDERERS["nano"]


@pytest.mark.parametrize(
    ("sampled", "right", "value"),
    [
        ([4, 9, 6], [4, 9, 6], 1.0),
        ([4, 9, 9, 6], [4, 9, 7, 6], 0.75),
        ([8], [4, 6], 0.0),
        ([6, 6, 6, 6], [4, 6], 1 / 3),
    ],
)
def test_the_reward_is_the_overlap_of_two_bags(sampled, right, value):
    assert reward(sampled, right) == pytest.approx(value)


@pytest.fixture
def found(monkeypatch) -> list[Problem]:
    monkeypatch.setattr(trl, "open_renderer", lambda folder: NANO)
    monkeypatch.setattr(trl, "PROMPTS_PER_STEP", 3)
    return trl.problems(trl.MODEL, 2)


def test_problems_come_in_the_order_of_slots_and_their_text_says_their_ids(found):
    ids = TinyRepo(0).ids("train")
    assert [problem.task_id for problem in found] == [task_of(slot, ids, trl.SEED) for slot in range(6)]
    for problem in found:
        assert NANO.decode(problem.prompt_ids) == problem.prompt_text
        assert problem.right_ids[-1] in NANO.stop_ids and reward(problem.right_ids, problem.right_ids) == 1.0


def test_problems_are_written_and_read(found, tmp_path):
    _single_turn.write(tmp_path / "p.json", found)
    assert _single_turn.read(tmp_path / "p.json") == found


def play(problem: Problem, said: list[int]):
    player = SingleTurn(
        problems=[problem], engine=ScriptedEngine(lambda request: said), renderer=NANO, make_machine=FakeMachine,
        harness=HarnessConfig(), cluster="c",
    )  # fmt: skip
    task = TinyRepo(0).load(problem.task_id)
    return asyncio.run(player(task, episode_id="1-0-0", group_id="1", attempt=0, seed=3))


def test_an_attempt_is_one_turn_without_machine_and_graded_by_its_ids(found):
    episode, verdict = play(found[0], found[0].right_ids)
    assert episode.stop is StopReason.TURNS and episode.usage.turns == 1 and episode.error is None
    assert episode.segments[0].turns[0].input_ids == found[0].prompt_ids
    assert verdict.reward == 1.0
    rambling = found[0].right_ids[:-1] + [50] * 300
    episode, verdict = play(found[0], rambling)
    assert episode.usage.sampled_tokens == _single_turn.NEW_TOKENS
    assert verdict.reward == reward(rambling[: _single_turn.NEW_TOKENS], found[0].right_ids)


def test_prompts_that_differ_from_the_agreed_ones_stop_the_run(found):
    with pytest.raises(ValueError, match="other ids"):
        play(found[0]._replace(prompt_ids=found[0].prompt_ids[1:]), [50])


def test_the_recipe_takes_what_both_sides_share():
    config = load_recipe(trl.RECIPE, trl.overrides(Path(__file__).parents[2] / "models" / "nano", 9))
    assert config.rl.window.groups_per_step * config.rollout.group_size == SAMPLES_PER_STEP
    assert config.rl.optimizer.lr == _single_turn.LEARNING_RATE and config.rl.steps == 9
    assert config.rl.window.window == 2 and config.rl.preparation.packing.keep_idle


def test_the_sweep_covers_threads_types_and_rows():
    assert len(trl.sweep(1)) == 4 and len(trl.sweep(2)) == 8
    assert {setting.rows for setting in trl.sweep(2)} == {SAMPLES_PER_STEP // 4, SAMPLES_PER_STEP}


def test_the_fastest_setting_is_found_and_then_tried_with_the_other_experts(monkeypatch, tmp_path):
    def fake(interpreter, folder, model, setting, steps, label):
        seconds = (
            2.0 - 0.5 * (setting.dtype == "bf16") - 0.5 * (setting.threads == 2) + 0.1 * (setting.experts == "eager")
        )
        return trl.Side([seconds], 1.0, 1.0)

    monkeypatch.setattr(trl, "run_trl", fake)
    best, speeds = trl.fastest(tmp_path, tmp_path, tmp_path, 3, cores=2)
    assert (best.threads, best.dtype, best.experts) == (2, "bf16", "grouped_mm")
    assert len(speeds) == 9


def test_our_steps_count_from_the_warm_up_to_the_last_close():
    run = trace(10.0, steps=9)
    late = replace(run, slots=[*run.slots[:9], slot(71.0, 8, "close")])
    assert trl.side_of(late).step_s == [10.0] * 5  # steps 2 to 6 of 0 to 8
    with pytest.raises(ValueError, match="too few steps"):
        trl.side_of(replace(run, slots=[*run.slots[:9], slot(31.0, 8, "close")]))
    with pytest.raises(ValueError, match="fewer samples"):
        trl.side_of(replace(late, steps=[step(0, 10.0, wait=0, compute=1, samples=5), *run.steps[1:]]))


def test_the_ratio_is_of_medians_over_all_rounds():
    ours = [trl.Side([1.0, 1.0, 9.0], 20.0, 0.5), trl.Side([1.0, 1.0], 22.0, 0.5)]
    theirs = [trl.Side([2.0, 3.0], 21.0, 0.5), trl.Side([2.0], 21.0, 0.5)]
    found = trl.measured(ours, theirs)
    assert found["ratio_wall"] == pytest.approx(2.0)
    assert found["samples_per_s"] == SAMPLES_PER_STEP and found["tokens"] == 21.0


def test_steps_that_would_not_count_are_refused(capsys):
    with pytest.raises(SystemExit):
        trl.main(["--trl-steps", "2"])
    assert "do not count" in capsys.readouterr().err
