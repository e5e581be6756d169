"""bench deltas at its smallest: a toy's real updates, every figure made, the layouts of others exact; nothing is timed."""

import json
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import deltas
from _gguf import GGUF, NotGGUF
from _layouts import LAYOUTS, size
from _material import Gradients, Material, Rollouts, Start, orthogonal, prompts, reward, to_bf16
from twinmill.model.config import ModelConfig
from twinmill.model.hf import init_decoder, named_views

TOY = ModelConfig(
    family="llama", vocab=64, width=32, layers=2, heads=2, kv_heads=1, head_dim=16, intermediate=64, max_positions=256
)
MIXTURE = ModelConfig(
    family="qwen3_moe", vocab=64, width=32, layers=2, heads=2, kv_heads=1, head_dim=16, experts=8, top_k=2,
    expert_intermediate=16, max_positions=256,
)  # fmt: skip
SMALL = Rollouts(prompts=2, samples=4, tokens=6, batch=4, warmup=2, steps=3)


def toy(folder) -> Start:
    decoder = init_decoder(TOY, 0)
    return Start(
        TOY,
        [f"Ġw{i}" for i in range(TOY.vocab)],
        lambda: {n: view.clone().numpy() for n, view in named_views(decoder).items()},
    )


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Material:
    made = Material(tmp_path_factory.mktemp("material"), toy, SMALL)
    made.make()
    return made


def test_every_figure_is_made_and_the_last_line_is_the_result(material, monkeypatch, capsys):
    monkeypatch.setattr(deltas, "MEMCPY_BYTES", 64 << 20)
    with pytest.raises(SystemExit):
        deltas.main(["--runs", "1", "--moe-steps", "3", "--moe-every", "2"], material, TOY, MIXTURE)
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert found["bench"] == "deltas" and "a mixture of experts" in out
    assert found["must"] == deltas.MUST | deltas.MUST_MIXTURE | deltas.MUST_ENGINE
    assert found["measured"]["moe_steps"] == 3 and found["measured"]["moe_ratio_p50"] > 0
    assert found["measured"].keys() >= found["must"].keys()
    assert all(found["measured"][key] > 0 for key in found["must"])


def test_a_package_that_is_not_there_is_left_out_aloud_and_one_that_is_counts(material, monkeypatch, capsys):
    pair = material.load("N 1e-6")
    monkeypatch.setitem(sys.modules, "fireworks_delta_compression", None)
    assert deltas.fireworks_ratio(pair) is None and "pip install fireworks" in capsys.readouterr().out
    fake = SimpleNamespace(delta_compress=lambda src, dst, compression_format: (src.view(torch.uint8).flatten(), ""))
    monkeypatch.setitem(sys.modules, "fireworks_delta_compression", fake)
    assert deltas.fireworks_ratio(pair) == 1.0


def test_sets_differ_by_learning_rate_and_by_what_they_begin_with(material):
    changed = {}
    for name in material.names:
        pair = material.load(name)
        changed[name] = np.mean(np.concatenate([(pair.before[n] != pair.after[n]).ravel() for n in pair.before]))
    assert 0 < changed["N 1e-6"] < changed["N 3e-6"] < changed["N 1e-5"]
    assert changed["N 1e-6"] < changed["S 1e-6"] < changed["S 3e-6"]
    assert 0 < changed["Muon S 3e-6"] != changed["S 3e-6"]
    cold = material.load("cold S 3e-6").before
    first = {name: to_bf16(array / 8) for name, array in toy(None).weights().items()}
    assert all((cold[name] == first[name]).all() for name in first)


def test_what_was_killed_goes_on(material, tmp_path):
    whole, broken = (Gradients(folder, toy, SMALL) for folder in (tmp_path / "a", tmp_path / "b"))
    whole.make()
    broken.make()
    broken.path(2).unlink()
    broken.path(1).unlink()
    broken.make()
    for number in range(SMALL.steps):
        assert whole.path(number).read_bytes() == broken.path(number).read_bytes()


def test_prompts_are_of_whole_words_where_there_are_words():
    assert all(len(ids) == 6 and max(ids) < 64 for ids in prompts([f"w{i}" for i in range(64)], 3, seed=0))
    assert reward(["Ġone", "Ġtwo"]) > reward(["Ġone", "Ġone"]) > reward([])


def test_muon_moves_all_directions_alike():
    singular = np.linalg.svd(orthogonal(np.random.default_rng(0).standard_normal((20, 33)).astype(np.float32)))[1]
    assert singular.min() > 0.5 and singular.max() < 1.5


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("share", [0.0, 0.0003, 0.03, 0.6])
def test_layouts_of_others_are_exact(name, share):
    rng = np.random.default_rng(3)
    before = {n: rng.integers(0, 65536, shape).astype(np.uint16) for n, shape in {"a": (40, 300), "b": (7,)}.items()}
    after = {n: np.where(rng.random(bits.shape) < share, bits + np.uint16(1), bits) for n, bits in before.items()}
    wire = LAYOUTS[name].encode(before, after)
    found = LAYOUTS[name].decode(before, wire)
    assert size(wire) > 0 or (share == 0.0 and name == "raw")
    assert all((found[n] == after[n]).all() for n in after)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(kind: int, blocks: bytes, shape: tuple[int, ...]) -> bytes:
    """One tensor, two facts."""
    facts = [text(f"llama.attention.{name}") + struct.pack("<II", 4, 1) for name in ("head_count", "head_count_kv")]
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(facts)) + b"".join(facts)
    head += text("blk.0.attn_q.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, 0)
    return head + bytes(-len(head) % 32) + blocks


def test_a_quantised_tensor_is_read_with_its_steps():
    values = np.arange(-16, 16, dtype=np.int8)
    blocks = b"".join(np.float16(0.5).tobytes() + (values * sign).tobytes() for sign in (1, -1, 2, -2))
    ((name, found, steps),) = GGUF(gguf(8, blocks, (4, 32))).tensors()
    assert name == "model.layers.0.self_attn.q_proj.weight"
    assert (found == 0.5 * np.outer([1, 2, -1, -2], values)).all(), "rows of RoPE's halves lie together"
    assert (steps == 0.5).all()


def test_nibbles_lie_as_llama_cpp_has_them():
    block = np.float16(2).tobytes() + np.float16(-1).tobytes() + bytes(range(16))
    ((_, found, _),) = GGUF(gguf(3, 2 * block, (2, 32))).tensors()
    assert found[0, :16].tolist() == [2.0 * i - 1 for i in range(16)] and (found[:, 16:] == -1).all()


def test_files_of_another_kind_are_refused_by_name():
    with pytest.raises(NotGGUF, match="want a GGUF file"):
        GGUF(b"GGUF" + struct.pack("<I", 2))
    with pytest.raises(NotGGUF, match=r"'blk.0.attn_q.weight' is of type 14"):
        list(GGUF(gguf(14, bytes(64), (2, 32))).tensors())
