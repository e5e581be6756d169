"""RL alone, in the two shapes that `twinmill bench overlap` compares window 0 and window 2 in. It is there for its time.

twinmill run recipes/overlap.py                twinmill run recipes/overlap.py --set rl.window.window=0

As it stands it is bound by computing: sampled hot, the model rambles until its budget ends the turn, and machines have
next to nothing to do. Groups without variance are computed like all others (`keep_idle`), so that a step is the same
amount of work whatever the checkpoint can do. Two engines with a thread each beside a trainer with one: whichever of them
has work finds a core, so neither mill's share of the work has to be guessed.
"""

from pathlib import Path

from twinmill.batch.pack import Packing
from twinmill.batch.window import Window
from twinmill.cli.config import Cluster, RunConfig
from twinmill.engine.embedded import EngineConfig
from twinmill.env.harness.loop import HarnessConfig
from twinmill.rollout.mill import RolloutConfig
from twinmill.train.optimizer import AdamW
from twinmill.train.rl import Rl
from twinmill.train.sources.groups import Preparation
from twinmill.train.step import Compute

NANO = Path(__file__).parents[1] / "models" / "nano"
HOT = 3.0
GROUPS = 12


def recipe() -> RunConfig:
    return RunConfig(
        name="overlap",
        model=str(NANO),
        taskset="tinyrepo:0",
        rl=Rl(
            steps=10,
            window=Window(window=2, groups_per_step=GROUPS),
            preparation=Preparation(packing=Packing(tokens=4096, keep_idle=True), tokens_per_episode=256.0),
            optimizer=AdamW(lr=1e-5, warmup=3, weight_decay=0.0),
            compute=Compute(temperature=HOT),
            checkpoint_every=10,
        ),
        clusters=(Cluster(name="east"), Cluster(name="west")),
        rollout=RolloutConfig(groups_in_flight=3 * GROUPS // 2, group_size=8, machines=64, poll_s=0.02),
        harness=HarnessConfig(temperature=HOT, turn_tokens=256),
        engine=EngineConfig(slots=128, batch=64),
    )
