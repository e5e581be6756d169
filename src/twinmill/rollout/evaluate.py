"""Held-out pass rates: attempts at a fixed list of tasks, with intervals and honest pairing."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence

from twinmill.data.curriculum import attempt_seed
from twinmill.data.tasks.base import TaskSet
from twinmill.records.base import Record

from .mill import Audit, Play, no_audit


class EvalConfig(Record):
    """Which tasks are held out, and how often they are looked at."""

    tasks: int = 100
    """tasks in one evaluation"""
    attempts: int = 1
    """attempts at each"""
    split: str = "heldout"
    """split of the task set"""
    temperature: float = 0.3
    """of sampling; 0 = greedy"""
    every: int = 10
    """versions between two evaluations; 0 = only the first and the last"""
    between_tasks: int = 50
    """tasks in an evaluation between the first and the last"""
    machines: int = 8
    """attempts played at once"""
    seed: int = 20_000
    """of sampling; the tasks are always the first ones of the split"""


class Score(Record):
    """One evaluation. rewards_T_K: per task, per attempt; None = lost to infrastructure."""

    task_ids: tuple[str, ...]
    rewards_T_K: tuple[tuple[float | None, ...], ...]
    temperature: float

    def pass_at(self, k: int) -> float:
        return pass_at_k(self.rewards_T_K, k)


def pass_at_k(rewards_T_K: Sequence[Sequence[float | None]], k: int) -> float:
    """Unbiased estimate (Chen et al., 2107.03374), mean over tasks; attempts lost to infrastructure do not count."""
    values = []
    for rewards in rewards_T_K:
        graded = [r for r in rewards if r is not None]
        n, right = len(graded), sum(r >= 1.0 for r in graded)
        if n >= k:
            values.append(1.0 - math.comb(n - right, k) / math.comb(n, k))
    return sum(values) / len(values) if values else float("nan")


def interval(values: Sequence[float], *, seed: int = 0, draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over tasks."""
    if not values:
        return float("nan"), float("nan")
    rng = random.Random(seed)
    n = len(values)
    means = sorted(sum(rng.choices(values, k=n)) / n for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def per_task(score: Score) -> list[float]:
    """pass@1 of each task, in order; tasks with no graded attempt are left out (NaN)."""
    means = []
    for rewards in score.rewards_T_K:
        graded = [float(r >= 1.0) for r in rewards if r is not None]
        means.append(sum(graded) / len(graded) if graded else float("nan"))
    return means


def gain(before: Score, after: Score) -> tuple[float, float, float]:
    """Mean difference of pass@1 over the tasks that both have, with its 95 % interval (paired by task)."""
    other = dict(zip(before.task_ids, per_task(before)))
    pairs = [b - other[t] for t, b in zip(after.task_ids, per_task(after)) if t in other]
    differences = [d for d in pairs if not math.isnan(d)]
    low, high = interval(differences)
    return sum(differences) / len(differences) if differences else float("nan"), low, high


async def evaluate(
    taskset: TaskSet,
    play: Play,
    config: EvalConfig,
    *,
    tasks: int | None = None,
    on_done: Callable[[float | None], None] = lambda reward: None,
    audit: Audit = no_audit,
) -> Score:
    """Play `tasks` (default config.tasks) held-out tasks, config.attempts times each. A hack is no pass."""
    ids = list(taskset.ids(config.split)[: tasks or config.tasks])
    room = asyncio.Semaphore(config.machines)

    async def one(i: int, k: int) -> float | None:
        task = taskset.load(ids[i])
        async with room:
            episode, verdict = await play(
                task,
                episode_id=f"eval-{ids[i]}-{k}",
                group_id=f"eval-{ids[i]}",
                attempt=k,
                seed=attempt_seed(config.seed, i, k),
            )
        verdict, _ = audit(task, episode, verdict)
        on_done(verdict.reward)
        return verdict.reward

    rewards = await asyncio.gather(*(one(i, k) for i in range(len(ids)) for k in range(config.attempts)))
    rows = [tuple(rewards[i * config.attempts : (i + 1) * config.attempts]) for i in range(len(ids))]
    return Score(task_ids=tuple(ids), rewards_T_K=tuple(rows), temperature=config.temperature)
