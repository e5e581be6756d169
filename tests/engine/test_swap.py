"""New weights while requests are at work: versions per token, KV policies, and what is never served."""

import asyncio

import numpy as np
import pytest
import torch
from msgspec import structs

from tests.model.sizes import TINY
from twinmill.engine.base import EngineError
from twinmill.engine.embedded import EngineConfig
from twinmill.engine.embedded.compute import open_compute
from twinmill.engine.embedded.weights import INEXACT
from twinmill.model.hf import dtypes, state_bits
from twinmill.publish.tiles import Grid, digests, table_of
from twinmill.records.engines import KvPolicy
from twinmill.records.weights import GridSpec

from . import rigs
from .rigs import ask, damage, model, prompt, routes, run, serving, trainer_logprobs

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("backend")


async def generate_across_a_flip(kv: KvPolicy, decoders, count: int = 4):
    """`count` long requests, flipped from version 0 to 1 while they decode."""
    async with serving(decoders[0], step_s=0.003, prefill_tokens=40) as engine:
        requests = [ask(prompt(20 + i, i), f"s{i}", max_tokens=90, seed=i) for i in range(count)]
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await engine.stage(1, state_bits(decoders[1]))
        while (await engine.state()).sampled_tokens < 20 * count:
            await asyncio.sleep(0.001)
        flip = await engine.flip(kv)
        outs = await asyncio.gather(*tasks)
        after = await engine.generate(ask(prompt(20, 0), "s0", max_tokens=5, seed=0))
        return requests, outs, flip, after


def test_recompute_goes_on_under_the_new_weights_alone():
    decoders = [model(0), model(1)]
    requests, outs, flip, after = run(generate_across_a_flip(KvPolicy.RECOMPUTE, decoders))
    assert (flip.version, flip.stale_kv_tokens) == (1, 0)
    assert after.stale_kv_tokens == 0
    for request, out in zip(requests, outs):
        old, new = out.version_runs
        assert (old.version, new.version, old.count + new.count) == (0, 1, 90)
        assert old.count > 0
        assert new.count > 0
        assert out.stale_kv_tokens == 0
        context, cut = len(request.token_ids), old.count
        ids = request.token_ids + out.sampled_ids
        before, routes_before = trainer_logprobs(decoders[0], ids[: context + cut], 1.0)
        assert out.logprobs[:cut] == before[context - 1 :].tolist()
        behind, routes_behind = trainer_logprobs(decoders[1], ids, 1.0)
        assert out.logprobs[cut:] == behind[context - 1 + cut :].tolist()
        # a position from which a token was drawn keeps the experts of that time
        got = torch.from_numpy(routes(out).astype(np.int32))
        assert torch.equal(got[context - 1 : context - 1 + cut], routes_before[context - 1 : -1])
        assert torch.equal(got[context - 1 + cut :], routes_behind[context - 1 + cut : -1])


def test_keep_goes_on_with_old_kv_and_says_so():
    decoders = [model(0), model(1)]
    requests, outs, flip, after = run(generate_across_a_flip(KvPolicy.KEEP, decoders))
    assert flip.pause_s < 0.1
    assert flip.stale_kv_tokens >= 4 * 20
    for request, out in zip(requests, outs):
        old, new = out.version_runs
        assert (old.version, new.version) == (0, 1)
        assert out.stale_kv_tokens == len(request.token_ids) + old.count - 1
        clean, _ = trainer_logprobs(decoders[1], request.token_ids + out.sampled_ids, 1.0)
        assert out.logprobs[old.count :] != clean[len(request.token_ids) - 1 + old.count :].tolist()
    assert after.cached_tokens == 19, "idle sessions keep their KV"
    assert after.stale_kv_tokens == 19


def test_requests_in_the_prompt_phase_survive_both_policies():
    decoders = [model(0), model(1)]

    async def main(kv):
        async with serving(decoders[0], step_s=0.003, prefill_tokens=3) as engine:
            await engine.stage(1, state_bits(decoders[1]))
            task = asyncio.create_task(engine.generate(ask(prompt(100), max_tokens=5)))
            await asyncio.sleep(0.01)
            await engine.flip(kv)
            return await task

    ids = prompt(100)
    for kv in KvPolicy:
        out = run(main(kv))
        assert sum(r.count for r in out.version_runs) == 5
        if out.version_runs[0].version == 1 and out.stale_kv_tokens == 0:
            want, _ = trainer_logprobs(decoders[1], ids + out.sampled_ids, 1.0)
            assert out.logprobs == want[99:].tolist()


