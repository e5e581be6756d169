"""The scripted expert played in real machines: what it was told to expect is what the harness and the machine say."""

import asyncio
import random

import msgspec

from tests.data.test_render import RENDERERS
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.data.tasks.tinyrepo.expert import Style, plan
from twinmill.engine.scripted import ScriptedEngine
from twinmill.env.harness.loop import HarnessConfig
from twinmill.env.harness.tools import SPECS
from twinmill.env.machine import make_machine
from twinmill.records.tasks import Budget
from twinmill.rollout.play import Player

TOOLS = list(SPECS.values())
ROOMY = Budget(turns=50, sampled_tokens=10_000, context_tokens=100_000)


def test_observations_and_verdicts_are_the_planned_ones():
    async def main() -> None:
        rewards = []
        for level, split, count in ((0, "train", 10), (0, "heldout", 6), (3, "train", 2)):
            taskset = TinyRepo(level)
            for i, task_id in enumerate(taskset.ids(split)[:count]):
                repo = taskset.broken(task_id)
                wrong = (repo.line, repo.bad[repo.path].split("\n")[repo.line] + "  # ?")
                mistakes = [wrong, wrong] if i % 2 else []  # the second one changes nothing, and is told so
                style = Style(wrong_guess=0.6, tests=0.9, reads=float(level > 0))
                turns = plan(repo, style, random.Random(i), mistakes=mistakes)
                renderer = RENDERERS["nano"]
                script = [renderer.assistant(message, TOOLS) for message, _ in turns]
                player = Player(
                    engine=ScriptedEngine(lambda request, script=script: script.pop(0)),
                    renderer=renderer,
                    make_machine=lambda spec: make_machine("namespace", spec),
                    harness=HarnessConfig(turn_tokens=600),
                    cluster="test",
                )
                task = msgspec.structs.replace(taskset.load(task_id), budget=ROOMY)
                episode, verdict = await player(task, episode_id=task_id, group_id="", attempt=0, seed=0)
                assert episode.error is None, episode.error
                assert [turn.observation for turn in episode.segments[0].turns] == [seen for _, seen in turns]
                ended_well = len(turns) >= 2 and (turns[-2][1] or "").startswith("ok ")
                rewards.append((ended_well, verdict.reward))
        assert sum(reward == 1.0 for well, reward in rewards if well) >= 0.8 * sum(well for well, _ in rewards)
        assert any(reward == 1.0 for _, reward in rewards)

    asyncio.run(main())
