"""The original's family in small, from nothing: 384 experts, 8 of them a token, latent attention, sigmoid gates, a shared
expert. Half a minute of mid-training and SFT each, then asynchronous RL with router replay.

twinmill run recipes/kimi_tiny.py

It shows that every part works on this family, not that so small a model learns: routing (8 of 384, one shared), gates and
YaRN are Kimi K2's; width, layers, heads, ranks and vocabulary are a toy's. The random base is written to models/kimi_tiny
once; remove that folder after changing CONFIG.
"""

import shutil
from pathlib import Path

from twinmill.batch.credit import Credit
from twinmill.batch.credit.length_penalty import LengthPenalty
from twinmill.batch.window import Window
from twinmill.cli.config import Cluster, Experts, RunConfig
from twinmill.data.corpus import CorpusConfig
from twinmill.env.harness.loop import HarnessConfig
from twinmill.model import hf
from twinmill.model.config import from_hf
from twinmill.rollout.evaluate import EvalConfig
from twinmill.rollout.mill import RolloutConfig
from twinmill.train.midtrain import Midtrain
from twinmill.train.optimizer import AdamW
from twinmill.train.rl import Rl
from twinmill.train.sft import Sft
from twinmill.train.sources.groups import Preparation
from twinmill.train.step import Compute

MODELS = Path(__file__).parents[1] / "models"
BASE = MODELS / "kimi_tiny"
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "vocab_size": 1280, "hidden_size": 128,
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "intermediate_size": 384, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "num_nextn_predict_layers": 0,
    "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0,
                     "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 6,
    "pad_token_id": 0,
}  # fmt: skip
STEPS = 6


def base() -> Path:
    """The folder of the random base, which is made if it is not there."""
    if not BASE.exists():
        staging = BASE.with_name(".kimi_tiny")
        hf.save_folder(hf.init_decoder(from_hf(CONFIG), seed=0), staging)
        shutil.copy(MODELS / "nano" / "tokenizer.json", staging)
        staging.rename(BASE)
    return BASE


def recipe() -> RunConfig:
    return RunConfig(
        name="kimi-tiny",
        model=str(base()),
        taskset="tinyrepo:0",
        corpus=CorpusConfig(max_bytes=400_000),
        midtrain=Midtrain(
            steps=40, rows_per_step=8, heldout_rows=16, optimizer=AdamW(lr=2e-3, warmup=5), compute=Compute(aux=1e-3)
        ),
        experts=Experts(episodes=64),
        sft=Sft(steps=40, chats_per_step=8, optimizer=AdamW(lr=2e-3, warmup=5), compute=Compute(aux=1e-3)),
        rl=Rl(
            steps=STEPS,
            window=Window(window=1, groups_per_step=2),
            # it hardly ever mends a fault so early: a price on length gives groups some variance all the same
            preparation=Preparation(
                credit=Credit(length=LengthPenalty(scale=1.0, tool_call=0.02, final=0.02, turns=0.1)),
                tokens_per_episode=32.0,
            ),
            optimizer=AdamW(lr=2e-4, warmup=2),
        ),
        clusters=(Cluster(name="east"),),
        rollout=RolloutConfig(groups_in_flight=2, group_size=4, machines=8),
        harness=HarnessConfig(turn_tokens=32),
        evaluation=EvalConfig(tasks=8, every=0, machines=4),
    )
