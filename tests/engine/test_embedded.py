"""The embedded engine as its callers see it."""

import asyncio

import pytest
import torch

from tests.model.sizes import TINY
from twinmill.engine.base import ContextTooLong, EngineError
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.model.config import ModelConfig, Parity
from twinmill.model.hf import state_bits
from twinmill.records.engines import KvPolicy, Phase, ScoreRequest
from twinmill.records.episodes import Finish, VersionRun

from .rigs import ask, model, prompt, routes, run, serving, trainer_logprobs

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("backend")
DENSE = ModelConfig(
    family="llama", vocab=64, width=32, layers=2, heads=4, kv_heads=1, head_dim=8, intermediate=48, tied=False
)


@pytest.mark.parametrize("config", [TINY, DENSE], ids=["mixture", "dense"])
def test_greedy_is_the_argmax_of_the_plain_forward(config):
    decoder, ids = model(config=config), prompt(20)

    async def main():
        async with serving(decoder) as engine:
            return await engine.generate(ask(ids, temperature=0.0, max_tokens=12))

    out = run(main())
    want = list(ids)
    with torch.no_grad():
        for _ in range(12):
            hidden = decoder(torch.tensor(want), torch.arange(len(want)), [len(want)]).hidden
            want.append(int(decoder.logits(hidden)[-1].argmax()))
    assert out.sampled_ids == want[20:]
    assert (out.experts is None) == (config is DENSE)
    assert out.version_runs == (VersionRun(version=0, count=12),)
    assert out.finish is Finish.LENGTH


def test_a_stop_id_ends_a_turn_and_is_part_of_it():
    decoder, ids = model(), prompt(20)

    async def main():
        async with serving(decoder) as engine:
            free = await engine.generate(ask(ids, "a", max_tokens=30))
            stop = free.sampled_ids[4]
            return free, stop, await engine.generate(ask(ids, "b", max_tokens=30, stop_ids=(stop, 63)))

    free, stop, out = run(main())
    assert out.sampled_ids == free.sampled_ids[: free.sampled_ids.index(stop) + 1]
    assert out.finish is Finish.STOP
    assert out.sampling.stop_ids == (stop, 63)


def test_a_later_turn_reuses_its_session_and_returns_the_new_experts():
    decoder, first = model(), prompt(40)

    async def main():
        async with serving(decoder) as engine:
            one = await engine.generate(ask(first, max_tokens=5))
            context = first + one.sampled_ids + prompt(7, 1)
            two = await engine.generate(ask(context, max_tokens=6, experts_from=44, last=True))
            fresh = await engine.generate(ask(context, "other", max_tokens=6))
            return one, two, fresh, context

    one, two, fresh, context = run(main())
    assert (one.cached_tokens, two.cached_tokens, fresh.cached_tokens) == (0, 44, 0)
    assert two.sampled_ids == fresh.sampled_ids
    assert two.logprobs == fresh.logprobs
    joined = torch.cat([torch.from_numpy(routes(part).astype("int32")) for part in (one, two)])
    _, want = trainer_logprobs(decoder, context + two.sampled_ids, 1.0)
    assert torch.equal(joined, want[:-1])


def test_attempts_of_a_group_compute_their_prompt_once():
    decoder, ids = model(), prompt(60)

    async def main():
        async with serving(decoder) as engine:
            requests = [ask(ids, f"a{i}", group_id="g", seed=i) for i in range(8)]
            together = await asyncio.gather(*map(engine.generate, requests))
            later = await engine.generate(ask(ids, "late", group_id="g", seed=0))
            stranger = await engine.generate(ask(ids, "stranger", group_id="h", seed=0))
            return together, later, stranger

    together, later, stranger = run(main())
    assert sorted(out.cached_tokens for out in together) == [0] + [59] * 7
    assert later.cached_tokens == 59
    assert stranger.cached_tokens == 0, "KV is shared within a group only"
    assert together[0].sampled_ids == later.sampled_ids == stranger.sampled_ids
    assert together[0].experts == later.experts == stranger.experts
    assert len({tuple(out.sampled_ids) for out in together}) > 4, "seeds must differ"


def test_more_sessions_than_slots_evict_the_one_that_was_idle_longest():
    decoder = model()

    async def main():
        async with serving(decoder, slots=3, batch=2) as engine:
            for i in range(3):
                await engine.generate(ask(prompt(30, i), f"s{i}"))
            await engine.generate(ask(prompt(30, 0), "s0"))  # s1 is now the oldest
            await engine.generate(ask(prompt(30, 9), "s9"))
            again = [await engine.generate(ask(prompt(30, i), f"s{i}")) for i in (0, 2, 1)]
            many = await asyncio.gather(*(engine.generate(ask(prompt(20, i), f"m{i}")) for i in range(10)))
            return again, many

    again, many = run(main())
    assert [out.cached_tokens for out in again] == [29, 29, 0]
    assert all(len(out.sampled_ids) == 10 for out in many)


