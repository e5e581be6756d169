"""DeepSeek's family: folders and logits against transformers, routing, replay, parity."""

import json

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from twinmill.model.config import ConfigError, ModelConfig, from_hf, read_config, to_hf
from twinmill.model.core import CoreUnavailable
from twinmill.model.hf import WeightsError, dtypes, init_decoder, load_folder, named_views, read_bits, save_folder
from twinmill.model.mixture import choose, route
from twinmill.model.parity import Parity
from twinmill.model.probe import strict_parity

from .sizes import KIMI, sharp

torch.set_num_threads(1)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 32}
CASES = {
    "groups": {},
    "yarn": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1}},
    # both betas 1, as Kimi K2 has them: the ramp has no width
    "kimi": {
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0, "beta_slow": 1.0},
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "rms_norm_eps": 1e-5,
    },
    "plain-queries": {"q_lora_rank": None},
    "halves": {"rope_interleave": False},
    "wide-values": {"v_head_dim": 32},
    "two-shared": {"n_shared_experts": 2, "norm_topk_prob": False, "first_k_dense_replace": 0},
    "tied": {"tie_word_embeddings": True},
}  # fmt: skip


def reference(folder, **changes):
    """A random checkpoint as transformers writes it, and its model in fp32."""
    import transformers

    config = transformers.DeepseekV3Config(**{**SIZES, **changes})
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(config)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "inv_freq" not in name:
                tensor.add_(torch.randn_like(tensor) * 0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def logits(decoder, ids, lens):
    positions = torch.cat([torch.arange(n) for n in lens])
    with torch.no_grad():
        return decoder.logits(decoder(ids, positions, lens).hidden)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_round_trip(case, tmp_path):
    import transformers

    model = reference(tmp_path / "hf", **CASES[case])
    decoder, config = load_folder(tmp_path / "hf")
    lens = [33, 5, 90]
    ids = torch.randint(0, 64, (sum(lens),))
    with torch.no_grad():
        want = torch.cat([model(part[None]).logits[0] for part in ids.split(lens)])
    assert want.std() > 0.1
    torch.testing.assert_close(logits(decoder, ids, lens), want, atol=1e-4, rtol=0)

    save_folder(decoder, tmp_path / "out")
    before, kinds = read_bits(tmp_path / "hf")
    after, kinds_after = read_bits(tmp_path / "out")
    assert kinds == kinds_after == dtypes(decoder)
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    assert read_config(tmp_path / "out") == config
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(again(ids[None, :33]).logits, model(ids[None, :33]).logits)


def test_yarn_of_another_family(tmp_path):
    import transformers

    sizes = {k: SIZES[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")}
    config = transformers.Qwen3Config(
        **sizes, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_parameters=YARN
    )
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    decoder, read = load_folder(tmp_path)
    ids = torch.randint(0, 64, (90,))
    with torch.no_grad():
        torch.testing.assert_close(logits(decoder, ids, [90]), model(ids[None]).logits[0], atol=1e-4, rtol=0)
    assert from_hf(to_hf(read)) == read


def test_the_choice_is_that_of_transformers():
    """Biases decide who is chosen and never how much they weigh; experts outside the best groups are out."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3TopkRouter

    router = DeepseekV3TopkRouter(DeepseekV3Config(**SIZES))
    torch.manual_seed(1)
    router.weight.data.normal_()
    router.e_score_correction_bias.normal_(std=0.2)
    x = torch.randn(400, 32)
    with torch.no_grad():
        raw, want_gates, want = router(x)
    scores = raw.sigmoid()
    own = choose(scores, KIMI, router.e_score_correction_bias)
    got = route(scores, own, KIMI, None, 0.0)
    assert torch.equal(own.sort(-1).values, want.sort(-1).values)
    gates = torch.zeros_like(scores).scatter_(1, got.chosen, got.gates)
    torch.testing.assert_close(gates, torch.zeros_like(scores).scatter_(1, want, want_gates))
    groups = [set(row) for row in own.div(3, rounding_mode="floor").tolist()]
    assert max(map(len, groups)) == 2
    assert len(set().union(*groups)) == 4
    assert (choose(scores, KIMI, None) != own).any(), "the bias decides something"


def test_replay_recomputes_gates_with_gradients_and_never_moves_the_bias():
    decoder = sharp(KIMI)
    ids, positions = torch.arange(20) % KIMI.vocab, torch.arange(20)
    forced = torch.tensor([11, 4, 2], dtype=torch.int32).expand(20, 2, 3)
    output = decoder(ids, positions, [20], forced)
    assert torch.equal(output.routes.sort(-1).values, forced.sort(-1).values)
    assert (output.replayed, output.refused) == (40, 0)
    output.hidden.square().sum().backward()
    for block in decoder.blocks[1:]:
        grad = block.mixture.router.grad.abs().sum(-1)
        assert grad[[2, 4, 11]].min() > 0
        assert block.mixture.gate_up.grad[[0, 1, 3, 5, 6, 7, 8, 9, 10]].abs().max() == 0
        assert block.mixture.choice_bias.grad is None
    assert "choice_bias" not in " ".join(name for name, _ in decoder.named_parameters())
    with torch.no_grad():
        free = decoder(ids, positions, [20])
        again = decoder(ids, positions, [20], free.routes, replay_floor=0.0)
    assert torch.equal(free.hidden, again.hidden)


def test_gradients_are_those_of_transformers(tmp_path):
    model = reference(tmp_path, **CASES["kimi"])
    decoder, _ = load_folder(tmp_path)
    ids = torch.randint(0, 64, (40,))
    out = decoder(ids, torch.arange(40), [40])
    decoder.logprobs(out.hidden[:-1], ids[1:]).sum().backward()
    model(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None]).sum().backward()
    theirs = dict(model.named_parameters())
    for i in range(3):
        mine, attention = decoder.blocks[i].latent, f"model.layers.{i}.self_attn."
        for part, name in ((mine.kv_up, "kv_b_proj"), (mine.q_up, "q_b_proj"), (mine.kv_norm, "kv_a_layernorm")):
            want = theirs[f"{attention}{name}.weight"].grad
            torch.testing.assert_close(part.grad, want, atol=1e-3 * float(want.abs().max()), rtol=1e-3)
        want = torch.cat([theirs[f"{attention}{n}.weight"].grad for n in ("q_a_proj", "kv_a_proj_with_mqa")])
        torch.testing.assert_close(mine.down.grad, want, atol=1e-3 * float(want.abs().max()), rtol=1e-3)
    want = theirs["model.layers.1.mlp.gate.weight"].grad
    got = decoder.blocks[1].mixture.router.grad
    torch.testing.assert_close(got, want, atol=1e-3 * float(want.abs().max()), rtol=1e-3)


@torch.no_grad()
def test_strict_rows_do_not_depend_on_the_batch():
    decoder = sharp(KIMI, parity=Parity.STRICT)
    lens = [1, 2, 3, 5, 64, 65, 130]
    ids = torch.randint(0, KIMI.vocab, (sum(lens),), generator=torch.Generator().manual_seed(0))
    packed = decoder(ids, torch.cat([torch.arange(n) for n in lens]), lens)
    for part, hidden, routes in zip(ids.split(lens), packed.hidden.split(lens), packed.routes.split(lens)):
        for length in {len(part), (len(part) + 1) // 2}:
            alone = decoder(part[:length], torch.arange(length), [length])
            assert torch.equal(alone.hidden, hidden[:length])
            assert torch.equal(alone.routes, routes[:length])
    assert strict_parity(KIMI) == ""


def test_the_core_says_that_it_does_not_compute_this():
    ids = torch.arange(4)
    with pytest.raises(CoreUnavailable, match="multi-head latent attention"):
        sharp(KIMI, parity=Parity.CORE)(ids, ids, [4])


def test_prediction_layers_are_carried_bit_by_bit(tmp_path):
    decoder = init_decoder(msgspec.structs.replace(KIMI, prediction_layers=1), 0)
    save_folder(decoder, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.3.eh_proj.weight"] = torch.randn(32, 64).bfloat16()
    tensors["model.layers.3.enorm.weight"] = torch.randn(32)
    save_file(tensors, tmp_path / "model.safetensors")
    loaded, _ = load_folder(tmp_path)
    save_folder(loaded, tmp_path / "out")
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[n], t) and again[n].dtype == t.dtype for n, t in tensors.items())
    assert again["model.layers.2.mlp.gate.e_score_correction_bias"].dtype == torch.float32
    save_file({**tensors, "model.layers.4.enorm.weight": torch.randn(32)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"not part of this model, the first is model\.layers\.4"):
        load_folder(tmp_path)


def hf_config(**changes):
    raw = {"model_type": "kimi_k2", **SIZES, "routed_scaling_factor": 2.827, "n_shared_experts": 1, **changes}
    return {key: value for key, value in raw.items() if value != "absent"}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"attention_bias": True}, "attention_bias"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"head_dim": 24}, "head_dim"),
        ({"kv_lora_rank": "absent"}, "kv_lora_rank"),
        ({"kv_lora_rank": 0}, "kv_lora_rank"),
        ({"routed_scaling_factor": "absent"}, "routed_scaling_factor"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ({"n_group": 5}, "n_group"),
        ({"topk_group": 9}, "topk_group"),
        ({"n_group": 6, "topk_group": 1}, "topk_group"),
        ({"num_experts_per_tok": 13}, "num_experts_per_tok"),
        ({"index_topk": 2048}, "index_topk"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "original_max_position_embeddings"),
        ({"rope_scaling": {"type": "yarn", **YARN, "colour": 1}}, "colour"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change, names):
    with pytest.raises(ConfigError, match=names) as caught:
        from_hf(hf_config(**change))
    assert "\n" not in str(caught.value)


def test_a_config_as_kimi_k2_publishes_it():
    """Every key of that config.json, with its values for sizes."""
    raw = {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001,
        "bos_token_id": 163584, "eos_token_id": 163585, "first_k_dense_replace": 1, "hidden_act": "silu",
        "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 131072, "model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 64,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
        "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6,
        "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "original_max_position_embeddings": 4096, "type": "yarn"},
        "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
        "use_cache": True, "v_head_dim": 128, "vocab_size": 163840,
    }  # fmt: skip
    config = from_hf(raw)
    assert isinstance(config, ModelConfig)
    assert (config.experts, config.top_k, len(config.moe_layers)) == (384, 8, 60)
    assert (config.head_dim, config.rope_dim, config.v_dim) == (192, 64, 128)
    written = to_hf(config)
    lost = {key for key, value in raw.items() if written.get(key) != value}
    inert = {"attention_dropout", "auto_map", "aux_loss_alpha", "pretraining_tp", "seq_aux", "use_cache"}
    assert lost == inert | {"rope_scaling"}  # spelled rope_type, as newer readers want it
    assert from_hf(written) == config


def test_random_weights_have_every_tensor_that_transformers_writes(tmp_path):
    reference(tmp_path)
    config = read_config(tmp_path)
    assert set(named_views(init_decoder(config, 0))) == set(read_bits(tmp_path)[0])
    assert json.loads((tmp_path / "config.json").read_bytes())["model_type"] == "deepseek_v3"
