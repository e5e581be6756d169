"""EmbeddedEngine: the Engine protocol on top of a scheduler thread."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import numpy.typing as npt

from twinmill.engine.base import ContextTooLong, EngineError, Flip
from twinmill.model import hf
from twinmill.model.config import ModelConfig, read_config
from twinmill.publish.tiles import Grid
from twinmill.records.engines import (
    EngineState,
    GenerateRequest,
    Generation,
    KvPolicy,
    Phase,
    ScoreRequest,
    Scores,
)

from .compute import open_compute
from .config import EngineConfig
from .scheduler import Scheduler

T = TypeVar("T")


class EmbeddedEngine:
    """Implements Engine and engine.sync.Checkable. Serves nothing until a version was staged and flipped.

    torch.set_num_threads is the process's business, not the engine's. `close` ends the thread; open calls then raise
    EngineError, and so does every later one.
    """

    def __init__(self, model: ModelConfig, config: EngineConfig, *, engine_id: str, cluster: str) -> None:
        if config.context_tokens > model.max_positions:
            raise ValueError(
                f"engine.context_tokens = {config.context_tokens}: the model has {model.max_positions} positions"
            )
        self._model, self._config, self._engine_id, self._cluster = model, config, engine_id, cluster
        compute = open_compute(model, config)
        self._weights = compute.weights
        self._scheduler = Scheduler(config, compute)
        self.target = -1
        """newest version that is wanted; engine.sync keeps it"""
        self.repairs = 0
        """versions that did not match in this memory and were staged anew; engine.sync counts"""

    async def generate(self, request: GenerateRequest) -> Generation:
        self._check(request)
        return await self._within(self._scheduler.submit(request), self._config.request_s)

    async def score(self, request: ScoreRequest) -> Scores:
        self._check_ids(request.token_ids, len(request.token_ids))
        return await self._within(self._scheduler.score(request), self._config.request_s)

    async def stage(self, version: int, tensors: Mapping[str, npt.NDArray]) -> None:
        self.target = max(self.target, version)
        await asyncio.to_thread(self._weights.stage, version, tensors)

    async def staged_digests(self, grid: Grid) -> Sequence[bytes]:
        return await asyncio.to_thread(self._weights.staged_digests, grid)

    async def flip(self, kv: KvPolicy) -> Flip:
        return await self._within(self._scheduler.flip(kv), self._config.request_s)

    async def state(self) -> EngineState:
        scheduler, weights = self._scheduler, self._weights
        if scheduler.failed is not None:
            phase = Phase.LOST
        elif weights.version < 0:
            phase = Phase.LOADING
        else:
            phase = Phase.READY if weights.staged is None else Phase.SWAPPING
        return EngineState(
            engine_id=self._engine_id,
            cluster=self._cluster,
            serving=weights.version,
            target=self.target,
            phase=phase,
            in_flight=scheduler.in_flight,
            beat=scheduler.beat if scheduler.in_flight else time.time(),
            busy_s=scheduler.busy_s,
            sampled_tokens=scheduler.sampled_tokens,
            pause_s=scheduler.last_flip.pause_s,
            swap_s=scheduler.last_flip.swap_s,
            repairs=self.repairs,
        )

    def close(self) -> None:
        self._scheduler.close()

    async def _within(self, future: "Future[T]", deadline_s: float) -> T:
        """Cancelling this cancels the future, which is how a request is aborted."""
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise EngineError(f"{self._engine_id}: no answer within {deadline_s} s") from None

    def _check(self, request: GenerateRequest) -> None:
        sampling = request.sampling
        if sampling.max_tokens < 1 or sampling.temperature < 0 or not 0 < sampling.top_p <= 1:
            raise EngineError(f"impossible sampling: {sampling}")
        if not 0 <= request.experts_from <= len(request.token_ids):
            raise EngineError(f"experts_from = {request.experts_from}: the context has {len(request.token_ids)} tokens")
        self._check_ids(request.token_ids, len(request.token_ids) + sampling.max_tokens)

    def _check_ids(self, ids: list[int], total: int) -> None:
        if not ids:
            raise EngineError("an empty context")
        if total > self._config.context_tokens:
            raise ContextTooLong(f"{total} tokens; engine.context_tokens = {self._config.context_tokens}")
        if min(ids) < 0 or max(ids) >= self._model.vocab:
            raise EngineError(f"token ids must lie in 0..{self._model.vocab - 1}: wrong tokenizer?")


@asynccontextmanager
async def serving(folder: Path, config: EngineConfig) -> AsyncIterator[EmbeddedEngine]:
    """An engine of its own for a Hugging Face folder, which it serves as version 0. It ends with the block."""
    engine = EmbeddedEngine(read_config(folder), config, engine_id=folder.name, cluster="here")
    try:
        bits, _ = hf.read_bits(folder)
        await engine.stage(0, bits)
        await engine.flip(KvPolicy.RECOMPUTE)
        yield engine
    finally:
        engine.close()
