"""Packed INT4 folders, and a text model inside a larger one, as Kimi K2.5 is published."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from twinmill.model.config import ConfigError, from_hf, read_config
from twinmill.model.hf import (
    WeightsError,
    dtypes,
    load_bits,
    load_folder,
    named_views,
    plain_config,
    read_bits,
    save_folder,
    state_bits,
)
from twinmill.model.packed import unpack
from twinmill.model.transformer import Decoder

from .sizes import KIMI, sharp
from .test_deepseek import hf_config

torch.set_num_threads(1)
GROUP = 8
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None, "block_structure": None, "dynamic": False, "group_size": GROUP, "num_bits": 4,
                "observer": "minmax", "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int",
            },
        }
    },
    "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "lm_head"],
    "kv_cache_scheme": None,
    "quantization_status": "compressed",
}  # fmt: skip
VISION = {"model_type": "kimi_k25_vision", "hidden_size": 16, "patch_size": 14}


def pack(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """By the description of the format, number by number."""
    rows, cols = weight.shape
    scale = (weight.view(rows, -1, GROUP).abs().amax(-1).float() / 7).bfloat16()
    numbers = (weight.float().view(rows, -1, GROUP) / scale.float()[..., None]).round().clamp(-8, 7).view(rows, cols)
    words = np.zeros((rows, -(-cols // 8)), np.uint32)
    for row in range(rows):
        for col in range(cols):
            words[row, col // 8] |= np.uint32(int(numbers[row, col]) + 8) << np.uint32(4 * (col % 8))
    return {
        "weight_packed": torch.from_numpy(words.view(np.int32)),
        "weight_scale": scale,
        "weight_shape": torch.tensor([rows, cols], dtype=torch.int32),
    }


@pytest.fixture
def published(tmp_path):
    """A folder as Kimi K2.5 is published: (path, its tensors). Routed experts are packed, vision is around."""
    folder = tmp_path / "kimi"
    save_folder(sharp(KIMI), folder)
    text = {f"language_model.{name}": t for name, t in load_file(folder / "model.safetensors").items()}
    tensors = {}
    for name, tensor in text.items():
        if ".experts." in name:
            module = name.removesuffix(".weight")
            tensors |= {f"{module}.{part}": t for part, t in pack(tensor).items()}
        else:
            tensors[name] = tensor
    tensors["vision_tower.patch_embed.proj.weight"] = torch.randn(16, 3, 14, 14).bfloat16()
    tensors["vision_tower.encoder.blocks.0.norm0.bias"] = torch.randn(16)
    tensors["mm_projector.proj.0.weight"] = torch.randn(32, 64).half()
    save_file(tensors, folder / "model.safetensors")
    inner = json.loads((folder / "config.json").read_bytes())
    raw = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": {**inner, "model_type": "kimi_k2", "num_beams": 1, "quantization_config": PACKED},
        "vision_config": VISION,
        "media_placeholder_token_id": 7,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    return folder, tensors


def test_a_published_folder_is_read_and_written_unpacked_with_vision_untouched(published, tmp_path):
    folder, tensors = published
    decoder, config = load_folder(folder)
    assert (config.family, config.prefix, config.wrapper["vision_config"]) == ("kimi_k2", "language_model.", VISION)
    save_folder(decoder, tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    around = {name for name in tensors if not name.startswith("language_model.")}
    assert len(around) == 3 and around == set(decoder.carried)
    for name, tensor in tensors.items():
        if "weight_" not in name:
            assert written[name].dtype == tensor.dtype
            assert torch.equal(written[name], tensor), name
    experts = [name for name in written if ".experts." in name]
    assert len(experts) == 2 * 12 * 3 and len(written) == len(experts) + sum("weight_" not in n for n in tensors)
    raw = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert raw["vision_config"] == VISION and raw["media_placeholder_token_id"] == 7
    assert "quantization_config" not in raw["text_config"]
    assert read_config(tmp_path / "out") == config
    again, _ = load_folder(tmp_path / "out")
    ids = torch.arange(30)
    assert torch.equal(again(ids, ids, [30]).hidden, decoder(ids, ids, [30]).hidden)


def test_unpacked_weights_are_within_half_a_step_and_what_the_scale_says(published):
    folder, tensors = published
    bits, kinds = read_bits(folder)
    name = "language_model.model.layers.1.mlp.experts.3.up_proj"
    assert kinds[f"{name}.weight"] == "BF16"
    got = torch.from_numpy(bits[f"{name}.weight"].view(np.int16)).view(torch.bfloat16).float()
    want = named_views(sharp(KIMI))["model.layers.1.mlp.experts.3.up_proj.weight"]
    step = tensors[f"{name}.weight_scale"].float().repeat_interleave(GROUP, 1)
    assert ((got - want).abs() <= 0.52 * step).all()
    assert len(got.unique()) > 20


def test_unpacking_is_that_of_compressed_tensors():
    packing = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    generator = torch.Generator().manual_seed(0)
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=4)
    for cols in (8, 20, 64):  # 20: the last word is not full
        numbers = torch.randint(-8, 8, (6, cols), generator=generator, dtype=torch.int8)
        scale = torch.randn(6, cols // 4, generator=generator).bfloat16()
        got = unpack(packing.pack_to_int32(numbers, 4), scale, torch.tensor([6, cols]))
        assert torch.equal(got, dequantize(numbers, scale, args=args))
        assert got.dtype == torch.bfloat16


def test_versions_carry_what_is_around_and_a_config_that_fits_them(published):
    folder, _ = published
    decoder, config = load_folder(folder)
    bits, kinds = state_bits(decoder), dtypes(decoder)
    assert bits.keys() == kinds.keys() == read_bits(folder)[0].keys()
    assert kinds["mm_projector.proj.0.weight"] == "F16"
    served = from_hf(json.loads(plain_config(folder)))
    assert "quantization_config" not in plain_config(folder).decode()
    assert served == config
    other = Decoder(served)
    load_bits(other, bits, kinds)
    assert all(np.array_equal(array, bits[name]) for name, array in state_bits(other).items())


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda t, n: t.pop(f"{n}.weight_scale"), r"up_proj.weight_scale is missing"),
        (
            lambda t, n: t.update({f"{n}.weight_packed": t[f"{n}.weight_packed"][:, :1].clone()}),
            r"weight_packed is torch.int32",
        ),
        (
            lambda t, n: t.update({f"{n}.weight_scale": t[f"{n}.weight_scale"][:, :3].clone()}),
            r"weight_scale is torch.bfloat16",
        ),
        (lambda t, n: t.update({f"{n}.weight_shape": torch.tensor([1, 2, 3])}), r"weight_shape has 3"),
    ],
    ids=["no scale", "words", "groups", "shape"],
)
def test_broken_packed_tensors_are_refused_by_name(published, break_it, says):
    folder, tensors = published
    break_it(tensors, "language_model.model.layers.2.mlp.experts.0.up_proj")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=says) as caught:
        read_bits(folder)
    assert "language_model.model.layers.2.mlp.experts.0.up_proj" in str(caught.value)


def changed(path: str, value):
    raw = json.loads(json.dumps(PACKED))
    *way, last = path.split(".")
    node = raw
    for part in way:
        node = node[part]
    node[last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("quant_method", "fp8"),
        ("format", "float-quantized"),
        ("kv_cache_scheme", {"num_bits": 8}),
        ("config_groups.group_0.input_activations", {"num_bits": 8}),
        ("config_groups.group_0.weights", None),
        ("config_groups.group_0.weights.num_bits", 8),
        ("config_groups.group_0.weights.symmetric", False),
        ("config_groups.group_0.weights.strategy", "channel"),
        ("config_groups.group_0.weights.actorder", "group"),
        ("config_groups", {}),
    ],
)
def test_other_quantisations_are_refused_by_name(path, value):
    with pytest.raises(ConfigError, match=path.replace(".", r"\.")) as caught:
        from_hf(hf_config(quantization_config=changed(path, value)))
    assert "\n" not in str(caught.value)


def test_a_wrapper_without_a_text_model_or_at_odds_with_it_is_refused():
    with pytest.raises(ConfigError, match="text_config"):
        from_hf({"model_type": "kimi_k25", "vision_config": VISION})
    with pytest.raises(ConfigError, match="tie_word_embeddings"):
        from_hf({"model_type": "kimi_k25", "text_config": hf_config(), "tie_word_embeddings": True})
    with pytest.raises(ConfigError, match="index_topk"):
        from_hf({"model_type": "kimi_k25", "text_config": hf_config(index_topk=4)})


def test_a_config_that_says_packed_twice_says_it_nowhere_afterwards(tmp_path):
    raw = {"quantization_config": PACKED, "text_config": {"quantization_config": PACKED, "a": 1}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert json.loads(plain_config(tmp_path)) == {"text_config": {"a": 1}}
