"""The embedded engine with latent attention: who computes it, and that it is the trainer's own bits, routes included."""

import asyncio

import numpy as np
import pytest
import torch

from tests.model.sizes import KIMI, sharp
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.engine.sync import SyncConfig, install
from twinmill.model.core import CoreUnavailable, available
from twinmill.model.hf import dtypes, load_bits, state_bits
from twinmill.model.parity import Parity
from twinmill.publish.publisher import Publisher
from twinmill.publish.subscriber import Subscriber
from twinmill.records.engines import KvPolicy
from twinmill.store.blobs import open_blobs

from .rigs import ask, prompt, routes, run, serving, trainer_logprobs

torch.set_num_threads(1)
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


def test_the_importance_ratio_is_one_and_no_route_flips():
    trainer = sharp(KIMI, parity=Parity.STRICT)

    async def main():
        async with serving(trainer, backend="", parity=Parity.STRICT, prefill_tokens=40, batch=5) as engine:
            assert type(engine._scheduler._compute).__name__ == "TorchCompute"
            contexts = [prompt(20 + 11 * (i // 2), i // 2, KIMI.vocab) for i in range(8)]
            asked = (
                engine.generate(ask(ids, f"s{i}", group_id=f"g{i // 2}", seed=i, temperature=0.8, max_tokens=12))
                for i, ids in enumerate(contexts)
            )
            return contexts, await asyncio.gather(*asked)

    contexts, played = run(main())
    for ids, out in zip(contexts, played):
        recorded = routes(out)
        assert recorded.shape[1:] == (2, 3)
        whole = ids + out.sampled_ids
        scored, chosen = trainer_logprobs(trainer, whole, 0.8, recorded)
        assert torch.equal(scored[len(ids) - 1 : len(whole) - 1], torch.tensor(out.logprobs))
        free, chosen = trainer_logprobs(trainer, whole, 0.8)
        assert torch.equal(free, scored)
        np.testing.assert_array_equal(chosen[: len(recorded)].numpy(), recorded)


@pytest.mark.skipif(not available(), reason="the native core is not built")
def test_the_core_demanded_is_refused_by_name():
    with pytest.raises(CoreUnavailable, match="no multi-head latent attention") as caught:
        EmbeddedEngine(KIMI, EngineConfig(context_tokens=64, backend="core"), engine_id="e", cluster="c")
    assert "\n" not in str(caught.value)


def test_versions_carry_the_choice_bias_and_it_decides_who_is_chosen():
    decoder = sharp(KIMI, parity=Parity.STRICT)
    blobs = open_blobs("memory://")
    publisher, subscriber = Publisher(blobs, "run"), Subscriber(blobs, "run")
    bits, kinds = state_bits(decoder), dtypes(decoder)
    assert kinds[BIAS] == "F32"
    pushed = {**bits, BIAS: bits[BIAS].copy()}
    pushed[BIAS].view(np.float32)[[1, 5, 9]] += 5
    ids = prompt(30, vocab=KIMI.vocab)

    async def main():
        engine = EmbeddedEngine(KIMI, EngineConfig(context_tokens=64), engine_id="e", cluster="c")
        try:
            used = []
            for step, tensors in enumerate((bits, pushed)):
                publisher.publish(tensors, kinds, step=step, slots=(step,))
                installed = await install(engine, subscriber, subscriber.prepare(), SyncConfig(kv=KvPolicy.RECOMPUTE))
                assert installed.version == step
                used.append(routes(await engine.generate(ask(ids, f"s{step}", max_tokens=1))))
            return used, installed.changed
        finally:
            engine.close()

    (before, after), changed = run(main())
    assert changed == 1
    assert not np.array_equal(before, after)
    # two of three groups are kept, so at least two of the three pushed experts are chosen everywhere
    assert (np.isin(after[:, 0], (1, 5, 9)).sum(-1) >= 2).all()
    load_bits(decoder, pushed, kinds)
    np.testing.assert_array_equal(trainer_logprobs(decoder, ids, 1.0)[1][: len(after)].numpy(), after[: len(ids)])
