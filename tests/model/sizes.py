"""Small decoders for tests."""

from twinmill.model.config import ModelConfig
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


def sharp(config: ModelConfig, seed: int = 0, parity: Parity = Parity.OFF) -> Decoder:
    """A random decoder with larger weights, so that attention, routing and sampling are not flat."""
    decoder = init_decoder(config, seed, parity)
    for view in named_views(decoder).values():
        if view.dim() == 2:
            view.mul_(4).copy_(view.bfloat16())
    return decoder
