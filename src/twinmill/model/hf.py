"""Hugging Face model folders in and out, and the on-disk names of a decoder's tensors.

A decoder stores projections of one input fused; on disk each is a tensor of its own. `named_views` maps every on-disk
name to the slice of the parameter that holds it: loading, saving, publishing and checking digests all go through it.

Read: BF16, F32, F16, and packed INT4 (model/packed.py), which is unpacked; written is what is held, never packed again.
Tensors that a decoder only carries (vision, prediction layers) keep their bits; training does not move them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from .config import ModelConfig, read_config, write_config
from .latent import LatentAttention
from .mixture import Mixture
from .packed import is_packed, unpacked
from .parity import Parity
from .transformer import Block, Decoder

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_TORCH = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}
_KINDS = {dtype: kind for kind, dtype in _TORCH.items()}
_BITS = {"BF16": np.uint16, "F32": np.uint32, "F16": np.uint16}


CHOICE_BIAS = "e_score_correction_bias"


class WeightsError(ValueError):
    """Tensors that do not fit the decoder: which one, what was expected, what was found."""


def _attention_views(block: Block) -> Iterator[tuple[str, Tensor]]:
    config = block.config
    if block.latent is not None:
        yield from _latent_views(block.latent)
        yield "self_attn.o_proj.weight", block.out
        return
    sizes = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
    for name, weight in zip("qkv", block.qkv.split(sizes)):
        yield f"self_attn.{name}_proj.weight", weight
    if block.qkv_bias is not None:
        for name, bias in zip("qkv", block.qkv_bias.split(sizes)):
            yield f"self_attn.{name}_proj.bias", bias
    if block.q_norm is not None and block.k_norm is not None:
        yield "self_attn.q_norm.weight", block.q_norm
        yield "self_attn.k_norm.weight", block.k_norm
    yield "self_attn.o_proj.weight", block.out
    if block.out_bias is not None:
        yield "self_attn.o_proj.bias", block.out_bias


def _latent_views(attention: LatentAttention) -> Iterator[tuple[str, Tensor]]:
    queries = attention.down[: attention.sizes[0]]
    if attention.q_up is not None:
        yield "self_attn.q_a_layernorm.weight", attention.q_norm
        yield "self_attn.q_b_proj.weight", attention.q_up
    yield f"self_attn.{'q_proj' if attention.q_up is None else 'q_a_proj'}.weight", queries
    yield "self_attn.kv_a_proj_with_mqa.weight", attention.down[len(queries) :]
    yield "self_attn.kv_a_layernorm.weight", attention.kv_norm
    yield "self_attn.kv_b_proj.weight", attention.kv_up


def _mlp_views(prefix: str, gate_up: Tensor, down: Tensor) -> Iterator[tuple[str, Tensor]]:
    gate, up = gate_up.chunk(2)
    yield f"{prefix}.gate_proj.weight", gate
    yield f"{prefix}.up_proj.weight", up
    yield f"{prefix}.down_proj.weight", down


def _mixture_views(mixture: Mixture) -> Iterator[tuple[str, Tensor]]:
    yield "mlp.gate.weight", mixture.router
    if mixture.choice_bias is not None:
        yield f"mlp.gate.{CHOICE_BIAS}", mixture.choice_bias
    for e in range(len(mixture.gate_up)):
        yield from _mlp_views(f"mlp.experts.{e}", mixture.gate_up[e], mixture.down[e])
    if mixture.shared_gate is not None:
        yield from _mlp_views("mlp.shared_expert", mixture.shared_gate_up, mixture.shared_down)
        yield "mlp.shared_expert_gate.weight", mixture.shared_gate
    elif mixture.shared_gate_up is not None:
        yield from _mlp_views("mlp.shared_experts", mixture.shared_gate_up, mixture.shared_down)


def _views(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    yield "model.embed_tokens.weight", decoder.embed
    for block in decoder.blocks:
        prefix = f"model.layers.{block.index}."
        yield prefix + "input_layernorm.weight", block.attn_norm
        yield prefix + "post_attention_layernorm.weight", block.mlp_norm
        for name, view in _attention_views(block):
            yield prefix + name, view
        mlp = _mixture_views(block.mixture) if block.mixture else _mlp_views("mlp", block.gate_up, block.down)
        for name, view in mlp:
            yield prefix + name, view
    yield "model.norm.weight", decoder.norm
    if decoder.head is not None:
        yield "lm_head.weight", decoder.head


@torch.no_grad()
def named_views(decoder: Decoder) -> dict[str, Tensor]:
    """On-disk name -> the slice of memory that holds it (fp32, shares storage), sorted by name."""
    prefix = decoder.config.prefix
    return {prefix + name: view.detach() for name, view in sorted(_views(decoder))}


def dtypes(decoder: Decoder) -> dict[str, str]:
    """On-disk name -> stored dtype in safetensors spelling, of every tensor, carried ones too."""
    names = sorted([*named_views(decoder), *decoder.carried])
    return {name: decoder.stored.get(name, _usual(name)) for name in names}


def _usual(name: str) -> str:
    """The dtype of a tensor of which no folder said one."""
    return "F32" if name.endswith(CHOICE_BIAS) else "BF16"


def state_bits(decoder: Decoder) -> dict[str, npt.NDArray]:
    """The stored bits of every tensor under its on-disk name: uint16 for BF16 and F16, uint32 for F32."""
    kinds = dtypes(decoder)
    bits = {name: to_bits(view, kinds[name]) for name, view in named_views(decoder).items()}
    return dict(sorted({**bits, **decoder.carried}.items()))


def load_bits(decoder: Decoder, bits: Mapping[str, npt.NDArray], kinds: Mapping[str, str]) -> None:
    """Fill the decoder from stored bits (all tensors). Raises WeightsError before anything is written."""
    views = named_views(decoder)
    carried = {name for name in bits.keys() - views.keys() if decoder.config.carries(name)}
    _check_names(set(views), bits.keys() - carried)
    for name, view in views.items():
        if bits[name].shape != tuple(view.shape):
            raise WeightsError(f"{name}: shape {bits[name].shape} where the model has {tuple(view.shape)}")
    for name in bits:
        if kinds[name] not in _TORCH:
            raise WeightsError(f"{name}: dtype {kinds[name]} is not implemented; known: {', '.join(_TORCH)}")
    for name, view in views.items():
        view.copy_(from_bits(bits[name], kinds[name]))
    decoder.carried = {name: bits[name].copy() for name in sorted(carried)}
    decoder.stored = {name: kinds[name] for name in bits if kinds[name] != _usual(name)}


def to_bits(view: Tensor, kind: str) -> npt.NDArray:
    stored = view.to(_TORCH[kind]).contiguous()
    whole = torch.int32 if kind == "F32" else torch.int16
    bits = stored.view(whole).numpy().view(_BITS[kind])
    return bits.copy() if stored.data_ptr() == view.data_ptr() else bits


def from_bits(bits: npt.NDArray, kind: str) -> Tensor:
    whole = np.ascontiguousarray(bits).view(np.int32 if kind == "F32" else np.int16)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy()).view(_TORCH[kind])


def _check_names(want: set[str], have: set[str]) -> None:
    for problem, names in (("missing", want - have), ("not part of this model", have - want)):
        if names:
            raise WeightsError(f"{len(names)} tensors are {problem}, the first is {min(names)}")


def load_folder(path: str | Path, parity: Parity = Parity.OFF) -> tuple[Decoder, ModelConfig]:
    """A decoder from config.json and safetensors (one file, or shards with an index). ConfigError, WeightsError."""
    folder = Path(path)
    config = read_config(folder)
    bits, kinds = read_bits(folder)
    if config.tied:
        # some writers store the tied head a second time
        head = config.prefix + "lm_head.weight"
        bits.pop(head, None)
        kinds.pop(head, None)
    decoder = Decoder(config, parity)
    load_bits(decoder, bits, kinds)
    return decoder, config


def read_bits(path: str | Path) -> tuple[dict[str, npt.NDArray], dict[str, str]]:
    """All tensors of a folder as stored bits, and their dtypes; packed ones unpacked."""
    folder = Path(path)
    bits: dict[str, npt.NDArray] = {}
    kinds: dict[str, str] = {}
    packed: dict[str, Tensor] = {}
    for file in _files(folder):
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    if is_packed(name):
                        packed[name] = tensors.get_tensor(name)
                        continue
                    kinds[name] = tensors.get_slice(name).get_dtype()
                    if kinds[name] not in _TORCH:
                        raise WeightsError(f"{file}: {name} has dtype {kinds[name]}, which is not implemented")
                    bits[name] = to_bits(tensors.get_tensor(name), kinds[name])
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file}: cannot be read: {error}") from error
    try:
        for name, weight in unpacked(packed):
            kinds[name] = _KINDS[weight.dtype]
            bits[name] = to_bits(weight, kinds[name])
    except ValueError as error:
        raise WeightsError(f"{folder}: {error}") from error
    return bits, kinds


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).exists():
        names = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
        return [folder / name for name in sorted(names)]
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    raise WeightsError(f"{folder}: neither {WEIGHTS} nor {INDEX} is there")


def plain_config(path: str | Path) -> bytes:
    """The config.json that fits what `read_bits` gives: the folder's own, rewritten only where that one says `packed`."""
    data = (Path(path) / "config.json").read_bytes()
    raw = json.loads(data)
    layers = [raw, raw.get("text_config") or {}]
    packed = [layer.pop("quantization_config", None) for layer in layers]
    if not any(packed):
        return data
    return (json.dumps(raw, indent=2) + "\n").encode()


def save_folder(decoder: Decoder, path: str | Path) -> None:
    """Write config.json and model.safetensors. The tokenizer is data's: copy it beside them."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_config(decoder.config, folder)
    (folder / WEIGHTS).write_bytes(pack_bits(state_bits(decoder), dtypes(decoder)))


def pack_bits(bits: Mapping[str, npt.NDArray], kinds: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file."""
    return save_tensors({name: from_bits(b, kinds[name]) for name, b in bits.items()}, {"format": "pt"})


@torch.no_grad()
def init_decoder(config: ModelConfig, seed: int, parity: Parity = Parity.OFF) -> Decoder:
    """Random weights, rounded to bf16. Projections back into the residual stream are scaled down by depth."""
    decoder = Decoder(config, parity)
    generator = torch.Generator().manual_seed(seed)
    for name, view in named_views(decoder).items():
        if name.endswith(("norm.weight", "bias")):
            continue
        deep = name.endswith(("o_proj.weight", "down_proj.weight"))
        std = config.init_std / ((2 * config.layers) ** 0.5 if deep else 1.0)
        view.copy_(torch.randn(view.shape, generator=generator).mul_(std).bfloat16())
    return decoder
