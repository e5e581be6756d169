"""RL alone, in the two shapes that `twinmill bench overlap` compares window 0 and window 2 in. It is there for its time.

twinmill run recipes/overlap.py                twinmill run recipes/overlap.py --set rl.window.window=0

As it stands it is bound by computing: sampled hot, the model rambles until its budget ends the turn, and machines have
next to nothing to do. A length penalty gives groups variance even where every attempt fails, and what has none is computed
all the same (`keep_idle`): every step trains, changes weights and is about the same work, whatever the checkpoint can do.
Two engines with a thread each beside a trainer with four: whoever has work finds
a core, so neither mill's share of the work has to be guessed, and the longest microbatch of a step never runs alone for long.
"""

from pathlib import Path

from twinmill.batch.credit import Credit
from twinmill.batch.credit.length_penalty import LengthPenalty
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
HOT = 4.0
"""the temperature: at most about 500 tokens an attempt, on average about 375"""
GROUPS = 6
CONTEXT_TOKENS = 1536


def recipe() -> RunConfig:
    return RunConfig(
        name="overlap",
        model=str(NANO),
        taskset="tinyrepo:1",
        rl=Rl(
            steps=8,
            window=Window(window=2, groups_per_step=GROUPS),
            preparation=Preparation(
                credit=Credit(length=LengthPenalty(scale=0.1, tool_call=0.02, final=0.02)),
                packing=Packing(tokens=1536, keep_idle=True),
                tokens_per_episode=512.0,
            ),
            optimizer=AdamW(lr=1e-5, warmup=3, weight_decay=0.0),
            compute=Compute(temperature=HOT),
            checkpoint_every=10,
        ),
        trainer_threads=4,
        clusters=(Cluster(name="east"), Cluster(name="west")),
        rollout=RolloutConfig(groups_in_flight=3 * GROUPS // 2, group_size=8, machines=64, poll_s=0.02),
        harness=HarnessConfig(temperature=HOT, turn_tokens=512),
        engine=EngineConfig(context_tokens=CONTEXT_TOKENS, slots=128, batch=64),
    )
