"""GGUF files: written here by the rules of llama.cpp's converter, read back as the model that they came from."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from twinmill.model.config import ModelConfig
from twinmill.model.gguf import GgufError, import_gguf
from twinmill.model.hf import load_folder, state_bits

from .sizes import sharp

gguf = pytest.importorskip("gguf")
torch.set_num_threads(1)
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh0123", "Ġ", "ab", "Ġab", "abc"]
MERGES = ["a b", "Ġ ab", "ab c"]
SIZES = ModelConfig(
    family="llama",
    vocab=len(TOKENS),
    width=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=96,
    norm_eps=1e-5,
)
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def written(path, decoder, kind=None, facts=(), more=(), architecture="llama", pre="smollm"):
    """The model as a GGUF file; matrices of the layers as `kind`."""
    config = decoder.config
    writer = gguf.GGUFWriter(path, architecture)
    for add, value in (
        (writer.add_block_count, config.layers), (writer.add_context_length, config.max_positions),
        (writer.add_embedding_length, config.width), (writer.add_feed_forward_length, config.intermediate),
        (writer.add_head_count, config.heads), (writer.add_head_count_kv, config.kv_heads),
        (writer.add_rope_freq_base, config.rope_theta), (writer.add_layer_norm_rms_eps, config.norm_eps),
        (writer.add_vocab_size, config.vocab), (writer.add_rope_dimension_count, config.head_dim),
        (writer.add_tokenizer_model, "gpt2"), (writer.add_tokenizer_pre, pre), (writer.add_token_list, TOKENS),
        (writer.add_token_types, [3] * 3 + [1] * (len(TOKENS) - 3)), (writer.add_token_merges, MERGES),
        (writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_pad_token_id, 2),
    ):  # fmt: skip
        add(value)
    for key, value in facts:
        writer.add_float32(key, value)
    for name, bits in (*state_bits(decoder).items(), *more):
        values = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
        parts = name.removesuffix(".weight").split(".", 3)
        if name.startswith("model.layers."):
            heads = {"self_attn.q_proj": config.heads, "self_attn.k_proj": config.kv_heads}.get(parts[3])
            if heads:  # llama.cpp's permute
                values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
            name = f"blk.{parts[2]}.{NAMES[parts[3]]}.weight"
        else:
            name = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(
                name, name
            )
        if kind is not None and name.startswith("blk.") and values.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_comes_back_bit_by_bit(tmp_path):
    decoder = sharp(SIZES)
    got = import_gguf(written(tmp_path / "m.gguf", decoder), tmp_path / "out")
    loaded, config = load_folder(tmp_path / "out")
    assert config == got
    assert (config.norm_eps, config.special_ids, config.tied) == (1e-5, SPECIAL, True)
    want = state_bits(decoder)
    assert all(np.array_equal(bits, want[name]) for name, bits in state_bits(loaded).items())
    assert want.keys() == state_bits(loaded).keys()


def test_quantised_weights_are_expanded(tmp_path):
    decoder = sharp(SIZES)
    import_gguf(written(tmp_path / "m.gguf", decoder, gguf.GGMLQuantizationType.Q8_0), tmp_path / "out")
    loaded, _ = load_folder(tmp_path / "out")
    ids = torch.arange(18) % len(TOKENS)
    with torch.no_grad():
        got, want = (d.logits(d(ids, torch.arange(18), [18]).hidden) for d in (loaded, decoder))
    assert 0 < (got - want).abs().max() < 0.05 * want.abs().max()


def test_its_vocabulary_becomes_a_tokenizer(tmp_path):
    import_gguf(written(tmp_path / "m.gguf", sharp(SIZES)), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    said = tokenizer.encode("<|im_start|>abc ab12<|im_end|>")
    assert said.tokens == ["<|im_start|>", "abc", "Ġab", "1", "2", "<|im_end|>"]
    assert said.ids == [TOKENS.index(token) for token in said.tokens]
    assert tokenizer.decode(said.ids, skip_special_tokens=True) == "abc ab12"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architecture": "gemma"}, "general.architecture = 'gemma'"),
        ({"pre": "llama-bpe"}, "tokenizer.ggml.pre = 'llama-bpe'"),
        ({"facts": [("llama.rope.scaling.factor", 4.0)]}, r"llama\.rope\.scaling\.factor"),
        ({"more": [("rope_freqs.weight", np.zeros(8, np.uint16))]}, "tensor rope_freqs.weight"),
    ],
    ids=["architecture", "tokenizer", "rope", "tensor"],
)
def test_what_is_not_implemented_is_refused_by_name(tmp_path, change, says):
    path = written(tmp_path / "m.gguf", sharp(SIZES), **change)
    with pytest.raises(GgufError, match=says) as caught:
        import_gguf(path, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_what_is_no_gguf_file_is_refused(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"not one of them, although long enough to be looked at")
    with pytest.raises(GgufError, match="cannot be read as GGUF"):
        import_gguf(tmp_path / "m.gguf", tmp_path / "out")
    with pytest.raises(GgufError, match="cannot be read as GGUF"):
        import_gguf(tmp_path / "none.gguf", tmp_path / "out")


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(GgufError, match=r"pip install 'twinmill\[gguf\]'"):
        import_gguf(tmp_path / "m.gguf", tmp_path / "out")
