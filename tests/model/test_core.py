"""The native core against the torch decoder, and against itself bit by bit."""

import random
import threading
import time

import numpy as np
import pytest
import torch

from twinmill.model.core import available, levels
from twinmill.model.core.weights import Inexact, Misfit
from twinmill.model.hf import state_bits

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")
if available():
    from .core_rig import SHAPES, Bench, as_fp32, decoder_of, draw, packed, tokens, whole

torch.set_num_threads(1)
NEAR = 2e-6
"""two router scores this close may change places by rounding"""


@pytest.fixture(scope="module", params=list(SHAPES) if available() else [])
def shape(request):
    decoder = decoder_of(SHAPES[request.param])
    return decoder, packed(decoder)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.int32)


@torch.no_grad()
@pytest.mark.parametrize("level", levels())
def test_it_computes_what_the_torch_decoder_computes(shape, level):
    decoder, weights = shape
    ids = tokens(decoder.config, 150)
    got = whole(weights, ids, level=level)
    torch_ids = torch.from_numpy(ids).long()
    want = decoder(torch_ids, torch.arange(150), [150])
    scored = decoder.logprobs(want.hidden, torch_ids.roll(-1), 0.8).numpy()
    assert near_ties_apart(decoder, torch_ids, got.routes) == 0
    np.testing.assert_allclose(got.hidden, want.hidden.numpy(), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(got.logprobs[:-1], scored[:-1], rtol=1e-5, atol=1e-5)


def near_ties_apart(decoder, ids, routes) -> int:
    """Rows whose experts differ although no two scores at the edge of the choice are within NEAR of one another."""
    if not routes.shape[1]:
        return 0
    scores, hooks = [], []
    for block in decoder.blocks:
        if block.mixture is not None:
            hooks.append(block.mixture.register_forward_pre_hook(
                lambda m, args: scores.append((args[0] @ m.router.T).softmax(-1))
            ))  # fmt: skip
    own = decoder(ids, torch.arange(len(ids)), [len(ids)]).routes
    for hook in hooks:
        hook.remove()
    differ = (own.sort(-1).values != torch.from_numpy(routes.astype(np.int32)).sort(-1).values).any(-1)
    edge = torch.stack([s.sort(-1, descending=True).values for s in scores], 1)
    top_k = own.shape[-1]
    gap = edge[..., top_k - 1] - edge[..., top_k] if edge.shape[-1] > top_k else torch.ones_like(differ)
    return int((differ & (gap > NEAR)).sum())


def test_any_cut_into_chunks_and_any_company_gives_the_same_bits(shape):
    """Token by token, in chunks, alone, beside others, with one thread or three."""
    decoder, weights = shape
    texts = [tokens(decoder.config, n, n) for n in (1, 5, 64, 65, 90, 150, 33)]
    want = [whole(weights, ids) for ids in texts]
    rng = random.Random(7)
    for threads in (1, 2, 3):
        bench = Bench(decoder.config, texts, threads)
        found = [[] for _ in texts]
        while any(text.done < len(text.ids) for text in bench.texts):
            pieces = []
            for index, text in enumerate(bench.texts):
                left = len(text.ids) - text.done
                if left and rng.random() < 0.7:
                    pieces.append((index, min(left, rng.choice([1, 1, 2, 3, 7, 17, 50]))))
            rng.shuffle(pieces)
            result, row = bench.score(weights, pieces, want_hidden=True), 0
            for index, count in pieces:
                span = slice(row, row + count)
                found[index].append((result.logprobs[span], result.routes[span], result.hidden[span]))
                row += count
        for parts, alone in zip(found, want):
            logprobs, routes, hidden = (np.concatenate(column) for column in zip(*parts))
            assert np.array_equal(bits(logprobs), bits(alone.logprobs))
            assert np.array_equal(routes, alone.routes)
            assert np.array_equal(bits(hidden), bits(alone.hidden))


def test_more_rows_than_one_chunk_of_the_core(shape):
    decoder, weights = shape
    texts = [tokens(decoder.config, n, n) for n in (600, 300, 500)]
    together = Bench(decoder.config, texts, 2).score(weights, [(0, 600), (1, 300), (2, 500)])
    alone = np.concatenate([whole(weights, ids).logprobs for ids in texts])
    assert np.array_equal(bits(together.logprobs), bits(alone))


def test_how_weights_are_stored_changes_no_bit(shape):
    decoder, weights = shape
    ids = tokens(decoder.config, 70)
    assert np.array_equal(bits(whole(weights, ids).hidden), bits(whole(as_fp32(decoder), ids).hidden))


@pytest.mark.skipif(not {"avx2", "avx512"} <= set(levels()), reason="needs a processor with both levels")
def test_avx512_agrees_with_avx2_to_the_bit(shape):
    decoder, weights = shape
    ids = tokens(decoder.config, 200)
    one, other = (whole(weights, ids, level=level) for level in ("avx2", "avx512"))
    assert np.array_equal(bits(one.hidden), bits(other.hidden))
    assert np.array_equal(bits(one.logprobs), bits(other.logprobs))


def test_stored_bits_come_back(shape):
    decoder, weights = shape
    for name, array in state_bits(decoder).items():
        assert np.array_equal(weights.bits(name), array), name


def test_what_does_not_fit_is_named(shape):
    decoder, weights = shape
    stored = state_bits(decoder)
    name = "model.layers.1.self_attn.k_proj.weight"
    for wrong, match in (
        ({**stored, name: stored[name][:1]}, f"{name}: shape"),
        ({**stored, name: stored[name].astype(np.float32)}, "stored bits"),
        ({**stored, "extra": stored[name]}, "not part of this model"),
        ({k: v for k, v in stored.items() if k != name}, "missing"),
    ):
        with pytest.raises(Misfit, match=match):
            weights.load(wrong)
    vector = weights.part("norm")
    vector.view(np.uint32)[0] ^= 1
    with pytest.raises(Inexact):
        weights.bits("model.norm.weight")
    vector.view(np.uint32)[0] ^= 1


def test_own_routes_replayed_change_no_bit_and_others_are_used(shape):
    decoder, weights = shape
    if not decoder.config.experts:
        pytest.skip("dense")
    ids = tokens(decoder.config, 60)
    free = whole(weights, ids)
    again = whole(weights, ids, experts=free.routes, replay_floor=1.0)
    assert np.array_equal(bits(free.hidden), bits(again.hidden))
    assert (again.replayed, again.refused) == (free.routes.shape[0] * free.routes.shape[1], 0)
    turned = np.ascontiguousarray((free.routes + 1) % decoder.config.experts)
    forced = whole(weights, ids, experts=turned)
    assert np.array_equal(np.sort(forced.routes, -1), np.sort(turned, -1))
    assert not np.array_equal(bits(forced.hidden), bits(free.hidden))


@torch.no_grad()
@pytest.mark.parametrize("floor", [0.0, 0.5, 0.95])
def test_replay_follows_the_rules_of_the_torch_decoder(floor):
    decoder = decoder_of(SHAPES["some dense"])
    weights, rng = packed(decoder), np.random.default_rng(3)
    ids = tokens(decoder.config, 200)
    recorded = np.argsort(rng.random((200, 1, 20)), -1)[..., :4].astype(np.int16)
    recorded[rng.random(recorded.shape) < 0.3] = -1
    got = whole(weights, ids, experts=recorded, replay_floor=floor)
    forced = torch.from_numpy(recorded.astype(np.int32))
    want = decoder(torch.from_numpy(ids).long(), torch.arange(200), [200], forced, floor)
    assert np.array_equal(got.routes, want.routes.numpy())
    assert (got.replayed, got.refused) == (want.replayed, want.refused)


def test_a_sample_depends_on_prefix_seed_and_position_alone(shape):
    decoder, weights = shape
    bench = Bench(decoder.config, [np.zeros(1, np.int32)])
    ids = tokens(decoder.config, 30)
    many = draw(weights, bench.core, ids, 1.0, 1.0, range(64))
    assert len(set(many.token_ids.tolist())) > 5
    for seed in (0, 9, 63):
        one = draw(weights, bench.core, ids, 1.0, 1.0, [seed])
        assert one.token_ids[0] == many.token_ids[seed]
        assert bits(one.logprobs)[0] == bits(many.logprobs)[seed]
    rescored = Bench(decoder.config, [np.append(ids, many.token_ids[:1])]).score(weights, [(0, 30)])
    sampled = draw(weights, bench.core, ids, 0.8, 1.0, [0])
    if sampled.token_ids[0] == many.token_ids[0]:
        assert bits(sampled.logprobs)[0] == bits(rescored.logprobs)[-1], "a sampled token is scored as sampled"


@torch.no_grad()
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.7), (0.7, 0.3), (0.0, 1.0)])
def test_samples_are_those_of_the_torch_sampler(shape, temperature, top_p):
    """The same uniform number through the same distribution: rounding may move a draw across an edge, rarely."""
    from twinmill.engine.embedded.sampler import sample
    from twinmill.records.engines import Sampling

    decoder, weights = shape
    ids = tokens(decoder.config, 20)
    core = Bench(decoder.config, [ids]).core
    got = draw(weights, core, ids, temperature, top_p, range(400))
    logits = decoder.logits(torch.from_numpy(got.hidden[-1:]))
    settings = [Sampling(temperature=temperature, top_p=top_p, seed=seed) for seed in range(400)]
    want, logprobs = sample(logits.expand(400, -1).clone(), settings, [20] * 400)
    same = got.token_ids == want.numpy()
    assert same.mean() > 0.99
    np.testing.assert_allclose(got.logprobs[same], logprobs.numpy()[same], rtol=1e-4, atol=1e-5)


