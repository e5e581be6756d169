"""GGUF files -> Hugging Face folders, tokenizer included. Needs the package `gguf` (the extra of that name).

A GGUF file is llama.cpp's: weights, sizes and vocabulary in one. Read are dense models of its architecture "llama" with
SmolLM's byte-level BPE vocabulary (tokenizer.ggml.pre = smollm); quantised weights are expanded and stored as BF16, which
rounds them once more. Not covered: other architectures and pre-tokenizers, RoPE scaling, writing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .config import ModelConfig, from_hf
from .hf import load_bits, save_folder, to_bits
from .transformer import Decoder

_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "rope.dimension_count": "head_dim",
    "vocab_size": "vocab_size",
}
_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_SPLITS = {"smollm": "digits one by one, then GPT-2's words"}
"""tokenizer.ggml.pre -> how text is cut before merging"""
_CONTROL, _USER_DEFINED = 3, 4


class GgufError(ValueError):
    """A GGUF file that cannot be read: which key or tensor, and why."""


def import_gguf(path: str | Path, folder: str | Path) -> ModelConfig:
    """Write config.json, model.safetensors and tokenizer.json of a GGUF file into `folder`. Raises GgufError."""
    try:
        import gguf
    except ImportError as error:
        raise GgufError(f"reading {path} needs the package gguf: pip install 'twinmill[gguf]'") from error
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError) as error:
        raise GgufError(f"{path}: cannot be read as GGUF: {error}") from error
    facts = {name: field.contents() for name, field in reader.fields.items()}
    names = {tensor.name for tensor in reader.tensors}
    config = _config(facts, tied="output.weight" not in names)
    tokenizer = _tokenizer(facts)
    bits: dict[str, npt.NDArray[np.uint16]] = {}
    for tensor in reader.tensors:
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise GgufError(f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}: {error}") from error
        rows = unwoven(tensor.name, np.array(values, np.float32), config.heads, config.kv_heads)
        bits[hf_name(tensor.name)] = to_bits(torch.from_numpy(rows), "BF16")
    decoder = Decoder(config)
    load_bits(decoder, bits, dict.fromkeys(bits, "BF16"))
    save_folder(decoder, folder)
    tokenizer.save(str(Path(folder) / "tokenizer.json"))
    return config


def _config(facts: Mapping[str, Any], tied: bool) -> ModelConfig:
    architecture = facts.get("general.architecture")
    if architecture != "llama":
        raise GgufError(f"general.architecture = {architecture!r} is not implemented; known: 'llama'")
    raw: dict[str, Any] = {"model_type": "llama", "tie_word_embeddings": tied, "hidden_act": "silu"}
    for key, value in facts.items():
        if key.startswith("llama."):
            name = _SIZES.get(key.removeprefix("llama."))
            if name is None:
                raise GgufError(f"{key} = {value!r} is not implemented; its effect would be ignored")
            raw[name] = value
    raw.setdefault("vocab_size", len(facts.get("tokenizer.ggml.tokens", ())))
    # a file's fp32 1e-5 is 9.99999974e-06; no model was trained with that
    raw["rms_norm_eps"] = float(np.format_float_positional(np.float32(raw.get("rms_norm_eps", 1e-5)), unique=True))
    special = {"bos": "bos", "eos": "eos", "padding": "pad"}
    given = {f"{hf}_token_id": facts.get(f"tokenizer.ggml.{name}_token_id") for name, hf in special.items()}
    return from_hf(raw | {key: value for key, value in given.items() if value is not None})


def hf_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    stem, _, kind = name.rpartition(".")
    if stem in _ENDS:
        return f"{_ENDS[stem]}.{kind}"
    block, _, part = stem.rpartition(".")
    if part not in _NAMES or not block.startswith("blk."):
        raise GgufError(f"tensor {name} is not known for a llama model")
    return f"model.layers.{block.removeprefix('blk.')}.{_NAMES[part]}.{kind}"


def unwoven(name: str, values: npt.NDArray[np.float32], heads: int, kv_heads: int) -> npt.NDArray[np.float32]:
    """llama.cpp rotates neighbours, Hugging Face the halves of a head: rows of queries and keys are stored woven."""
    groups = {"attn_q": heads, "attn_k": kv_heads}.get(name.split(".")[-2])
    if groups is None:
        return values
    return values.reshape(groups, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)


def _tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    kind, split = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _SPLITS:
        known = ", ".join(map(repr, _SPLITS))
        raise GgufError(
            f"tokenizer {kind!r} with tokenizer.ggml.pre = {split!r} is not implemented; known: 'gpt2' with {known}"
        )
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(line.split(" ")) for line in facts["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == _CONTROL]
    made.add_special_tokens(special)
    made.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, kinds) if k == _USER_DEFINED])
    return made
