"""Several engines as one."""

import asyncio
from collections import Counter

import pytest

from twinmill.engine.base import ContextTooLong, EngineError
from twinmill.engine.router import GROUP_SLACK, Router
from twinmill.engine.scripted import Said, ScriptedEngine
from twinmill.records.engines import KvPolicy, Phase

from .rigs import ask, run


def fleet(count: int, delay_s: float = 0.0) -> list[ScriptedEngine]:
    return [ScriptedEngine(lambda _, i=i: Said([i], delay_s=delay_s), engine_id=f"e{i}") for i in range(count)]


async def where(router: Router, session: str, **rest) -> int:
    return (await router.generate(ask([1], session, **rest))).sampled_ids[0]


def test_new_sessions_spread_and_old_ones_stay():
    async def main():
        router = Router(fleet(3, 0.05))
        first = await asyncio.gather(*(where(router, f"s{i}") for i in range(12)))
        second = await asyncio.gather(*(where(router, f"s{i}") for i in reversed(range(12))))
        return first, second[::-1]

    first, second = run(main())
    assert Counter(first) == {0: 4, 1: 4, 2: 4}
    assert first == second


def test_a_group_stays_together_within_bounds():
    async def main():
        router = Router(fleet(2, 0.05))
        small = await asyncio.gather(*(where(router, f"a{i}", group_id="a") for i in range(8)))
        large = await asyncio.gather(*(where(router, f"b{i}", group_id="b") for i in range(40)))
        return small, large

    small, large = run(main())
    assert len(set(small)) == 1
    assert 0 < min(Counter(large).values()) <= max(Counter(large).values()) <= 20 + GROUP_SLACK


def test_a_failed_engine_rests_and_its_sessions_move():
    async def main():
        engines = fleet(2)
        router = Router(engines, rest_s=0.2)
        home = await where(router, "s")
        engines[home].lose()
        with pytest.raises(EngineError):
            await where(router, "s")
        moved = [await where(router, "s"), await where(router, "t"), await where(router, "u")]
        state = await router.state()
        engines[home].restore()
        await asyncio.sleep(0.25)
        back = {await where(router, f"n{i}") for i in range(2)}
        return home, moved, state, back

    home, moved, state, _ = run(main())
    assert moved == [1 - home] * 3
    assert state.engine_id == f"e{1 - home}"


def test_the_callers_own_mistake_does_not_rest_an_engine():
    class Short(ScriptedEngine):
        async def generate(self, request):
            if len(request.token_ids) > 2:
                raise ContextTooLong("3")
            return await super().generate(request)

    async def main():
        router = Router([Short(lambda _: [5])])
        with pytest.raises(ContextTooLong):
            await router.generate(ask([1, 2, 3]))
        return await where(router, "s")

    assert run(main()) == 5


def test_its_state_is_that_of_all():
    async def main():
        engines = fleet(2)
        engines[1].version = 4
        router = Router(engines)
        await asyncio.gather(*(where(router, f"s{i}") for i in range(6)))
        state = await router.state()
        engines[0].version = -1
        mixed = await router.state()
        for engine in engines:
            engine.lose()
        with pytest.raises(EngineError, match="none of 2"):
            await router.state()
        for call in (router.stage(1, {}), router.flip(KvPolicy.KEEP)):
            with pytest.raises(EngineError):
                await call
        return state, mixed

    state, mixed = run(main())
    assert (state.serving, state.target, state.sampled_tokens, state.phase) == (0, 4, 6, Phase.READY)
    assert mixed.phase is Phase.SWAPPING


def test_no_engines():
    with pytest.raises(ValueError, match="at least one"):
        Router([])
