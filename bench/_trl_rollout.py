"""Process role `rollout/<cluster>` of `bench trl`: the shipped mill and harness; one turn, no machine, the shared reward.

python _trl_rollout.py RUN NAME        (with PROBLEMS_FILE in the run folder)
"""

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from _single_turn import NEW_TOKENS, Problem, read, reward
from twinmill.cli.proc.base import enter
from twinmill.cli.proc.rollout import rollout
from twinmill.env.harness.loop import Identity, run_attempt
from twinmill.env.machine.fake import FakeMachine
from twinmill.records.episodes import Episode, Score, Verdict
from twinmill.records.tasks import Budget, Task
from twinmill.rollout.play import Player

PROBLEMS_FILE = "problems.json"
CONTEXT_TOKENS = 512


class SingleTurn(Player):
    """Plays one turn of a task, in which a tool call is only text, and grades what was sampled."""

    def __init__(self, *, problems: Sequence[Problem], **player: Any) -> None:
        super().__init__(**player)
        self._problems = {problem.task_id: problem for problem in problems}

    async def __call__(
        self, task: Task, *, episode_id: str, group_id: str, attempt: int, seed: int
    ) -> tuple[Episode, Verdict]:
        who = Identity(episode_id=episode_id, group_id=group_id, attempt=attempt, seed=seed, cluster=self.cluster)
        budget = Budget(turns=1, sampled_tokens=NEW_TOKENS, context_tokens=CONTEXT_TOKENS, wall_s=0)
        episode = await run_attempt(
            msgspec.structs.replace(task, tools=(), budget=budget),
            who,
            engine=self.engine,
            renderer=self.renderer,
            machine=FakeMachine(task.machine),
            config=self.harness,
            keep=self._keep,
        )
        if episode.error is not None:
            return episode, Verdict(episode_id=episode_id, scores={}, reward=None, error=episode.error)
        problem, turn = self._problems[task.id], episode.segments[0].turns[0]
        if turn.input_ids != problem.prompt_ids:
            raise ValueError(f"{task.id}: the renderer gives other ids for its prompt than both sides agreed on")
        value = reward(turn.sampled_ids, problem.right_ids)
        score = Score(value=value, weight=1.0, grader="overlap")
        return episode, Verdict(episode_id=episode_id, scores={"overlap": score}, reward=value)


if __name__ == "__main__":
    role = enter()
    asyncio.run(rollout(role, partial(SingleTurn, problems=read(role.run.path / PROBLEMS_FILE))))