def test_broken_weights_show_as_nan_and_nothing_crashes(shape):
    decoder, _ = shape
    stored = state_bits(decoder)
    stored["model.layers.0.self_attn.o_proj.weight"] = np.full_like(
        stored["model.layers.0.self_attn.o_proj.weight"], 0x7FC0
    )
    weights = packed(decoder)
    weights.load(stored)
    ids = tokens(decoder.config, 20)
    assert np.isnan(whole(weights, ids).logprobs).all()
    for temperature, top_p in ((1.0, 1.0), (1.0, 0.5), (0.0, 1.0)):
        result = draw(weights, Bench(decoder.config, [ids]).core, ids, temperature, top_p, [1])
        assert np.isnan(result.logprobs).all()
        assert 0 <= result.token_ids[0] < decoder.config.vocab


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"token_ids": np.array([999999], np.int32)}, "token id"),
        ({"token_ids": np.array([-1], np.int32)}, "token id"),
        ({"sequence": np.array([3], np.int32)}, "sequence 3"),
        ({"position": np.array([64], np.int32)}, "position 64"),
        ({"position": np.array([-1], np.int32)}, "position -1"),
        ({"table": np.array([[5]], np.int32)}, "block 5"),
        ({"table": np.array([[-1]], np.int32)}, "block -1"),
        ({"token_ids": np.array([1], np.int64)}, "8 bytes"),
        ({"token_ids": np.array([1, 2], np.int32)}, "holds 2 items"),
    ],
)
def test_a_wrong_table_raises_and_does_not_crash(change, match):
    from twinmill.model.core.forward import Core, Rows, new_kv

    decoder = decoder_of(SHAPES["tiny"])
    weights, core, kv = packed(decoder), Core(decoder.config), new_kv(decoder.config, 1)
    zero = np.zeros(1, np.int32)
    rows = Rows(zero, zero, zero, np.zeros((1, 1), np.int32))
    core.forward(weights, rows, kv)
    with pytest.raises(ValueError, match=match):
        core.forward(weights, rows._replace(**change), kv)


def test_idle_threads_cost_nothing_and_the_lock_of_python_is_free():
    decoder = decoder_of(SHAPES["nano"])
    weights = packed(decoder)
    ids = tokens(decoder.config, 400)
    bench, ticks, stop = Bench(decoder.config, [ids] * 3, threads=3), [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    bench.score(weights, [(0, 400), (1, 400), (2, 400)])
    during = ticks[0]
    stop.set()
    thread.join(10)
    assert during > 3, "another Python thread ran while the core computed"
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05
