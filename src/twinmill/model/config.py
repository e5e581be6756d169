"""ModelConfig: what a decoder is, without torch; read from and written to a Hugging Face config.json.

Families: llama, qwen2, qwen3 (dense), qwen2_moe, qwen3_moe, and deepseek_v3, kimi_k2 (latent attention). Every key of a
config.json is either understood, known to change nothing in the computation, or refused by name: a feature that is silently
ignored would give wrong logits.
A config.json around a text model (kimi_k25) is kept as it is, beside what is read of its text_config.
Not covered: sliding windows, RoPE scalings other than llama3 and yarn, what surrounds a text model (vision), prediction
layers (MTP): their weights are carried, not computed with.
"""

import json
import re
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


class Yarn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """YaRN's frequency-dependent stretching of RoPE (2309.00071), with DeepSeek's two gains on attention."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    """None or 0 = the scores are not scaled by it"""
    attention_factor: float | None = None
    """of cosines and sines; None = as mscale and mscale_all_dim say"""
    truncate: bool = True
    """the bounds of the ramp are whole numbers"""


class Latent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (MLA; DeepSeek-V2, 2405.04434): a token's queries come out of one narrow vector, and the
    keys and values of all its heads out of another."""

    q_rank: int
    """q_lora_rank; 0 = queries are projected directly"""
    kv_rank: int
    """kv_lora_rank"""
    nope_dim: int
    """numbers of a head's query and key that know no position"""
    rope_dim: int
    """those that are rotated; the key's are shared by all heads"""
    v_dim: int
    """numbers of a head's value"""
    interleaved: bool = True
    """the two numbers of a rotated pair are neighbours (rope_interleave); else they are half a head apart"""


class Gating(Enum):
    """What a router makes of its logits."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    """DeepSeek-V3 (2412.19437): each expert has a score of its own, and a bias that counts for the choice alone"""


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
    """numbers of a head's query, key and value; the widest of them in latent attention"""
    intermediate: int = 0
    """width of a dense MLP; without meaning where every layer is a mixture"""
    experts: int = 0
    """per mixture layer; 0 = dense model"""
    top_k: int = 0
    """experts per token; 0 = dense model"""
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    """width of the always-on shared expert (of several together); 0 = none"""
    shared_gate: bool = True
    """the shared expert has a sigmoid gate"""
    gating: Gating = Gating.SOFTMAX
    groups: int = 1
    """into which the experts are cut for the choice"""
    top_groups: int = 1
    """a token's experts come from so many groups: those with the largest sums of their two best experts"""
    gate_scale: float = 1.0
    """factor of all gates (routed_scaling_factor)"""
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
    rope_yarn: Yarn | None = None
    """both None = plain RoPE"""
    latent: Latent | None = None
    """None = every head has projections of its own (MHA, GQA)"""
    norm_eps: float = 1e-6
    max_positions: int = 2048
    init_std: float = 0.02
    special_ids: dict[str, Any] = {}
    """bos_token_id, eos_token_id, pad_token_id as the folder spells them"""
    prediction_layers: int = 0
    """num_nextn_predict_layers: layers behind the last that this decoder does not compute; see `carries`"""
    wrapper: dict[str, Any] = {}
    """the config.json around text_config, as it was; {} = nothing is around"""

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Layers that have a router, in order: axis L of every `experts` array."""
        return tuple(i for i in range(self.layers) if self.experts and i not in self.dense_layers)

    @property
    def rope_dim(self) -> int:
        """Numbers of a head that are rotated."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def v_dim(self) -> int:
        """Numbers of a head's value."""
        return self.head_dim if self.latent is None else self.latent.v_dim

    @property
    def prefix(self) -> str:
        """Of the text model's tensor names."""
        return TEXT_PREFIX if self.wrapper else ""

    def carries(self, name: str) -> bool:
        """Whether a tensor of this on-disk name is not computed with, but kept bit by bit and published with the rest:
        the vision part around a text model, and prediction layers."""
        if not name.startswith(self.prefix):
            return True
        layer = re.match(r"model\.layers\.(\d+)\.", name.removeprefix(self.prefix))
        return layer is not None and self.layers <= int(layer[1]) < self.layers + self.prediction_layers


