"""Everything once, as small as it gets: for tests and for continuous integration. It teaches nothing.

twinmill run recipes/smoke.py                  twinmill run recipes/smoke.py --set midtrain=null --set sft=null --set experts=null

The length penalty gives groups some variance even where every attempt fails.
"""

from pathlib import Path

from twinmill.batch.credit import Credit
from twinmill.batch.credit.length_penalty import LengthPenalty
from twinmill.batch.window import Window
from twinmill.cli.config import Cluster, Experts, RunConfig
from twinmill.data.corpus import CorpusConfig
from twinmill.env.harness.loop import HarnessConfig
from twinmill.rollout.evaluate import EvalConfig
from twinmill.rollout.mill import RolloutConfig
from twinmill.train.midtrain import Midtrain
from twinmill.train.optimizer import AdamW
from twinmill.train.rl import Rl
from twinmill.train.sft import Sft
from twinmill.train.sources.groups import Preparation

NANO = Path(__file__).parents[1] / "models" / "nano"


def recipe() -> RunConfig:
    return RunConfig(
        name="smoke",
        model=str(NANO),
        taskset="tinyrepo:0",
        corpus=CorpusConfig(max_bytes=100_000, row_tokens=64),
        midtrain=Midtrain(steps=2, rows_per_step=4, heldout_rows=4, optimizer=AdamW(lr=3e-4)),
        experts=Experts(episodes=4),
        sft=Sft(steps=2, chats_per_step=4, optimizer=AdamW(lr=3e-4)),
        rl=Rl(
            steps=3,
            window=Window(window=1, groups_per_step=2),
            preparation=Preparation(
                credit=Credit(length=LengthPenalty(scale=1.0, tool_call=0.02, final=0.02, turns=0.1)),
                tokens_per_episode=16.0,
            ),
            optimizer=AdamW(lr=1e-3),
            checkpoint_every=2,
        ),
        clusters=(Cluster(name="east"),),
        rollout=RolloutConfig(groups_in_flight=2, group_size=3, machines=4),
        harness=HarnessConfig(turn_tokens=16),
        evaluation=EvalConfig(tasks=4, every=0, machines=4),
    )
