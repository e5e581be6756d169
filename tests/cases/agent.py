"""A model of a few thousand parameters that acts: it calls tools, answers, finishes, and does so by chance.

Its last layer reads one feature of the token before it, so that it speaks sentences of the nano chat format ("list",
"test", "finish", or a word or two) with the probabilities below. Attention, router and experts are random and small:
they are computed, recorded, replayed and trained like any other's. It never mends a bug; with a length penalty its
groups have variance all the same. Made without torch.
"""

import json
import math
from pathlib import Path

import numpy as np

from twinmill.data.render import open_renderer
from twinmill.data.render.nano import BOT, CALL, END
from twinmill.publish.tensors import pack_safetensors

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "models" / "nano" / "tokenizer.json"
WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, INNER = 32, 2, 4, 2, 8, 4, 16
FEATURE = 1.0
NOISE = 0.02


def make_agent(folder: Path, seed: int = 0) -> Path:
    """Write the Hugging Face folder of such a model, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    renderer = open_renderer(folder)
    vocab = renderer.vocab_size
    rng = np.random.default_rng(seed)
    tensors = _random(rng, vocab)
    _teach(tensors["model.embed_tokens.weight"], tensors["lm_head.weight"], _sentences(renderer))
    bits = {name: _bf16(array) for name, array in tensors.items()}
    data, _ = pack_safetensors(bits, dict.fromkeys(bits, "BF16"))
    (folder / "model.safetensors").write_bytes(data)
    (folder / "config.json").write_text(json.dumps(_config(vocab), indent=1))
    return folder


def _config(vocab: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": vocab,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "moe_intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    }


def _random(rng: np.random.Generator, vocab: int) -> dict[str, np.ndarray]:
    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(0.0, NOISE, shape).astype(np.float32)

    tensors = {"model.embed_tokens.weight": drawn(vocab, WIDTH), "lm_head.weight": drawn(vocab, WIDTH)}
    tensors["model.norm.weight"] = np.ones(WIDTH, np.float32)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{norm}.weight"] = np.ones(WIDTH, np.float32)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{at}self_attn.{name}_proj.weight"] = drawn(heads * HEAD_DIM, WIDTH)
        for name in ("q_norm", "k_norm"):
            tensors[f"{at}self_attn.{name}.weight"] = np.ones(HEAD_DIM, np.float32)
        tensors[f"{at}self_attn.o_proj.weight"] = drawn(WIDTH, HEADS * HEAD_DIM)
        tensors[f"{at}mlp.gate.weight"] = drawn(EXPERTS, WIDTH) * 10
        for expert in range(EXPERTS):
            tensors[f"{at}mlp.experts.{expert}.gate_proj.weight"] = drawn(INNER, WIDTH)
            tensors[f"{at}mlp.experts.{expert}.up_proj.weight"] = drawn(INNER, WIDTH)
            tensors[f"{at}mlp.experts.{expert}.down_proj.weight"] = drawn(WIDTH, INNER)
    return tensors


def _sentences(renderer) -> dict[int, dict[int, float]]:  # type: ignore[no-untyped-def]
    """token -> what follows it, with which probability; any other token is a word and is followed by `None`'s row."""
    chains = {"list": 0.4, "test": 0.4, "finish": 0.2}
    rows: dict[int, dict[int, float]] = {BOT: {CALL: 0.8}, CALL: {}}
    for word, share in chains.items():
        ids = renderer.text_ids(word)
        rows[CALL][ids[0]] = share
        for before, after in zip(ids, [*ids[1:], END]):
            rows[before] = {after: 1.0}
    return rows


def _teach(embed: np.ndarray, head: np.ndarray, rows: dict[int, dict[int, float]]) -> None:
    """Feature 0 says that the token before is an ordinary word, feature i that it is the i-th one of `rows`.

    After the last norm a feature is about sqrt(WIDTH); what no row names keeps a logit near 0.
    """
    size, others = math.sqrt(WIDTH), math.log(len(embed))
    embed[:, : len(rows) + 1] = 0.0
    embed[:, 0] = FEATURE
    head[END, 0] = (math.log(0.4 / 0.6) + others) / size
    for feature, (token, following) in enumerate(rows.items(), 1):
        embed[token, 0], embed[token, feature] = 0.0, FEATURE
        rest = max(1.0 - sum(following.values()), 0.02)
        for after, share in following.items():
            head[after, feature] = (math.log(share / rest) + others) / size


def _bf16(array: np.ndarray) -> np.ndarray:
    """Stored bits of bfloat16, rounded half up."""
    return ((array.astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
