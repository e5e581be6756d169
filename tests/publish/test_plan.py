"""The predictor against counted updates, and the plan against the figures that it was made for."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from twinmill.publish.errors import Refused
from twinmill.publish.exponents import model_shape
from twinmill.publish.interchange.folder import write_folder
from twinmill.publish.plan import GRIDS, Plan, PlanConfig, levers, plan
from twinmill.publish.predict import BF16_GRID, TRAINED, Binades, Change, predict, rare_use, typical
from twinmill.publish.quantise import QUANTISERS

from .adam import Masters, to_bf16, trained_weights

NATIVE, SMALL = 0.108, 0.0135
"""median |w| of SmolLM2-135M, and of the same divided by 8, which is nearer to large models"""

# ---- real RL updates of SmolLM2-135M: AdamW, first recorded step, mean |u| 0.26

MEASURED = [
    (NATIVE, 1e-6, 0.0022, 7.88),
    (NATIVE, 3e-6, 0.0058, 7.17),
    (NATIVE, 1e-5, 0.0161, 6.41),
    (SMALL, 1e-6, 0.0133, 6.55),
    (SMALL, 3e-6, 0.0332, 5.85),
    (SMALL, 1e-5, 0.0870, 5.10),
]
"""median |w|, lr, share changed, bits per change at least"""


@pytest.mark.parametrize(("median_w", "lr", "density", "bits"), MEASURED)
def test_measured_updates_are_predicted(median_w: float, lr: float, density: float, bits: float) -> None:
    found = predict(typical(median_w), BF16_GRID, lr, 0.26)
    assert found.density == pytest.approx(density, rel=0.02)
    assert found.bits_per_change == pytest.approx(bits, rel=0.015)


def test_saturation_by_binade_is_predicted() -> None:
    """P(change) of single binades, each with twice the mu of the one before: .135 .27 .51 .73 .86 were measured."""
    for mu, measured in ((0.135, 0.135), (0.27, 0.27), (0.54, 0.51), (1.08, 0.73), (2.16, 0.86)):
        found = predict(Binades(-5, (1.0,)), BF16_GRID, mu * 2.0**-12, 1.0)
        assert found.density == pytest.approx(measured, rel=0.025)


def test_the_cold_first_step_is_predicted() -> None:
    found = predict(typical(SMALL), BF16_GRID, 3e-6, 0.26, cold=True)
    assert found.density == pytest.approx(0.0372, rel=0.04)
    assert found.bits_per_param == pytest.approx(0.0723, rel=0.03)


@pytest.mark.parametrize(("lr", "density", "ratio"), [(1e-6, 0.00104, 861), (3e-6, 0.0030, 336)])
def test_fp8_is_predicted(lr: float, density: float, ratio: float) -> None:
    found = predict(typical(SMALL), GRIDS["fp8_block/1"], lr, 0.26)
    assert found.density == pytest.approx(
        density * 1.33 / 1.244, rel=0.04
    )  # measured without the embedding, which moves more
    assert 8 / found.bits_per_param == pytest.approx(ratio * 1.244 / 1.33, rel=0.07)


# ---- synthetic masters: nothing assumed but Adam


def counted(before: np.ndarray, after: np.ndarray, context: np.ndarray) -> Change:
    """Share changed, and the entropy of the integer difference given the context, in bits per element."""
    difference = after.astype(np.int64) - before.astype(np.int64)
    bits = 0.0
    for value in np.unique(context):
        _, counts = np.unique(difference[context == value], return_counts=True)
        shares = counts / counts.sum()
        bits -= float((shares * np.log2(shares)).sum()) * counts.sum()
    return Change(float((difference != 0).mean()), bits / before.size)


def shape_of(bits: np.ndarray, folder: Path) -> Binades:
    write_folder(folder, {"w": bits}, {"w": "BF16"})
    return model_shape(folder).dense


@pytest.mark.parametrize(("lr", "steps"), [(1e-6, 30), (3e-6, 80), (3e-5, 30)])
def test_density_and_bits_of_adam_are_as_counted(lr: float, steps: int, tmp_path: Path) -> None:
    """From 1 % of the weights to a quarter of them, from the histogram of a folder and the mean step."""
    masters = Masters((512, 768), lr)
    for _ in range(steps):
        masters.step()
    binades, found, really = shape_of(masters.bits, tmp_path / "m"), [], []
    for _ in range(4):
        before = masters.bits
        found.append(predict(binades, BF16_GRID, lr, masters.step()))
        really.append(counted(before, masters.bits, before >> 7 & 0xFF))
    (density, bits), (counted_density, counted_bits) = np.mean(found, axis=0), np.mean(really, axis=0)
    assert density == pytest.approx(counted_density, rel=0.03)
    # a plug-in entropy of few samples is a little low, and u is not quite normal
    assert bits == pytest.approx(counted_bits, rel=0.05)


def test_a_cold_step_of_adam_is_as_counted(tmp_path: Path) -> None:
    masters = Masters((512, 768), 3e-6, cold=True, eps=0.06, spread=0.0)
    before = masters.bits
    assert masters.step() == pytest.approx(0.86, abs=0.005)
    found = predict(shape_of(before, tmp_path / "m"), BF16_GRID, 3e-6, 0.26, cold=True)
    really = counted(before, masters.bits, before >> 7 & 0xFF)
    assert found.density == pytest.approx(really.density, rel=0.03)
    assert found.bits_per_param == pytest.approx(really.bits_per_param, rel=0.04)


@pytest.mark.parametrize("use", [1.0, 0.5, 0.1])
def test_experts_that_are_rarely_used_move_as_little_as_predicted(use: float) -> None:
    masters, always = Masters((64, 256), 1e-6, use=use), Masters((64, 256), 1e-6)
    found = []
    for step in range(600):
        pair = masters.step(), always.step()
        if step >= 400:
            found.append(pair)
    mean = np.mean(found, axis=0)
    assert mean[0] / mean[1] == pytest.approx(rare_use(use), rel=0.08)


@pytest.mark.parametrize("name", sorted(QUANTISERS))
@pytest.mark.parametrize("cold", [False, True])
def test_quantised_changes_are_as_counted(name: str, cold: bool, tmp_path: Path) -> None:
    lr = 4e-6
    masters = Masters((768, 1024), lr, cold=cold, **({"eps": 0.06, "spread": 0.0} if cold else {}))
    for _ in range(0 if cold else 20):
        masters.step()
    before = masters.bits
    mean_u = masters.step()
    was, now = (QUANTISERS[name].quantise(bits, "BF16")[""].bits for bits in (before, masters.bits))
    changed = sum(((was ^ now) & half != 0).sum() for half in ((15, 240) if "fp4" in name else (255,))) / before.size
    found = predict(shape_of(before, tmp_path / "m"), GRIDS[name], lr, mean_u, cold=cold)
    within = {"fp8": 0.15, "nvf": 0.5 if cold else 0.25, "mxf": 0.3}[name[:3]]
    assert found.density == pytest.approx(changed, rel=within)


# ---- the plan of 1 TB, against the extrapolation that the design was made with


def tb(**changes: object) -> Plan:
    """500 G weights in bf16, at the learning rate and the scale of weights at which 1.33 % change."""
    config = PlanConfig(params=500e9, lr=1e-6, mean_u=0.26, median_w=SMALL, latency_s=0.0)
    return plan(structs.replace(config, **changes))


@pytest.mark.parametrize(
    ("changes", "density", "gigabytes", "within"),
    [
        ({}, 0.0133, 5.6, 0.02),
        ({"median_w": NATIVE, "lr": 3e-6}, 0.0058, 2.7, 0.03),
        ({"lr": 3e-6}, 0.033, 12.4, 0.02),
        ({"lr": 3e-6, "cold": True}, 0.0372, 4.9, 0.03),
        ({"params": 1e12, "format": "fp8_block/1"}, 0.00104, 1.2, 0.1),  # measured without the embedding
    ],
    ids=["1.33 %", "0.58 %", "3.3 %", "cold", "fp8"],
)
def test_bytes_per_step_of_a_terabyte(
    changes: dict[str, object], density: float, gigabytes: float, within: float
) -> None:
    found = tb(**changes)
    assert found.full_bytes == pytest.approx(1e12, rel=0.001)
    assert found.change.density == pytest.approx(density, rel=within)
    assert found.bytes_per_step / 1e9 == pytest.approx(gigabytes, rel=within)


def test_seconds_of_a_terabyte() -> None:
    found = tb()
    assert 360 * 0.98 < found.core_s["encode"] < 390 * 1.02
    assert 230 * 0.98 < found.core_s["decode"] < 300 * 1.02
    assert found.seconds("encode") == pytest.approx(1.5, rel=0.03)  # 256 cores
    assert 0.4 < found.seconds("decode") < 1  # 64 cores on each of 8 hosts
    assert found.seconds("upload") == pytest.approx(0.55, rel=0.03)
    assert next(s.limit for s in found.stages if s.name == "upload") == "128 streams of 80 MB/s"
    assert found.bytes_per_step / 128 == pytest.approx(44e6, rel=0.03)  # of each object
    assert found.scatter_bytes_per_rank == pytest.approx(0.62e9, rel=0.03)
    copied = tb(stop_s=0.0).seconds("pause")
    assert copied == pytest.approx(0.015 + 0.002, rel=0.03)
    assert found.seconds("pause") == pytest.approx(copied + 0.03)
    assert found.total_s < 10


# ---- what binds

BINDS = [
    ("encode", "1 trainer cores", {"trainer_cores": 1}, "twice the trainer cores"),
    ("upload", "the link's 0.01 GB/s", {"up_bytes_per_s": 1e7}, "twice the link up"),
    ("fetch", "the link's 0.02 GB/s", {"down_bytes_per_s": 2e7}, "twice the link down"),
    ("upload", "4 streams of 80 MB/s", {"streams": 4}, "twice the streams"),
    ("upload", "2 times 30 s of latency", {"latency_s": 30.0}, "half the latency"),
    ("decode", "2 cores on 2 engine hosts", {"engine_hosts": 2, "engine_cores": 1}, "twice the cores per engine host"),
    (
        "pause",
        "1 GB/s to each device",
        {"device_bytes_per_s": 1e9, "engine_ranks": 8},
        "twice the bandwidth to each device",
    ),
    ("pause", "generation to stop", {"stop_s": 60.0}, "stopping in half the time"),
]


@pytest.mark.parametrize(("stage", "limit", "changes", "lever"), BINDS)
def test_it_says_what_binds_and_what_helps(stage: str, limit: str, changes: dict[str, object], lever: str) -> None:
    found = tb(**changes)
    assert (found.binds.name, found.binds.limit) == (stage, limit)
    helps = {help.text: help.saves_s for help in levers(found)}
    best = next(text for text in helps if "fp8" not in text)
    assert best == lever
    assert helps[best] > 0.2 * found.total_s


def test_no_limit_costs_nothing_and_more_objects_than_streams_take_turns() -> None:
    free = tb(up_bytes_per_s=0.0, stream_bytes_per_s=1e15)
    assert free.seconds("upload") < 0.001
    turns = tb(streams=64, object_bytes=44_000_000, latency_s=0.1)
    assert turns.seconds("upload") == pytest.approx(3 * 0.1 + 2 * turns.bytes_per_step / 126 / 80e6, rel=0.01)


@settings(deadline=None, max_examples=25)
@given(
    lr=st.floats(1e-8, 1e-3),
    median_w=st.floats(1e-4, 1.0),
    name=st.sampled_from(sorted(GRIDS)),
    share=st.floats(0.0, 1.0),
    cold=st.booleans(),
)
def test_predictions_are_possible_ones(lr: float, median_w: float, name: str, share: float, cold: bool) -> None:
    config = PlanConfig(
        params=1e9, lr=lr, median_w=median_w, format=name, expert_share=share, expert_use=0.1, cold=cold
    )
    found = plan(config)
    assert 0 <= found.change.density <= 1.000001
    assert found.change.bits_per_param >= 0
    more = plan(structs.replace(config, lr=2 * lr))
    assert more.change.density >= found.change.density * 0.999
    assert found.bound_bytes <= found.bytes_per_step
    dense = plan(structs.replace(config, expert_share=0.0))
    assert found.change.density <= dense.change.density * 1.000001


def test_a_measured_codec_replaces_the_curve() -> None:
    found = tb(encode_gb_s=10.0, decode_gb_s=20.0)
    assert found.core_s == {"encode": pytest.approx(100), "decode": pytest.approx(50)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": 0.0}, "params is 0"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"streams": 0}, "streams is 0"),
        ({"format": "fp7"}, "want one of bf16, fp8_block/1"),
        ({"expert_use": 1.5}, "want a share, at most 1"),
        ({"expert_use": 0.0}, "expert_use is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Refused, match=message):
        tb(**changes)


def test_every_format_that_can_be_published_can_be_planned() -> None:
    assert GRIDS.keys() == {"bf16", *QUANTISERS}


# ---- binades


def test_scaling_binades_moves_the_median_and_keeps_the_whole() -> None:
    for octaves in (-3.0, -2.5, 0.0, 0.75, 4.0):
        moved = TRAINED.scaled(octaves)
        assert sum(moved.shares) == pytest.approx(1)
        assert moved.octave_at(0.5) == pytest.approx(TRAINED.octave_at(0.5) + octaves, abs=0.03)
    assert typical(0.02).octave_at(0.5) == pytest.approx(np.log2(0.02), abs=0.03)
    assert Binades(-3, (0.5, 0.5)).octave_at(1.0) == -1.0


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F16"])
def test_a_folder_is_counted_binade_by_binade(dtype: str, tmp_path: Path) -> None:
    weights = trained_weights((64, 200), 5)
    bits = {"BF16": to_bf16, "F32": lambda w: w.view(np.uint32), "F16": lambda w: w.astype(np.float16).view(np.uint16)}
    weights[0, :50] = 0
    state = {
        "a.weight": bits[dtype](weights),
        "b.experts.3.up_proj.weight": bits[dtype](weights[:32] * 8),
        "n": weights.view("u4"),
    }
    write_folder(tmp_path / "m", state, dict.fromkeys(state, dtype) | {"n": "I32"}, shard_bytes=60_000)
    found = model_shape(tmp_path / "m")
    assert (found.params, found.expert_share) == (64 * 200 + 32 * 200, pytest.approx(1 / 3))
    exponents = np.floor(np.log2(np.abs(weights[weights != 0])))
    for binade, share in enumerate(found.dense.shares, found.dense.lowest):
        assert share == pytest.approx((exponents == binade).mean(), abs=0.004)
    assert found.experts.octave_at(0.5) == pytest.approx(found.dense.octave_at(0.5) + 3, abs=0.05)


def test_a_sample_of_a_tensor_speaks_for_it(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", {"w": to_bf16(trained_weights((1000, 512), 6))}, {"w": "BF16"})
    whole, some = model_shape(tmp_path / "m", sample=0), model_shape(tmp_path / "m", sample=1 << 16)
    assert some.params == whole.params == 512_000
    assert some.dense.octave_at(0.5) == pytest.approx(whole.dense.octave_at(0.5), abs=0.05)
    assert some.dense.shares != whole.dense.shares


def test_a_model_gives_its_numbers_unless_others_are_given(tmp_path: Path) -> None:
    bits = to_bf16(trained_weights((64, 64), 5))
    write_folder(tmp_path / "m", {"a": bits, "x.experts.0.y": bits}, {"a": "BF16", "x.experts.0.y": "BF16"})
    shape = model_shape(tmp_path / "m")
    small = plan(PlanConfig(expert_use=0.01), shape)
    assert (small.config.params, small.config.expert_share) == (8192, 0.5)
    large = plan(PlanConfig(params=1e12, expert_share=0.9, expert_use=0.01), shape)
    assert (large.config.params, large.config.expert_share) == (1e12, 0.9)
    assert large.change.density < small.change.density


def test_a_folder_without_16_bit_weights_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", {"w": np.zeros((4, 4), np.uint8)}, {"w": "F8_E4M3"})
    with pytest.raises(Refused, match="name its 16-bit original"):
        model_shape(tmp_path / "m")


# ---- what router replay sends up

KIMI = PlanConfig(params=1.04e12, moe_layers=60, experts=384, top_k=8, step_tokens=2e7)


def test_recorded_experts_of_a_trillion() -> None:
    """60 layers of 8 of 384: 54 bits each, where 53.3 are the bound."""
    routes = plan(KIMI).routes
    assert routes is not None
    assert routes.bytes_per_token == 60 * 54 / 8
    assert routes.bound_bytes_per_token == pytest.approx(60 * 53.27 / 8, rel=1e-3)
    assert routes.bytes_per_step == pytest.approx(8.1e9)
    assert routes.seconds == pytest.approx(6.48)
    assert plan(structs.replace(KIMI, routes_up_bytes_per_s=0)).routes.seconds == 0
    assert plan(PlanConfig(params=1e9)).routes is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experts": 4}, "no more chosen than there are"),
        ({"top_k": 0}, "say all three"),
        ({"moe_layers": 0}, "want all three"),
        ({"step_tokens": -1.0}, "step_tokens is -1.0"),
    ],
)
def test_recorded_experts_that_make_no_sense_are_refused(change: dict, words: str) -> None:
    with pytest.raises(Refused, match=words):
        plan(structs.replace(KIMI, **change))


def test_a_model_says_its_mixture_itself() -> None:
    shape = model_shape(Path(__file__).parents[2] / "models" / "nano")
    assert (shape.moe_layers, shape.expert_count, shape.top_k) == (4, 8, 2)
    routes = plan(PlanConfig(), shape).routes
    assert routes is not None and routes.bytes_per_token == pytest.approx(4 * 53 / 11 / 8)
