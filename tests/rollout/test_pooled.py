"""An attempt and its grading through the pool: what the rollout process does, with a scripted engine."""

import asyncio
from functools import partial

import msgspec

from twinmill.cli.scripted import TOKENS
from twinmill.data.render import open_renderer
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.engine.scripted import ScriptedEngine
from twinmill.env.audit.cheaters.script import FINISH, write
from twinmill.env.harness.loop import HarnessConfig
from twinmill.env.harness.tools import SPECS
from twinmill.env.machine import make_machine
from twinmill.env.machine.pool.local import Pool
from twinmill.env.machine.pool.scheduler import PoolConfig
from twinmill.records.tasks import Budget
from twinmill.rollout.play import Player

ROOMY = Budget(turns=5, sampled_tokens=10_000, context_tokens=100_000)


def test_attempts_with_one_machine_between_them_all_end_graded(tmp_path):
    taskset, renderer = TinyRepo(0), open_renderer(TOKENS)

    async def main():
        pool = Pool(partial(make_machine, "namespace"), tmp_path, PoolConfig(machines=1))

        async def attempt(number):
            task_id = taskset.ids("train")[0]
            [(path, text)] = taskset.oracle(task_id).items()
            script = [renderer.assistant(turn, list(SPECS.values())) for turn in (write(path, text), FINISH)]
            player = Player(
                engine=ScriptedEngine(lambda request: script.pop(0)),
                renderer=renderer,
                make_machine=pool.machine,
                harness=HarnessConfig(turn_tokens=5000, tool_s=30.0),
                cluster="test",
            )
            task = msgspec.structs.replace(taskset.load(task_id), budget=ROOMY)
            return await player(task, episode_id=f"e{number}", group_id="g", attempt=number, seed=number)

        played = await asyncio.gather(*[attempt(n) for n in range(3)])
        await pool.close()
        return played, pool

    played, pool = asyncio.run(main())
    assert [(episode.error, verdict.reward) for episode, verdict in played] == [(None, 1.0)] * 3
    assert pool.most_alive == 1 and not pool.journal.open