def test_an_aborted_request_leaves_and_the_others_do_not_notice():
    decoder = model()

    async def main():
        async with serving(decoder, step_s=0.003) as engine:
            alone = await engine.generate(ask(prompt(20), "x", max_tokens=40))
            doomed = [
                asyncio.create_task(engine.generate(ask(prompt(20, i), f"d{i}", max_tokens=100))) for i in range(5)
            ]
            kept = asyncio.create_task(engine.generate(ask(prompt(20), "y", max_tokens=40)))
            await asyncio.sleep(0.02)
            for task in doomed:
                task.cancel()
            out = await kept
            assert (await engine.state()).in_flight == 0
            return alone, out

    alone, out = run(main())
    assert (out.sampled_ids, out.logprobs) == (alone.sampled_ids, alone.logprobs)


def test_a_session_that_asks_again_supersedes_its_older_request():
    async def main():
        async with serving(model(), step_s=0.003) as engine:
            older = asyncio.create_task(engine.generate(ask(prompt(20), max_tokens=100)))
            await asyncio.sleep(0.01)
            newer = await engine.generate(ask(prompt(20), max_tokens=5))
            with pytest.raises(EngineError, match="newer request"):
                await older
            return newer

    assert len(run(main()).sampled_ids) == 5


@pytest.mark.parametrize(
    ("request_", "error", "match"),
    [
        (ask(prompt(120), max_tokens=9), ContextTooLong, "129 tokens"),
        (ask([]), EngineError, "empty"),
        (ask([64]), EngineError, "token ids"),
        (ask([-1]), EngineError, "token ids"),
        (ask([1], max_tokens=0), EngineError, "impossible"),
        (ask([1], temperature=-1.0), EngineError, "impossible"),
        (ask([1], top_p=0.0), EngineError, "impossible"),
        (ask([1], experts_from=2), EngineError, "experts_from"),
    ],
)
def test_impossible_requests_are_refused_and_harm_nobody(request_, error, match):
    async def main():
        async with serving(model()) as engine:
            with pytest.raises(error, match=match):
                await engine.generate(request_)
            return await engine.generate(ask(prompt(100), max_tokens=28))

    assert len(run(main()).sampled_ids) == 28


def test_scores_are_those_of_the_trainer():
    decoder = model()
    texts = [prompt(n, n) for n in (1, 2, 30, 100, 7)]

    async def main():
        async with serving(decoder) as engine:
            busy = asyncio.create_task(engine.generate(ask(prompt(20), max_tokens=50)))
            scores = await asyncio.gather(*(engine.score(ScoreRequest(token_ids=ids)) for ids in texts))
            await busy
            return scores

    for ids, scores in zip(texts, run(main())):
        want, _ = trainer_logprobs(decoder, ids, 1.0)
        assert scores.logprobs == want.tolist()
        assert scores.version == 0


def test_state_tells_what_is_served_and_what_was_done(backend):
    decoder = model()

    async def main():
        engine = EmbeddedEngine(TINY, EngineConfig(context_tokens=128, backend=backend), engine_id="e", cluster="c")
        try:
            before = await engine.state()
            with pytest.raises(EngineError, match="no version"):
                await engine.generate(ask([1]))
            with pytest.raises(EngineError, match="no version"):
                await engine.score(ScoreRequest(token_ids=[1, 2]))
            with pytest.raises(EngineError, match="nothing is staged"):
                await engine.flip(KvPolicy.KEEP)
            await engine.stage(4, state_bits(decoder))
            await engine.flip(KvPolicy.KEEP)
            await engine.generate(ask(prompt(9)))
            return before, await engine.state()
        finally:
            engine.close()

    before, after = run(main())
    assert (before.serving, before.phase) == (-1, Phase.LOADING)
    assert (after.serving, after.target, after.phase, after.in_flight) == (4, 4, Phase.READY, 0)
    assert after.sampled_tokens == 10
    assert after.busy_s > 0
    assert after.swap_s >= after.pause_s >= 0


def test_a_closed_engine_is_lost_for_everyone():
    async def main():
        async with serving(model(), step_s=0.003) as engine:
            open_ = asyncio.create_task(engine.generate(ask(prompt(9), max_tokens=100)))
            await asyncio.sleep(0.01)
            engine.close()
            with pytest.raises(EngineError, match="closed"):
                await open_
            with pytest.raises(EngineError, match="closed"):
                await engine.generate(ask(prompt(9)))

    run(main())


def test_a_bug_in_the_scheduler_reaches_every_caller(monkeypatch):
    async def main():
        async with serving(model()) as engine:
            monkeypatch.setattr("twinmill.engine.embedded.runs.Run.accept", lambda *_: 1 / 0)
            with pytest.raises(EngineError, match="ZeroDivisionError"):
                await engine.generate(ask(prompt(9)))
            assert (await engine.state()).phase is Phase.LOST
            with pytest.raises(EngineError, match="ZeroDivisionError"):
                await engine.generate(ask(prompt(9)))

    run(main())


def test_a_context_longer_than_the_model_is_refused_at_the_start():
    with pytest.raises(ValueError, match="context_tokens"):
        EmbeddedEngine(TINY, EngineConfig(context_tokens=4096), engine_id="e", cluster="c")
    for bad in (
        {"backend": "gpu"},
        {"parity": Parity.CORE},
        {"context_tokens": 100},
        {"batch": 64, "slots": 8},
        {"prefill_tokens": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            EngineConfig(**bad)
