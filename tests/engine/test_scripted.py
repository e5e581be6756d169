"""The scripted engine keeps the Engine's promises, faults included."""

import asyncio

import pytest

from twinmill.engine.base import EngineError
from twinmill.engine.scripted import LOGPROB, Said, ScriptedEngine
from twinmill.records.engines import KvPolicy, ScoreRequest
from twinmill.records.episodes import Finish, VersionRun

from .rigs import ask, routes, run


def test_it_says_what_it_is_told_within_the_budget_of_the_turn():
    async def main():
        engine = ScriptedEngine(lambda request: [request.token_ids[0], 8, 2, 9], experts=(2, 2, 4))
        long = await engine.generate(ask([5, 6], max_tokens=3))
        stopped = await engine.generate(ask([5, 6], stop_ids=(8,), experts_from=1))
        return engine, long, stopped

    engine, long, stopped = run(main())
    assert (long.sampled_ids, long.finish) == ([5, 8, 2], Finish.LENGTH)
    assert (stopped.sampled_ids, stopped.finish) == ([5, 8], Finish.STOP)
    assert stopped.logprobs == [LOGPROB] * 2
    assert routes(long).shape == (4, 2, 2)
    assert routes(stopped).tolist() == [[[1, 2], [2, 3]], [[2, 3], [3, 0]]]
    assert [request.token_ids for request in engine.requests] == [[5, 6], [5, 6]]


def test_a_flip_between_two_tokens_shows_in_the_versions():
    async def main():
        engine = ScriptedEngine(lambda _: range(20), token_s=0.005)
        task = asyncio.create_task(engine.generate(ask([1], max_tokens=20)))
        await engine.stage(7, {})
        assert (await engine.state()).target == 7
        while not engine.requests:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.03)
        assert (await engine.flip(KvPolicy.KEEP)).version == 7
        return await task, await engine.generate(ask([1], session="t"))

    out, after = run(main())
    assert [r.version for r in out.version_runs] == [0, 7]
    assert sum(r.count for r in out.version_runs) == 20
    assert after.version_runs == (VersionRun(version=7, count=10),)


def test_a_policy_may_set_versions_logprobs_and_delays():
    async def main():
        engine = ScriptedEngine(lambda _: Said([1, 2], version=5, delay_s=0.05, logprobs=[-1.0, -2.0]))
        before = asyncio.get_running_loop().time()
        out = await engine.generate(ask([1]))
        return out, asyncio.get_running_loop().time() - before

    out, took = run(main())
    assert (out.version_runs, out.logprobs) == ((VersionRun(version=5, count=2),), [-1.0, -2.0])
    assert took >= 0.05


def test_faults():
    async def main():
        engine = ScriptedEngine(lambda _: [1], deadline_s=0.1)
        engine.hang()
        for call in (engine.generate(ask([1])), engine.state(), engine.score(ScoreRequest(token_ids=[1, 2]))):
            with pytest.raises(EngineError, match=r"0\.1 s"):
                await call
        engine.restore()
        assert (await engine.generate(ask([1]))).sampled_ids == [1]
        engine.lose("power cut")
        with pytest.raises(EngineError, match="power cut"):
            await engine.generate(ask([1]))
        engine.restore()
        engine.version = -1
        with pytest.raises(EngineError, match="no version"):
            await engine.generate(ask([1]))
        assert (await engine.state()).in_flight == 0

    run(main())
