"""An engine that says what it is told: for tests, for SFT data played by an expert, and for faults on demand.

    engine = ScriptedEngine(lambda request: [7, 8, 2])
    engine.hang(); engine.lose(); engine.restore()

Log-probabilities are constant and experts are a fixed pattern: nothing here is a model, and no torch is needed.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
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
from twinmill.records.episodes import Finish, runs_of

from .base import EngineError, Flip

LOGPROB = -0.5
"""of every scripted token"""


class Said(NamedTuple):
    """What a policy may return instead of bare ids."""

    ids: Sequence[int]
    version: int | None = None
    """None = the version served while each token is said"""
    delay_s: float = 0.0
    """before the first token"""
    logprobs: Sequence[float] | None = None
    """None = LOGPROB each"""


Policy = Callable[[GenerateRequest], Sequence[int] | Said]


def reciting(turns: dict[str, list[list[int]]]) -> Policy:
    """A policy that says the turns (ids) of each session one after the other, and forgets what it has said."""
    return lambda request: turns[request.session_id].pop(0)


class ScriptedEngine:
    """Implements Engine. All attributes may be changed while it runs."""

    def __init__(
        self,
        policy: Policy,
        *,
        engine_id: str = "scripted",
        cluster: str = "local",
        version: int = 0,
        token_s: float = 0.0,
        deadline_s: float = 30.0,
        experts: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """version: -1 = nothing is served yet. token_s: time between tokens, so that a flip can come between two.
        deadline_s: of one call, for a policy or a `hang` that takes too long. experts: (layers, top_k, experts);
        layers 0 = a dense model."""
        self.policy, self.version, self.token_s, self.deadline_s = policy, version, token_s, deadline_s
        self.requests: list[GenerateRequest] = []
        """every request that was begun, in order"""
        self.staged: tuple[int, Mapping[str, npt.NDArray]] | None = None
        self.tensors: Mapping[str, npt.NDArray] = {}
        """of the version that is served"""
        self._engine_id, self._cluster, self._experts = engine_id, cluster, experts
        self._in_flight, self._sampled = 0, 0
        self._moving = asyncio.Event()
        self._moving.set()
        self._lost = ""
        self._last = Flip(version=version, pause_s=0.0, swap_s=0.0, stale_kv_tokens=0)
        self._staged_at = 0.0

    def hang(self) -> None:
        """No call answers from now on, until `restore` or its deadline."""
        self._moving.clear()

    def lose(self, why: str = "scripted loss") -> None:
        """Every call raises EngineError from now on; those that hang too."""
        self._lost = why
        self._moving.set()

    def restore(self) -> None:
        self._lost = ""
        self._moving.set()

    async def generate(self, request: GenerateRequest) -> Generation:
        self._in_flight += 1
        try:
            return await self._within_deadline(self._say(request))
        finally:
            self._in_flight -= 1

    async def score(self, request: ScoreRequest) -> Scores:
        await self._within_deadline(self._alive())
        return Scores(logprobs=[LOGPROB] * (len(request.token_ids) - 1), version=self.version)

    async def stage(self, version: int, tensors: Mapping[str, npt.NDArray]) -> None:
        await self._within_deadline(self._alive())
        self.staged, self._staged_at = (version, dict(tensors)), time.monotonic()

    async def flip(self, kv: KvPolicy) -> Flip:
        await self._within_deadline(self._alive())
        if self.staged is None:
            raise EngineError("nothing is staged; call stage first")
        (self.version, self.tensors), self.staged = self.staged, None
        swap_s = time.monotonic() - self._staged_at
        self._last = Flip(version=self.version, pause_s=0.0, swap_s=swap_s, stale_kv_tokens=0)
        return self._last

    async def state(self) -> EngineState:
        await self._within_deadline(self._alive())
        return EngineState(
            engine_id=self._engine_id,
            cluster=self._cluster,
            serving=self.version,
            target=self.version if self.staged is None else self.staged[0],
            phase=Phase.LOADING if self.version < 0 else Phase.READY,
            in_flight=self._in_flight,
            beat=time.time(),
            sampled_tokens=self._sampled,
            pause_s=self._last.pause_s,
            swap_s=self._last.swap_s,
        )

    async def _within_deadline(self, what):  # type: ignore[no-untyped-def]
        try:
            async with asyncio.timeout(self.deadline_s):
                return await what
        except TimeoutError:
            raise EngineError(f"{self._engine_id} did not answer within {self.deadline_s} s") from None

    async def _alive(self) -> None:
        await self._moving.wait()
        if self._lost:
            raise EngineError(f"{self._engine_id} is lost: {self._lost}")

    async def _say(self, request: GenerateRequest) -> Generation:
        await self._alive()
        if self.version < 0:
            raise EngineError(f"{self._engine_id} serves no version yet")
        self.requests.append(request)
        said = self.policy(request)
        said = said if isinstance(said, Said) else Said(said)
        await asyncio.sleep(said.delay_s)
        ids, finish = _cut(said.ids, request)
        versions = []
        for _ in ids:
            if self.token_s:
                await asyncio.sleep(self.token_s)
            await self._alive()
            versions.append(self.version if said.version is None else said.version)
        self._sampled += len(ids)
        experts, shape = self._routes(request, len(request.token_ids) + len(ids) - 1)
        return Generation(
            sampled_ids=ids,
            logprobs=[LOGPROB] * len(ids) if said.logprobs is None else list(said.logprobs)[: len(ids)],
            version_runs=runs_of(versions),
            finish=finish,
            sampling=request.sampling,
            experts=experts,
            experts_shape=shape,
        )

    def _routes(self, request: GenerateRequest, end: int) -> tuple[bytes | None, tuple[int, int, int] | None]:
        """Position p uses experts (p + layer + choice) mod experts."""
        layers, top_k, experts = self._experts
        if not (request.want_experts and layers):
            return None, None
        positions = np.arange(request.experts_from, end)
        pattern = positions[:, None, None] + np.arange(layers)[:, None] + np.arange(top_k)
        return (pattern % experts).astype("<u2").tobytes(), (len(positions), layers, top_k)


def _cut(ids: Sequence[int], request: GenerateRequest) -> tuple[list[int], Finish]:
    """`ids` up to the first stop id or the budget."""
    sampling = request.sampling
    for i, token in enumerate(ids[: sampling.max_tokens]):
        if token in sampling.stop_ids:
            return list(ids[: i + 1]), Finish.STOP
    return list(ids[: sampling.max_tokens]), Finish.LENGTH
