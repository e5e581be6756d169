"""ModelConfig: what a decoder is, without torch; read from and written to a Hugging Face config.json.

Families: llama, qwen2, qwen3 (dense) and qwen2_moe, qwen3_moe. Every key of a config.json is either understood, known
to change nothing in the computation, or refused by name: a feature that is silently ignored would give wrong logits.
Not covered: sliding windows, RoPE scalings other than llama3, multi-head latent attention (issue of the model room).
"""

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct


class ConfigError(ValueError):
    """A model that this package does not implement, or a broken config.json; one line that names the key."""


class Parity(Enum):
    """How far results are independent of what else is in the batch. See model/parity.py."""

    OFF = "off"
    """fastest; log-probabilities move by about 1e-6 with the batch"""
    BATCH = "batch"
    """linear layers are padded: a decode step does not depend on the other rows of its batch"""
    STRICT = "strict"
    """attention too: decoding, prefill, scoring and the trainer's forward agree bit for bit"""
    CORE = "core"
    """strict, and computed by the native core: the bits of the embedded engine's core backend"""


class Llama3Rope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Llama 3's frequency-dependent stretching of RoPE."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and switches of one decoder. Example (the nano model): see tests/model/sizes.py."""

    family: str
    """Hugging Face model_type"""
    vocab: int
    width: int
    """hidden_size"""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int = 0
    """width of a dense MLP; without meaning where every layer is a mixture"""
    experts: int = 0
    """per mixture layer; 0 = dense model"""
    top_k: int = 0
    """experts per token; 0 = dense model"""
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """width of the always-on shared expert; 0 = none"""
    norm_topk: bool = True
    """gate weights of the chosen experts are renormalised to sum 1"""
    dense_layers: tuple[int, ...] = ()
    """indices of the layers of a mixture model that are dense"""
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    tied: bool = True
    """the output head is the embedding"""
    rope_theta: float = 10000.0
    rope_llama3: Llama3Rope | None = None
    """None = plain RoPE"""
    norm_eps: float = 1e-6
    max_positions: int = 2048
    init_std: float = 0.02
    special_ids: dict[str, Any] = {}
    """bos_token_id, eos_token_id, pad_token_id as the folder spells them"""

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Layers that have a router, in order: axis L of every `experts` array."""
        return tuple(i for i in range(self.layers) if self.experts and i not in self.dense_layers)


_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
_INERT = frozenset(
    [
        "model_type",
        "architectures",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "_name_or_path",
        "attention_dropout",
        "router_aux_loss_coef",
        "output_router_logits",
        "max_window_layers",
        "sliding_window",
        "pretraining_tp",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "is_encoder_decoder",
        "chunk_size_feed_forward",
        "auto_map",
    ]
) | set(_SPECIAL)
"""Keys that change nothing in the forward pass (sliding_window counts only with use_sliding_window)."""

_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_SIZES = {
    "vocab_size": "vocab",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "rms_norm_eps": "norm_eps",
    "max_position_embeddings": "max_positions",
    "initializer_range": "init_std",
    "tie_word_embeddings": "tied",
}
_MOE_SIZES = {
    "num_experts": "experts",
    "num_local_experts": "experts",
    "num_experts_per_tok": "top_k",
    "moe_intermediate_size": "expert_intermediate",
    "norm_topk_prob": "norm_topk",
    "shared_expert_intermediate_size": "shared_intermediate",
}
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "mlp_bias": (False, None),
    "quantization_config": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "attention_chunk_size": (None,),
}
"""Features that are implemented for these values alone."""

_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tied": False},
    "qwen2": {"tied": False, "qkv_bias": True},
    "qwen3": {"tied": False, "qk_norm": True},
    "qwen2_moe": {"tied": False, "qkv_bias": True, "norm_topk": False},
    "qwen3_moe": {"tied": False, "qk_norm": True, "norm_topk": False},
}
"""A family's defaults for what a config.json leaves out."""


def from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """The config of a Hugging Face model. Raises ConfigError naming the first key that is not implemented."""
    family = raw.get("model_type")
    if family not in _FAMILIES:
        raise ConfigError(f"config.json: model_type {family!r} is not implemented; known: {', '.join(_FAMILIES)}")
    moe = family.endswith("_moe")
    fields: dict[str, Any] = {"family": family, **_FAMILIES[family]}
    names = {**_SIZES, **_MOE_SIZES} if moe else _SIZES
    for key in _REQUIRED:
        if key not in raw:
            raise ConfigError(f"config.json: key {key!r} is missing")
    for key, value in raw.items():
        if key in names:
            fields[names[key]] = _typed(key, value, names[key])
        elif key in _ONLY:
            if value not in _ONLY[key]:
                known = _ONLY[key][0]
                raise ConfigError(f"config.json: {key} = {value!r} is not implemented; known: {known!r}")
        elif key not in _STRUCTURED and key not in _INERT:
            raise ConfigError(f"config.json: {key!r} is not known for {family}; its effect would be ignored")
    try:
        config = ModelConfig(**{**fields, **_structure(raw, fields, moe)})
    except KeyError as error:
        raise ConfigError(f"config.json: key {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config.json: {error}") from error
    _check(config)
    return config