def test_versions_never_go_back_and_a_version_that_does_not_fit_changes_nothing():
    decoder = model()
    bits = state_bits(decoder)

    async def main():
        async with serving(decoder) as engine:
            before = await engine.generate(ask(prompt(20), "a"))
            await engine.stage(3, state_bits(model(1)))
            await engine.flip(KvPolicy.KEEP)
            with pytest.raises(EngineError, match="never go back"):
                await engine.stage(2, bits)
            with pytest.raises(EngineError, match="does not fit"):
                await engine.stage(4, {**bits, "model.norm.weight": bits["model.norm.weight"][:3]})
            with pytest.raises(EngineError, match="stored bits"):
                await engine.stage(4, {**bits, "model.norm.weight": np.ones(32, np.float32)})
            with pytest.raises(EngineError, match="nothing is staged"):
                await engine.flip(KvPolicy.KEEP)
            await engine.stage(4, bits)
            await engine.flip(KvPolicy.RECOMPUTE)
            return before, await engine.generate(ask(prompt(20), "b"))

    before, after = run(main())
    assert after.sampled_ids == before.sampled_ids
    assert after.version_runs[0].version == 4


def test_digests_are_of_the_memory_itself():
    decoder = model()
    bits = state_bits(decoder)
    weights = open_compute(TINY, EngineConfig(backend=rigs.BACKEND)).weights
    weights.stage(0, bits)
    grid = Grid(table_of(bits, dtypes(decoder)), GridSpec(smallest=1))
    wanted = digests(grid, bits)

    def differing() -> dict[str, bytes]:
        """First tensor of each tile that differs -> what was found."""
        found = zip(grid.tiles, wanted, weights.staged_digests(grid), strict=True)
        return {tile.pieces[0].name: here for tile, there, here in found if here != there}

    assert not differing()
    norm, matrix = "model.norm.weight", "model.layers.1.mlp.experts.2.down_proj.weight"
    damage(weights, norm, 0)  # below what bf16 can hold: rounding would hide it
    assert differing() == {norm: INEXACT}
    damage(weights, norm, 0)
    damage(weights, matrix, 20)
    [(name, found)] = differing().items()
    assert (name, len(found)) == (matrix, len(wanted[0]))


def test_a_grid_of_other_dtypes_or_shapes_matches_nothing():
    decoder = model()
    bits, norm = state_bits(decoder), "model.norm.weight"
    weights = open_compute(TINY, EngineConfig(backend=rigs.BACKEND)).weights
    weights.stage(0, bits)
    for other in ({"dtype": "F32"}, {"dtype": "F16"}, {"shape": (*bits[norm].shape, 1)}):
        table = table_of(bits, dtypes(decoder))
        tensors = tuple(structs.replace(t, **other) if t.name == norm else t for t in table.tensors)
        grid = Grid(structs.replace(table, tensors=tensors), GridSpec(smallest=1))
        found = zip(grid.tiles, weights.staged_digests(grid), strict=True)
        assert [tile.pieces[0].name for tile, digest in found if digest == INEXACT] == [norm]


def test_broken_weights_are_an_error_and_poison_nobody():
    decoder, broken = model(), state_bits(model())
    broken["model.layers.0.self_attn.v_proj.weight"] = np.full((32, 32), 0x7FC0, np.uint16)  # NaN
    assert broken["model.layers.0.self_attn.v_proj.weight"].shape == tuple(
        state_bits(decoder)["model.layers.0.self_attn.v_proj.weight"].shape
    )

    async def main():
        async with serving(decoder, slots=2, batch=2) as engine:
            before = await engine.generate(ask(prompt(20), "a"))
            await engine.stage(1, broken)
            await engine.flip(KvPolicy.KEEP)
            for session in "bcd":
                with pytest.raises(EngineError, match="version 1"):
                    await engine.generate(ask(prompt(30), session))
            await engine.stage(2, state_bits(decoder))
            await engine.flip(KvPolicy.KEEP)
            return before, [await engine.generate(ask(prompt(20), session)) for session in "efg"]

    before, after = run(main())
    assert all(out.logprobs == before.logprobs for out in after)
