"""Pass rates: hand-computed, paired, and blind to what infrastructure lost."""

import asyncio
import math

import pytest

from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.records.episodes import Episode, StopReason, Usage, Verdict
from twinmill.rollout.evaluate import EvalConfig, Score, evaluate, gain, interval, pass_at_k, per_task


def test_pass_at_k_by_hand():
    assert pass_at_k([(1.0, 0.0, 0.0, 0.0)], 1) == 0.25
    assert pass_at_k([(1.0, 0.0, 0.0, 0.0)], 2) == pytest.approx(0.5)  # 1 - C(3,2)/C(4,2)
    assert pass_at_k([(1.0, 1.0), (0.0, 0.0)], 2) == 0.5
    assert pass_at_k([(1.0, None), (0.0, 0.0)], 1) == 0.5  # the lost attempt does not count as a failure
    assert pass_at_k([(None, None), (1.0, 1.0)], 1) == 1.0
    assert math.isnan(pass_at_k([(None,)], 1))


def test_gain_pairs_by_task_and_its_interval_holds_the_truth():
    before = Score(task_ids=("a", "b", "c", "d"), rewards_T_K=((0.0,), (0.0,), (1.0,), (None,)), temperature=0)
    after = Score(task_ids=("b", "a", "c", "e"), rewards_T_K=((1.0,), (0.0,), (1.0,), (1.0,)), temperature=0)
    change, low, high = gain(before, after)
    assert change == pytest.approx(1 / 3)
    assert 0.0 <= low <= change <= high <= 1.0
    assert per_task(before)[:3] == [0.0, 0.0, 1.0]
    low, high = interval([0.0, 1.0] * 50)
    assert 0.38 < low < 0.5 < high < 0.62


def test_evaluation_plays_the_first_tasks_of_the_split_each_attempt_with_its_own_seed():
    seen = []

    async def play(task, *, episode_id, group_id, attempt, seed):
        seen.append((task.id, attempt, seed))
        episode = Episode(
            id=episode_id, task_id=task.id, group_id=group_id, attempt=attempt, segments=(), stop=StopReason.FINISHED,
            versions=(-1, -1), usage=Usage(), cluster="c", seed=seed,
        )  # fmt: skip
        return episode, Verdict(episode_id=episode_id, scores={}, reward=float(attempt == 0))

    score = asyncio.run(evaluate(TinyRepo(0), play, EvalConfig(tasks=3, attempts=2)))
    assert score.task_ids == tuple(TinyRepo(0).ids("heldout")[:3])
    assert score.rewards_T_K == ((1.0, 0.0),) * 3
    assert len({seed for _, _, seed in seen}) == 6
