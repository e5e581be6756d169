"""The whole loop on a laptop in about three minutes: mid-training, SFT, asynchronous RL with two clusters, report.

twinmill run recipes/laptop.py                 twinmill run recipes/laptop.py --set rl.window.window=0
"""

from pathlib import Path

from twinmill.batch.pack import Packing
from twinmill.batch.window import Window
from twinmill.cli.config import Cluster, Experts, RunConfig
from twinmill.data.corpus import CorpusConfig
from twinmill.data.tasks.tinyrepo.expert import Style
from twinmill.env.harness.loop import HarnessConfig
from twinmill.publish import LinkConfig
from twinmill.rollout.evaluate import EvalConfig
from twinmill.rollout.mill import RolloutConfig
from twinmill.train.midtrain import Midtrain
from twinmill.train.optimizer import AdamW
from twinmill.train.rl import Rl
from twinmill.train.sft import Sft
from twinmill.train.sources.groups import Preparation
from twinmill.train.step import Compute

STEPS = 24
TEMPERATURE = 1.3
"""hot: attempts of a group must differ, and second guesses from the first, or there is nothing to choose between"""
NANO = Path(__file__).parents[1] / "models" / "nano"


def recipe() -> RunConfig:
    return RunConfig(
        name="laptop",
        model=str(NANO),
        taskset="unopened",
        corpus=CorpusConfig(),
        midtrain=Midtrain(steps=24, rows_per_step=8, heldout_rows=24, optimizer=AdamW(lr=3e-4, warmup=4)),
        # who knows what is wrong seldom looks and hardly tests: that both pay is left for RL to find
        experts=Experts(episodes=256, style=Style(wrong_guess=0.5, tests=0.1, reads=0.3), only_right=True),
        sft=Sft(steps=24, chats_per_step=24, optimizer=AdamW(lr=3e-4, warmup=4)),
        rl=Rl(
            steps=STEPS,
            window=Window(window=2, groups_per_step=12),
            preparation=Preparation(
                packing=Packing(tokens=4096),
                tokens_per_episode=32.0,
            ),
            optimizer=AdamW(lr=2e-4, warmup=3, schedule="cosine", horizon=STEPS),
            compute=Compute(temperature=TEMPERATURE),
            checkpoint_every=8,
        ),
        clusters=(
            Cluster(name="east", link=LinkConfig(bytes_per_s=20e6, latency_s=0.02)),
            Cluster(name="west", link=LinkConfig(bytes_per_s=5e6, latency_s=0.08)),
        ),
        rollout=RolloutConfig(groups_in_flight=4, group_size=8, machines=12),
        harness=HarnessConfig(temperature=TEMPERATURE, turn_tokens=64),
        evaluation=EvalConfig(tasks=150, every=8, between_tasks=60, temperature=1.0),
    )