def _typed(key: str, value: Any, field: str) -> Any:
    try:
        return msgspec.convert(value, ModelConfig.__annotations__[field])
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: {key} = {value!r}: {error}") from error


_STRUCTURED = frozenset(
    [
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "attention_bias",
        "qkv_bias",
        "layer_types",
        "decoder_sparse_step",
        "mlp_only_layers",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
    ]
)
"""Keys whose meaning depends on others: see _structure."""


def _structure(raw: Mapping[str, Any], fields: Mapping[str, Any], moe: bool) -> dict[str, Any]:
    """Keys whose meaning depends on others."""
    out: dict[str, Any] = {"special_ids": {key: raw[key] for key in _SPECIAL if raw.get(key) is not None}}
    out["kv_heads"] = raw.get("num_key_value_heads") or fields["heads"]
    out["head_dim"] = raw.get("head_dim") or fields["width"] // fields["heads"]
    if raw.get("attention_bias"):
        out |= {"qkv_bias": True, "out_bias": True}
    if "qkv_bias" in raw:
        out["qkv_bias"] = raw["qkv_bias"]
    for kind in raw.get("layer_types") or ():
        if kind != "full_attention":
            raise ConfigError(f"config.json: layer_types has {kind!r}; only full_attention is implemented")
    step, dense = raw.get("decoder_sparse_step", 1), tuple(raw.get("mlp_only_layers") or ())
    if moe:
        layers = range(fields["layers"])
        out["dense_layers"] = tuple(i for i in layers if i in dense or not step or (i + 1) % step)
    needed = not moe or out["dense_layers"]
    out["intermediate"] = raw["intermediate_size"] if needed else raw.get("intermediate_size", 0)
    return out | _rope(raw)


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Both spellings: rope_parameters (transformers 5) and rope_theta + rope_scaling (before)."""
    given = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    kind = given.pop("rope_type", None) or given.pop("type", None) or "default"
    given.pop("type", None)
    theta = given.pop("rope_theta", raw.get("rope_theta", 10000.0))
    if given.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError("config.json: partial_rotary_factor other than 1 is not implemented")
    out = {"rope_theta": float(theta), "rope_llama3": None}
    if kind == "llama3":
        out["rope_llama3"] = Llama3Rope(**{name: given[name] for name in Llama3Rope.__struct_fields__})
    elif kind != "default":
        raise ConfigError(f"config.json: rope_type {kind!r} is not implemented; known: default, llama3")
    return out


def _check(config: ModelConfig) -> None:
    if config.heads % config.kv_heads:
        raise ConfigError(f"config.json: num_attention_heads {config.heads} is no multiple of num_key_value_heads")
    if config.experts and not 0 < config.top_k <= config.experts:
        raise ConfigError(f"config.json: num_experts_per_tok {config.top_k} must lie in 1..{config.experts}")
    if config.head_dim % 2:
        raise ConfigError(f"config.json: head_dim {config.head_dim} must be even for RoPE")


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The config.json of `config`, in the classic keys that every reader knows (num_experts, rope_theta, ...)."""
    moe = config.family.endswith("_moe")
    out: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": config.family,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate,
        "attention_bias": config.out_bias,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(config),
        **config.special_ids,
    }
    names = {**_SIZES, **_MOE_SIZES} if moe else _SIZES
    out |= {key: getattr(config, name) for key, name in names.items() if key != "num_local_experts"}
    if moe:
        out |= {"decoder_sparse_step": 1, "mlp_only_layers": list(config.dense_layers)}
        if config.family != "qwen2_moe":
            del out["shared_expert_intermediate_size"]
    if config.family.startswith("qwen2"):
        del out["attention_bias"]
    return out


def _rope_scaling(config: ModelConfig) -> dict[str, Any] | None:
    if config.rope_llama3 is None:
        return None
    return {
        "rope_type": "llama3",
        **{name: getattr(config.rope_llama3, name) for name in Llama3Rope.__struct_fields__},
    }


_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def read_config(folder: str | Path) -> ModelConfig:
    """The config of a model folder. Raises ConfigError."""
    path = Path(folder) / "config.json"
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
    return from_hf(raw)


def write_config(config: ModelConfig, folder: str | Path) -> None:
    (Path(folder) / "config.json").write_text(json.dumps(to_hf(config), indent=2) + "\n")
