"""RL on single turns without machines: this package's side of `bench trl`, which gives it a rollout role of its own.

The sizes that both sides share (groups, lengths, learning rate) are given as overrides by the benchmark.
"""

from pathlib import Path

from twinmill.batch.pack import Packing
from twinmill.batch.window import Window
from twinmill.cli.config import Cluster, RunConfig
from twinmill.engine.embedded import EngineConfig
from twinmill.rollout.mill import RolloutConfig
from twinmill.train.optimizer import AdamW
from twinmill.train.rl import Rl
from twinmill.train.sources.groups import Preparation

NANO = Path(__file__).parents[1] / "models" / "nano"


def recipe() -> RunConfig:
    return RunConfig(
        name="single-turn",
        model=str(NANO),
        rl=Rl(
            steps=20,
            window=Window(window=2, groups_per_step=16),
            preparation=Preparation(packing=Packing(tokens=4096, keep_idle=True), tokens_per_episode=32.0),
            optimizer=AdamW(lr=1e-6, warmup=0, weight_decay=0.0),
            checkpoint_every=1000,
            poll_s=0.01,
        ),
        clusters=(Cluster(name="here"),),
        rollout=RolloutConfig(groups_in_flight=24, group_size=8, machines=192, poll_s=0.01),
        engine=EngineConfig(context_tokens=896, slots=160, batch=128),
    )
