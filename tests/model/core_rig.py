"""Decoders of every shape that the native core knows, and ways to run them through it."""

import numpy as np
import torch

from twinmill.model.config import Llama3Rope, ModelConfig
from twinmill.model.core.forward import KV_BLOCK, Core, Kv, Result, Rows, drawing, new_kv, scoring
from twinmill.model.core.weights import PackedWeights
from twinmill.model.hf import dtypes, load_bits, state_bits
from twinmill.model.transformer import Decoder

from .sizes import NANO, TINY, sharp

SMALL = {"vocab": 300, "width": 48, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
LLAMA3 = Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
SHAPES = {
    "nano": NANO,
    "tiny": TINY,
    "llama": ModelConfig(
        family="llama", vocab=77, width=40, layers=2, heads=5, kv_heads=1, head_dim=8, intermediate=52, tied=False,
        rope_llama3=LLAMA3,
    ),
    "qwen2": ModelConfig(**SMALL, family="qwen2", intermediate=100, qkv_bias=True, out_bias=True),
    "qwen2_moe": ModelConfig(
        **SMALL, family="qwen2_moe", experts=5, top_k=3, expert_intermediate=24, shared_intermediate=40, qkv_bias=True,
        norm_topk=False, tied=False,
    ),
    "some dense": ModelConfig(
        **SMALL, family="qwen3_moe", experts=20, top_k=4, expert_intermediate=16, intermediate=64, dense_layers=(0,),
        qk_norm=True,
    ),
}  # fmt: skip


def decoder_of(config: ModelConfig, seed: int = 0) -> Decoder:
    decoder = sharp(config, seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3).copy_(parameter.bfloat16())
    return decoder


def packed(decoder: Decoder) -> PackedWeights:
    weights = PackedWeights(decoder.config)
    weights.load(state_bits(decoder))
    weights.version = 0
    return weights


def as_fp32(decoder: Decoder) -> PackedWeights:
    """The same values stored as F32."""
    wide = Decoder(decoder.config)
    load_bits(wide, state_bits(decoder), dtypes(decoder))
    wide.stored = dict.fromkeys(dtypes(decoder), "F32")
    return packed(wide)


def tokens(config: ModelConfig, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, config.vocab, n).astype(np.int32)


class Text:
    """One sequence in a cache of its own blocks; computed so far: `done` tokens."""

    def __init__(self, ids: np.ndarray) -> None:
        self.ids, self.done = ids, 0


class Bench:
    """A core, a cache for `texts`, and forwards over any pieces of them."""

    def __init__(self, config: ModelConfig, texts: list[np.ndarray], threads: int = 1, level: str = "") -> None:
        self.core = Core(config, threads, level)
        self.texts = [Text(ids) for ids in texts]
        width = max(-(-len(ids) // KV_BLOCK) for ids in texts) + 1
        blocks = np.random.default_rng(1).permutation(width * len(texts)).astype(np.int32)
        self.table = blocks.reshape(len(texts), width)
        self.kv: Kv = new_kv(config, blocks.size)

    def rows(self, pieces: list[tuple[int, int]]) -> Rows:
        """pieces: (text, how many of its next tokens)"""
        ids, sequence, position = [], [], []
        for index, count in pieces:
            text = self.texts[index]
            span = range(text.done, text.done + count)
            ids += [int(text.ids[p]) for p in span]
            sequence += [index] * count
            position += list(span)
            text.done += count
        return Rows(*(np.array(column, np.int32) for column in (ids, sequence, position)), self.table)

    def score(self, weights: PackedWeights, pieces: list[tuple[int, int]], **rest) -> Result:
        """Of every row: the log-probability of the token that follows it in its text (of id 0 after the last)."""
        rows = self.rows(pieces)
        targets = [
            int(self.texts[s].ids[p + 1]) if p + 1 < len(self.texts[s].ids) else 0
            for s, p in zip(rows.sequence, rows.position)
        ]
        return self.core.forward(weights, rows, self.kv, scoring(range(len(targets)), targets, 0.8), **rest)


def whole(weights: PackedWeights, ids: np.ndarray, threads: int = 1, level: str = "", **rest) -> Result:
    """One text in one forward: prefill and scoring at once."""
    return Bench(weights.config, [ids], threads, level).score(weights, [(0, len(ids))], want_hidden=True, **rest)


def draw(weights: PackedWeights, core: Core, ids: np.ndarray, temperature: float, top_p: float, seeds) -> Result:
    """Sample what follows `ids`, once for each seed."""
    table = np.arange(-(-len(ids) // KV_BLOCK), dtype=np.int32)[None]
    zeros, places = np.zeros(len(ids), np.int32), np.arange(len(ids), dtype=np.int32)
    n = len(seeds)
    asks = drawing([len(ids) - 1] * n, [len(ids)] * n, [temperature] * n, [top_p] * n, seeds)
    kv = new_kv(weights.config, table.size)
    return core.forward(weights, Rows(ids, zeros, places, table), kv, asks, want_hidden=True)
