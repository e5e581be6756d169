"""Process role `expert`: a scripted expert plays tasks in the real harness and machine; SFT learns from what it did."""

import asyncio
import random

from twinmill.data.chats import chats_of, write_chats
from twinmill.data.curriculum import attempt_seed
from twinmill.data.render import open_renderer
from twinmill.data.tasks.base import open_taskset
from twinmill.data.tasks.exploitable import Exploitable
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.data.tasks.tinyrepo.expert import Style, plan
from twinmill.engine.scripted import ScriptedEngine, reciting
from twinmill.env.harness.loop import HarnessConfig
from twinmill.env.harness.tools import SPECS
from twinmill.records.episodes import Episode, Verdict
from twinmill.rollout.mill import RolloutConfig
from twinmill.rollout.play import Player

from .base import Role, perform


def main(role: Role) -> None:
    """Nothing, where a life before this one has done it all."""
    if not (role.run.path / "chats.jsonl").exists():
        asyncio.run(play_all(role))


async def play_all(role: Role) -> None:
    blocks = role.blocks
    taskset = open_taskset(blocks.get("taskset", str))
    assert isinstance(taskset, TinyRepo | Exploitable), "cli.checks lets no other set come this far"
    style, seed = blocks.get("experts.style", Style), blocks.get("seed", int)
    count, first = blocks.get("experts.episodes", int), blocks.get("experts.first", int)
    renderer = open_renderer(blocks.get("model", str))
    tools = list(SPECS.values())
    scripts: dict[str, list[list[int]]] = {}

    player = Player(
        engine=ScriptedEngine(reciting(scripts)),
        renderer=renderer,
        make_machine=role.make_machine(),
        harness=blocks.get("harness", HarnessConfig),
        cluster="expert",
    )
    room = asyncio.Semaphore(blocks.get("rollout", RolloutConfig).machines)
    done = 0

    async def one(i: int) -> tuple[Episode, Verdict]:
        nonlocal done
        task = taskset.load(taskset.ids("train")[first + i])
        episode_id = f"expert-{i}"
        turns = plan(taskset.broken(task.id), style, random.Random(attempt_seed(seed, i, 0)))
        scripts[episode_id] = [renderer.assistant(message, tools) for message, _ in turns]
        async with room:
            role.heart.beat()
            result = await player(task, episode_id=episode_id, group_id="", attempt=0, seed=i)
        done += 1
        if done % 32 == 0 or done == count:
            role.metrics.write("experts", done=done, of=count)
        return result

    role.metrics.write("phase", name="experts", state="start")
    played = await asyncio.gather(*(one(i) for i in range(count)))
    graded = [(e, v) for e, v in played if v.reward is not None]
    kept = [(e, v) for e, v in graded if v.reward == 1.0 or not blocks.get("experts.only_right", bool)]
    write_chats(role.run.path / "chats.jsonl", [chat for e, v in kept for chat in chats_of(e, v)])
    right = sum(v.reward == 1.0 for _, v in graded) / max(len(graded), 1)
    role.metrics.write("phase", name="experts", state="end", episodes=len(played), kept=len(kept), right_frac=right)
    print(f"expert: {len(played)} episodes played, {right:.0%} right, {len(kept)} kept", flush=True)


if __name__ == "__main__":
    perform(main)
