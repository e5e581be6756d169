"""Small decoders for tests."""

import torch

from twinmill.model.config import Gating, Latent, ModelConfig, Yarn
from twinmill.model.hf import init_decoder, named_views
from twinmill.model.parity import Parity
from twinmill.model.transformer import Decoder

NANO = ModelConfig(
    family="qwen3_moe",
    vocab=1024,
    width=192,
    layers=4,
    heads=6,
    kv_heads=2,
    head_dim=32,
    experts=8,
    top_k=2,
    expert_intermediate=128,
    qk_norm=True,
)
"""about what models/nano is"""

TINY = ModelConfig(
    family="qwen3_moe",
    vocab=64,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    experts=4,
    top_k=2,
    expert_intermediate=16,
    qk_norm=True,
)

KIMI = ModelConfig(
    family="deepseek_v3",
    vocab=64,
    width=32,
    layers=3,
    heads=4,
    kv_heads=4,
    head_dim=24,
    latent=Latent(q_rank=20, kv_rank=16, nope_dim=16, rope_dim=8, v_dim=12),
    intermediate=48,
    experts=12,
    top_k=3,
    expert_intermediate=16,
    shared_intermediate=16,
    shared_gate=False,
    dense_layers=(0,),
    gating=Gating.SIGMOID,
    groups=4,
    top_groups=2,
    gate_scale=2.5,
    tied=False,
    rope_yarn=Yarn(factor=8.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.8),
)
"""DeepSeek's family: latent attention, sigmoid gates, experts chosen by groups"""


def sharp(config: ModelConfig, seed: int = 0, parity: Parity = Parity.OFF) -> Decoder:
    """A random decoder with larger weights, so that attention, routing and sampling are not flat."""
    decoder = init_decoder(config, seed, parity)
    for view in named_views(decoder).values():
        if view.dim() == 2:
            view.mul_(4).copy_(view.bfloat16())
    for block in decoder.blocks:
        if block.mixture is not None and block.mixture.choice_bias is not None:
            block.mixture.choice_bias.copy_(torch.linspace(-0.2, 0.2, config.experts).roll(block.index * 5))
    return decoder