TEXT_PREFIX = "language_model."
"""of a text model's tensors inside a larger model"""

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
        # training, parallelism
        "aux_loss_alpha",
        "seq_aux",
        "ep_size",
        # what transformers before 5 wrote into every nested config: settings of generation and of other kinds of model
        *("add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "cross_attention_hidden_size", "do_sample"),
        *("decoder_start_token_id", "diversity_penalty", "early_stopping", "encoder_no_repeat_ngram_size"),
        *("exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id"),
        *("is_decoder", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups"),
        *("num_beams", "num_return_sequences", "output_scores", "prefix", "pruned_heads", "remove_invalid_values"),
        *("repetition_penalty", "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params"),
        *("temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript"),
        *("typical_p", "use_bfloat16"),
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
_DEEPSEEK_SIZES = {
    "n_routed_experts": "experts",
    "num_experts_per_tok": "top_k",
    "moe_intermediate_size": "expert_intermediate",
    "norm_topk_prob": "norm_topk",
    "routed_scaling_factor": "gate_scale",
    "n_group": "groups",
    "topk_group": "top_groups",
    "num_nextn_predict_layers": "prediction_layers",
}
_DEEPSEEK_REQUIRED = (
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor", "n_group"),
    *("topk_group", "first_k_dense_replace", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)
"""their defaults are those of one published model: a config.json without them is broken rather than brief"""
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False, None),
    "mlp_bias": (False, None),
    "partial_rotary_factor": (None, 1, 1.0),
    "attention_chunk_size": (None,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "moe_layer_freq": (1,),
}
"""Features that are implemented for these values alone."""

_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tied": False},
    "qwen2": {"tied": False, "qkv_bias": True},
    "qwen3": {"tied": False, "qk_norm": True},
    "qwen2_moe": {"tied": False, "qkv_bias": True, "norm_topk": False},
    "qwen3_moe": {"tied": False, "qk_norm": True, "norm_topk": False},
    "deepseek_v3": {"tied": False, "gating": Gating.SIGMOID, "shared_gate": False},
    "kimi_k2": {"tied": False, "gating": Gating.SIGMOID, "shared_gate": False},
}
"""A family's defaults for what a config.json leaves out."""
_DEEPSEEK = ("deepseek_v3", "kimi_k2")
"""DeepSeek-V3 (2412.19437), and Kimi K2 (2507.20534), which is the same with other sizes"""
_WRAPPERS = ("kimi_k25",)
"""models around a text model of one of the families"""


def from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """The config of a Hugging Face model. Raises ConfigError naming the first key that is not implemented."""
    family = raw.get("model_type")
    if family in _WRAPPERS:
        return _unwrapped(raw)
    if family not in _FAMILIES:
        known = ", ".join([*_FAMILIES, *_WRAPPERS])
        raise ConfigError(f"config.json: model_type {family!r} is not implemented; known: {known}")
    fields: dict[str, Any] = {"family": family, **_FAMILIES[family]}
    names = _names(family)
    for key in (*_REQUIRED, *(_DEEPSEEK_REQUIRED if family in _DEEPSEEK else ())):
        if key not in raw:
            raise ConfigError(f"config.json: key {key!r} is missing")
    for key, value in raw.items():
        if key in names:
            fields[names[key]] = _typed(key, value, names[key])
        elif key in _ONLY:
            if value not in _ONLY[key]:
                known = _ONLY[key][0]
                raise ConfigError(f"config.json: {key} = {value!r} is not implemented; known: {known!r}")
        elif key == "quantization_config":
            _check_packed(value)
        elif key not in _STRUCTURED and key not in _INERT and not (family in _DEEPSEEK and key in _DEEPSEEK_STRUCTURED):
            raise ConfigError(f"config.json: {key!r} is not known for {family}; its effect would be ignored")
    structure = _deepseek_structure if family in _DEEPSEEK else _structure
    try:
        config = ModelConfig(**{**fields, **structure(raw, fields)})
    except KeyError as error:
        raise ConfigError(f"config.json: key {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config.json: {error}") from error
    _check(config)
    return config


def _names(family: str) -> dict[str, str]:
    """Keys that are a field by themselves."""
    if family in _DEEPSEEK:
        return {**_SIZES, **_DEEPSEEK_SIZES}
    return {**_SIZES, **_MOE_SIZES} if family.endswith("_moe") else _SIZES


def _unwrapped(raw: Mapping[str, Any]) -> ModelConfig:
    """The text model inside a larger one."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise ConfigError(f"config.json: {raw['model_type']} has no text_config: that is the part that can be trained")
    config = from_hf(text)
    if raw.get("tie_word_embeddings", config.tied) != config.tied:
        raise ConfigError("config.json: tie_word_embeddings contradicts the text_config's; make them equal")
    _check_packed(raw.get("quantization_config"))
    kept = {key: value for key, value in raw.items() if key not in ("text_config", "quantization_config")}
    return msgspec.structs.replace(config, wrapper=kept)


def _check_packed(given: Any) -> None:
    """What model/packed.py unpacks when a folder is read, and nothing else. Raises ConfigError naming the first key."""
    if given is None:
        return
    where = "quantization_config"
    _expect(where, given, {"quant_method": ("compressed-tensors",), "format": ("pack-quantized",)})
    _expect(where, given, {"kv_cache_scheme": (None,), "sparsity_config": (None, {})}, optional=True)
    groups = given.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ConfigError(f"config.json: {where}.config_groups is missing")
    for name, group in groups.items():
        place = f"{where}.config_groups.{name}"
        _expect(place, group, {"input_activations": (None,), "output_activations": (None,)}, optional=True)
        weights = group.get("weights")
        _expect(f"{place}.weights", weights, {"num_bits": (4,), "type": ("int",), "strategy": ("group",)})
        _expect(f"{place}.weights", weights, {"symmetric": (True,), "actorder": (None, False)}, optional=True)


def _expect(where: str, given: Any, wanted: Mapping[str, tuple[Any, ...]], optional: bool = False) -> None:
    if not isinstance(given, dict):
        raise ConfigError(f"config.json: {where} = {given!r} is not implemented; known: an object")
    for key, values in wanted.items():
        value = given.get(key, values[0] if optional else None)
        if value not in values:
            raise ConfigError(f"config.json: {where}.{key} = {value!r} is not implemented; known: {values[0]!r}")


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


_DEEPSEEK_STRUCTURED = frozenset(
    [
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "qk_head_dim",
        "v_head_dim",
        "rope_interleave",
        "n_shared_experts",
        "first_k_dense_replace",
    ]
)
"""The same for DeepSeek's family: see _deepseek_structure."""


def _special(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"special_ids": {key: raw[key] for key in _SPECIAL if raw.get(key) is not None}}


def _structure(raw: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Keys whose meaning depends on others."""
    out, moe = _special(raw), fields["family"].endswith("_moe")
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


def _deepseek_structure(raw: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    latent = Latent(
        q_rank=_whole(raw, "q_lora_rank", least=0),
        kv_rank=_whole(raw, "kv_lora_rank"),
        nope_dim=_whole(raw, "qk_nope_head_dim", least=0),
        rope_dim=_whole(raw, "qk_rope_head_dim"),
        v_dim=_whole(raw, "v_head_dim"),
        interleaved=raw.get("rope_interleave", True) is not False,
    )
    head_dim = latent.nope_dim + latent.rope_dim
    # head_dim is the rotated part here, as transformers 5 writes it
    implied = {"head_dim": latent.rope_dim, "qk_head_dim": head_dim, "num_key_value_heads": fields["heads"]}
    for key, want in implied.items():
        if raw.get(key, want) not in (want, None):
            raise ConfigError(
                f"config.json: {key} = {raw[key]!r} is not implemented for latent attention; known: {want}"
            )
    if raw.get("attention_bias"):
        raise ConfigError("config.json: attention_bias = True is not implemented for latent attention; known: False")
    shared = _whole(raw, "n_shared_experts", least=0)
    first = _whole(raw, "first_k_dense_replace", least=0)
    return {
        **_special(raw),
        "latent": latent,
        "kv_heads": fields["heads"],
        "head_dim": max(head_dim, latent.v_dim),
        "intermediate": raw["intermediate_size"] if first else raw.get("intermediate_size", 0),
        "shared_intermediate": shared * fields["expert_intermediate"],
        "dense_layers": tuple(range(min(first, fields["layers"]))),
        **_rope(raw),
    }


def _whole(raw: Mapping[str, Any], key: str, least: int = 1) -> int:
    value = raw.get(key) or 0
    if not isinstance(value, int) or value < least:
        raise ConfigError(f"config.json: {key} = {value!r} must be a whole number of at least {least}")
    return value


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Both spellings: rope_parameters (transformers 5) and rope_theta + rope_scaling (before)."""
    given = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    kind = given.pop("rope_type", None) or given.pop("type", None) or "default"
    given.pop("type", None)
    theta = given.pop("rope_theta", raw.get("rope_theta", 10000.0))
    if given.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError("config.json: partial_rotary_factor other than 1 is not implemented")
    out: dict[str, Any] = {"rope_theta": float(theta)}
    if kind == "llama3":
        out["rope_llama3"] = Llama3Rope(**{name: given[name] for name in Llama3Rope.__struct_fields__})
    elif kind == "yarn":
        try:
            out["rope_yarn"] = msgspec.convert(given, Yarn)
        except msgspec.ValidationError as error:
            raise ConfigError(f"config.json: yarn in rope_scaling: {error}") from error
    elif kind != "default":
        raise ConfigError(f"config.json: rope_type {kind!r} is not implemented; known: default, llama3, yarn")
    return out


def _check(config: ModelConfig) -> None:
    if config.heads % config.kv_heads:
        raise ConfigError(f"config.json: num_attention_heads {config.heads} is no multiple of num_key_value_heads")
    if config.experts and not 0 < config.top_k <= config.experts:
        raise ConfigError(f"config.json: num_experts_per_tok {config.top_k} must lie in 1..{config.experts}")
    if config.rope_dim % 2:
        key = "head_dim" if config.latent is None else "qk_rope_head_dim"
        raise ConfigError(f"config.json: {key} {config.rope_dim} must be even for RoPE")
    if config.groups > 1:
        size, rest = divmod(config.experts, config.groups)
        if rest or size < 2:
            raise ConfigError(
                f"config.json: n_group {config.groups} must cut {config.experts} experts into equal groups"
            )
        if not 0 < config.top_groups <= config.groups or config.top_k > config.top_groups * size:
            raise ConfigError(f"config.json: topk_group {config.top_groups} leaves no {config.top_k} experts to choose")


def to_hf(config: ModelConfig) -> dict[str, Any]:
    """The config.json of `config`, in the classic keys that every reader knows (num_experts, rope_theta, ...).

    A folder that was packed is written unpacked, so there is no quantization_config."""
    if config.wrapper:
        return {**config.wrapper, "text_config": to_hf(msgspec.structs.replace(config, wrapper={}))}
    out: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": config.family,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.intermediate,
        "attention_bias": config.out_bias,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(config),
        **config.special_ids,
    }
    names = _names(config.family)
    out |= {key: getattr(config, name) for key, name in names.items() if key != "num_local_experts"}
    if config.latent is not None:
        return out | _deepseek_keys(config, config.latent)
    out["head_dim"] = config.head_dim
    if config.family.endswith("_moe"):
        out |= {"decoder_sparse_step": 1, "mlp_only_layers": list(config.dense_layers)}
        if config.family != "qwen2_moe":
            del out["shared_expert_intermediate_size"]
    if config.family.startswith("qwen2"):
        del out["attention_bias"]
    return out


def _deepseek_keys(config: ModelConfig, latent: Latent) -> dict[str, Any]:
    return {
        "q_lora_rank": latent.q_rank or None,
        "kv_lora_rank": latent.kv_rank,
        "qk_nope_head_dim": latent.nope_dim,
        "qk_rope_head_dim": latent.rope_dim,
        "v_head_dim": latent.v_dim,
        "rope_interleave": latent.interleaved,
        "n_shared_experts": config.shared_intermediate // config.expert_intermediate,
        "first_k_dense_replace": len(config.dense_layers),
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }


def _rope_scaling(config: ModelConfig) -> dict[str, Any] | None:
    if config.rope_yarn is not None:
        given = {name: getattr(config.rope_yarn, name) for name in Yarn.__struct_fields__}
        return {"rope_type": "yarn", **{name: value for name, value in given.items() if value is not None}}
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
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
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
