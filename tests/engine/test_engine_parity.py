"""lr = 0, window 0: in strict parity the importance ratio is exactly 1, whatever the engine did besides."""

import asyncio
import random

import pytest
import torch

from tests.model.sizes import NANO
from twinmill.model.config import Parity

from .rigs import ask, model, prompt, routes, run, serving, trainer_logprobs

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("backend")


async def episodes(engine, count: int, seed: int):
    """Groups of multi-turn sessions that come, wait and go in random order.

    Each gives (ids, positions of sampled ids, logprobs, experts).
    """
    rng = random.Random(seed)
    plans = [(i, rng.uniform(0, 0.05), rng.randrange(1, 4)) for i in range(count)]

    async def play(i: int, delay: float, turns: int):
        await asyncio.sleep(delay)
        ids, extra = prompt(40 + 13 * (i // 3), i // 3, NANO.vocab), []
        drawn, logprobs, recorded = [], [], []
        for turn in range(turns):
            start = 0 if not recorded else len(ids) - 1 - len(extra)
            out = await engine.generate(
                ask(ids, f"s{i}", group_id=f"g{i // 3}", seed=i * 10 + turn, temperature=0.8, max_tokens=12,
                    experts_from=start, last=turn == turns - 1)
            )  # fmt: skip
            drawn += range(len(ids), len(ids) + 12)
            logprobs += out.logprobs
            recorded.append(torch.from_numpy(routes(out).astype("int32")))
            extra = prompt(rng.randrange(1, 30), i + turn, NANO.vocab)
            ids = ids + out.sampled_ids + extra
        return ids[: -len(extra)], drawn, logprobs, torch.cat(recorded)

    return await asyncio.gather(*(play(*plan) for plan in plans))


@pytest.mark.parametrize("parity", [Parity.STRICT, Parity.OFF])
def test_the_importance_ratio_is_one(parity):
    trainer = model(config=NANO)
    if parity is Parity.OFF:
        trainer.parity = parity

    async def main():
        async with serving(trainer, parity=parity, context_tokens=256, slots=9, batch=5, prefill_tokens=50) as engine:
            return await episodes(engine, 9, seed=1)

    played = run(main())
    packed_ids, packed_experts, lens = [], [], []
    for ids, drawn, logprobs, recorded in played:
        assert len(recorded) == len(ids) - 1
        scored, _ = trainer_logprobs(trainer, ids, 0.8, recorded.numpy())
        got = scored[torch.tensor(drawn) - 1]
        want = torch.tensor(logprobs)
        if parity is Parity.STRICT:
            assert torch.equal((got - want).exp(), torch.ones(len(drawn))), "unpacked, strict: exactly 1"
            free, routes_free = trainer_logprobs(trainer, ids, 0.8)
            assert torch.equal(routes_free[:-1], recorded), "no route flips"
            assert torch.equal(free, scored)
        assert (got - want).abs().max() < 2e-5
        packed_ids += ids
        packed_experts += [recorded, torch.full((1, *recorded.shape[1:]), -1, dtype=torch.int32)]
        lens.append(len(ids))
    # packed rows
    tokens, experts = torch.tensor(packed_ids), torch.cat(packed_experts)
    with torch.no_grad():
        output = trainer(tokens, torch.cat([torch.arange(n) for n in lens]), lens, experts)
        scored = trainer.logprobs(output.hidden, tokens.roll(-1), 0.8)
    start = 0
    for ids, drawn, logprobs, _ in played:
        got = scored[torch.tensor(drawn) - 1 + start]
        assert (got - torch.tensor(logprobs)).abs().max() < 2e-5
        start += len(ids)


def test_the_trainer_with_gradients_computes_the_same_bits():
    trainer, ids = model(config=NANO), torch.tensor(prompt(70, vocab=NANO.vocab))
    batch = (ids, torch.arange(70), [70])
    with torch.no_grad():
        free = trainer(*batch)
        without = trainer.logprobs(free.hidden, ids)
    output = trainer(*batch, free.routes)
    assert torch.equal(trainer.logprobs(output.hidden, ids).detach(), without)


def test_a_sample_can_be_drawn_again_from_its_record():
    """Alone or in a crowd, the same (weights, prefix, seed) give the same tokens and numbers."""
    trainer = model(config=NANO)

    async def main(crowd: int):
        async with serving(trainer, context_tokens=256, slots=12, batch=12, prefill_tokens=30) as engine:
            others = [
                asyncio.create_task(engine.generate(ask(prompt(9 + i, i), f"o{i}", max_tokens=3 * i + 1, seed=i)))
                for i in range(crowd)
            ]
            out = await engine.generate(ask(prompt(50, 5, NANO.vocab), "me", max_tokens=30, seed=77))
            await asyncio.gather(*others)
            return out

    alone, crowded = run(main(0)), run(main(11))
    assert alone.sampled_ids == crowded.sampled_ids
    assert alone.logprobs == crowded.logprobs
    assert alone.experts == crowded.experts
