"""Several engines of one cluster as one: a session stays where its KV is, a new one goes to the least busy engine.

A group's attempts are sent to one engine as long as that engine is not `GROUP_SLACK` requests busier than the least
busy one: they share their prompt's KV there.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy.typing as npt

from twinmill.records.engines import (
    EngineState,
    GenerateRequest,
    Generation,
    KvPolicy,
    Phase,
    ScoreRequest,
    Scores,
)

from .base import ContextTooLong, Engine, EngineError, Flip

GROUP_SLACK = 8
REMEMBERED = 4096
"""sessions and groups whose engine is known; older ones are placed anew"""


class Router:
    """Implements Engine. An engine that failed rests for `rest_s` seconds; its sessions are placed anew meanwhile."""

    def __init__(self, engines: Sequence[Engine], rest_s: float = 5.0) -> None:
        if not engines:
            raise ValueError("a router needs at least one engine")
        self._engines, self._rest_s = list(engines), rest_s
        self._in_flight = [0] * len(self._engines)
        self._rests_until = [0.0] * len(self._engines)
        self._homes: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def generate(self, request: GenerateRequest) -> Generation:
        index = self._place(request)
        async with self._using(index) as engine:
            return await engine.generate(request)

    async def score(self, request: ScoreRequest) -> Scores:
        async with self._using(self._least_busy()) as engine:
            return await engine.score(request)

    async def state(self) -> EngineState:
        """Of all engines: the oldest version served, sums of the counters. Engines that do not answer are left out."""
        answers = await asyncio.gather(*(engine.state() for engine in self._engines), return_exceptions=True)
        states = [answer for answer in answers if isinstance(answer, EngineState)]
        if not states:
            raise EngineError(f"none of {len(self._engines)} engines answers: {answers[0]}")
        phases = {state.phase for state in states}
        return EngineState(
            engine_id="+".join(state.engine_id for state in states),
            cluster=states[0].cluster,
            serving=min(state.serving for state in states),
            target=max(state.target for state in states),
            phase=phases.pop() if len(phases) == 1 else Phase.SWAPPING,
            in_flight=sum(state.in_flight for state in states),
            beat=min(state.beat for state in states),
            busy_s=sum(state.busy_s for state in states),
            sampled_tokens=sum(state.sampled_tokens for state in states),
            pause_s=max(state.pause_s for state in states),
            swap_s=max(state.swap_s for state in states),
            repairs=sum(state.repairs for state in states),
        )

    async def stage(self, version: int, tensors: Mapping[str, npt.NDArray]) -> None:
        raise EngineError("weights are staged engine by engine, not through a router")

    async def flip(self, kv: KvPolicy) -> Flip:
        raise EngineError("weights are flipped engine by engine, not through a router")

    def _place(self, request: GenerateRequest) -> int:
        least = self._least_busy()
        session, group = ("session", request.session_id), ("group", request.group_id)
        index = self._home(session)
        if index is None and request.group_id:
            index = self._home(group)
            if index is not None and self._in_flight[index] > self._in_flight[least] + GROUP_SLACK:
                index = None
        index = least if index is None else index
        self._remember(session, index)
        if request.group_id:
            self._remember(group, index)
        if request.last:
            del self._homes[session]
        return index

    def _home(self, key: tuple[str, str]) -> int | None:
        """Where `key` was placed, unless that engine rests."""
        index = self._homes.get(key)
        return None if index is None or self._resting(index) else index

    def _remember(self, key: tuple[str, str], index: int) -> None:
        self._homes[key] = index
        self._homes.move_to_end(key)
        if len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)

    def _resting(self, index: int) -> bool:
        return asyncio.get_running_loop().time() < self._rests_until[index]

    def _least_busy(self) -> int:
        return min(range(len(self._engines)), key=lambda i: (self._resting(i), self._in_flight[i]))

    @asynccontextmanager
    async def _using(self, index: int) -> AsyncIterator[Engine]:
        self._in_flight[index] += 1
        try:
            yield self._engines[index]
        except ContextTooLong:
            raise  # the caller's fault, not the engine's
        except EngineError:
            self._rests_until[index] = asyncio.get_running_loop().time() + self._rest_s
            raise
        finally:
            self._in_flight[index] -= 1
