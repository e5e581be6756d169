"""Folders in and out against transformers itself."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from twinmill.model.config import ConfigError, from_hf, read_config
from twinmill.model.hf import (
    WeightsError,
    dtypes,
    init_decoder,
    load_bits,
    load_folder,
    read_bits,
    save_folder,
    state_bits,
)
from twinmill.model.transformer import Decoder

from .sizes import TINY

torch.set_num_threads(1)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": ("Llama", {}),
    "llama-tied-rope3": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama-bias": ("Llama", {"attention_bias": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
    "qwen3-moe": ("Qwen3Moe", {**MOE, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe-tied": ("Qwen3Moe", {**MOE, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-moe-mixed": ("Qwen3Moe", {**MOE, "head_dim": 16, "mlp_only_layers": [0]}),
    "qwen2-moe-shared": ("Qwen2Moe", {**MOE, "shared_expert_intermediate_size": 24}),
}


@pytest.fixture(params=CASES)
def checkpoint(request, tmp_path):
    """(folder, transformers model in fp32): a random checkpoint as transformers writes it."""
    import transformers

    family, extra = CASES[request.param]
    config = getattr(transformers, f"{family}Config")(**SIZES, **extra)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "hf")
    # loaded anew: a cast to bf16 and back would leave rounded RoPE frequencies behind
    return tmp_path / "hf", transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)


def test_logits_and_round_trip(checkpoint, tmp_path):
    import transformers

    folder, reference = checkpoint
    decoder, config = load_folder(folder)
    lens = [33, 5, 90]
    ids = torch.randint(0, 64, (sum(lens),))
    positions = torch.cat([torch.arange(n) for n in lens])
    with torch.no_grad():
        logits = decoder.logits(decoder(ids, positions, lens).hidden)
        want = torch.cat([reference(part[None]).logits[0] for part in ids.split(lens)])
    torch.testing.assert_close(logits, want, atol=1e-4, rtol=0)

    save_folder(decoder, tmp_path / "out")
    before, kinds = read_bits(folder)
    after, kinds_after = read_bits(tmp_path / "out")
    assert kinds == kinds_after == dtypes(decoder)
    assert before.keys() == after.keys() == state_bits(decoder).keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    assert read_config(tmp_path / "out") == config
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(again(ids[None, :33]).logits, reference(ids[None, :33]).logits)


def test_sharded_folder_with_mixed_dtypes(tmp_path):
    decoder = init_decoder(TINY, 3)
    save_folder(decoder, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = torch.linspace(0.5, 1.5, 32)  # fp32 values that bf16 cannot hold
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for n, part in enumerate((names[::2], names[1::2])):
        file = f"model-{n}.safetensors"
        save_file({name: tensors[name] for name in part}, tmp_path / file)
        weight_map |= dict.fromkeys(part, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    loaded, _ = load_folder(tmp_path)
    assert dtypes(loaded)["model.norm.weight"] == "F32"
    assert torch.equal(loaded.norm.data, tensors["model.norm.weight"])
    bits = state_bits(loaded)
    assert bits["model.norm.weight"].dtype == np.uint32
    assert bits["model.embed_tokens.weight"].dtype == np.uint16
    other = Decoder(TINY)
    load_bits(other, bits, dtypes(loaded))
    for mine, theirs in zip(other.parameters(), loaded.parameters()):
        assert torch.equal(mine, theirs)


def test_state_bits_is_a_copy():
    decoder = init_decoder(TINY, 0)
    decoder.stored = {"model.norm.weight": "F32"}
    bits = state_bits(decoder)
    kept = bits["model.norm.weight"].copy()
    decoder.norm.data.add_(1)
    np.testing.assert_array_equal(bits["model.norm.weight"], kept)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "yarn"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"logit_softcap": 30.0}, "logit_softcap"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"vocab_size": None}, "vocab_size"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change, names):
    raw = {"model_type": "qwen3_moe", **SIZES, **MOE, **change}
    raw = {key: value for key, value in raw.items() if value is not None}
    with pytest.raises(ConfigError, match=names) as caught:
        from_hf(raw)
    assert "\n" not in str(caught.value)


def test_wrong_tensors_are_refused_before_anything_is_written():
    decoder = init_decoder(TINY, 0)
    before = state_bits(decoder)
    other = state_bits(init_decoder(TINY, 1))
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    kinds = dtypes(decoder)
    with pytest.raises(WeightsError, match="missing"):
        load_bits(decoder, {k: v for k, v in other.items() if k != name}, kinds)
    with pytest.raises(WeightsError, match="shape"):
        load_bits(decoder, {**other, name: other[name][:1]}, kinds)
    with pytest.raises(WeightsError, match="not part"):
        load_bits(decoder, {**other, "surplus": other[name]}, kinds)
    with pytest.raises(WeightsError, match="F8_E4M3"):
        load_bits(decoder, other, {**kinds, name: "F8_E4M3"})
    for key, bits in state_bits(decoder).items():
        np.testing.assert_array_equal(bits, before[key])


def test_init_is_a_function_of_the_seed():
    first, same, other = (state_bits(init_decoder(TINY, seed)) for seed in (5, 5, 6))
    assert all(np.array_equal(first[k], same[k]) for k in first)
    assert not np.array_equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
