"""What an engine is: token ids in; token ids, logprobs, chosen experts and weight version out."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from twinmill.records.base import Record, Ref
from twinmill.records.engines import EngineState, GenerateRequest, Generation, KvPolicy, ScoreRequest, Scores
from twinmill.store.blobs import Blobs
from twinmill.store.routes import BadRoutes, encode


class EngineError(Exception):
    """The engine is lost, hangs, or refused. Infrastructure: never a reward."""


class ContextTooLong(EngineError):
    """The caller asked for more context than the engine has; the harness checks budgets first, so this is a bug."""


class Flip(Record):
    """What a flip did. `pause_s`: generation stood still. `stale_kv_tokens`: KV kept from older versions (0 under
    recompute)."""

    version: int
    pause_s: float
    swap_s: float
    stale_kv_tokens: int


class Engine(Protocol):
    """At most five methods. Every wait inside has a deadline; a lost engine raises EngineError."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample from request.token_ids on. Runs concurrently with others (continuous batching)."""
        ...

    async def score(self, request: ScoreRequest) -> Scores: ...

    async def stage(self, version: int, tensors: Mapping[str, npt.NDArray]) -> None:
        """Fill the idle weight buffer (raw stored bits, Hugging Face names) while serving goes on."""
        ...

    async def flip(self, kv: KvPolicy) -> Flip:
        """Pause between two decode steps, make the staged version the serving one, resume in-flight requests."""
        ...

    async def state(self) -> EngineState: ...


class ExpertTrace:
    """The expert choice of a growing context, as engines report it turn by turn. Rows [known, layers, top_k]: row i is the
    choice at token i. The first report of a position is the one that sampling used, so it is kept even if a restarted engine
    computes the position again."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.uint16]] = []
        self.known = 0

    def extend(self, out: Generation) -> None:
        if out.experts is None or out.experts_shape is None:
            return
        rows = np.frombuffer(out.experts, "<u2").reshape(out.experts_shape)
        self._parts.append(rows)
        self.known += len(rows)

    def cut(self, positions: int) -> None:
        """Hold exactly `positions` rows; fewer recorded ones are a fault of the engine."""
        if not self._parts:
            return
        if self.known < positions:
            raise EngineError(f"experts of {self.known} positions were recorded, {positions} are needed")
        self._parts = [np.concatenate(self._parts)[:positions]]
        self.known = positions

    def keep(self, blobs: Blobs) -> Ref | None:
        """Store the rows as store.routes codes them; None as in `rows`. EngineError: they are no choices of experts."""
        rows = self.rows()
        if rows is None:
            return None
        try:
            return blobs.put_ref("experts", encode(rows))
        except BadRoutes as wrong:
            raise EngineError(f"the engine recorded experts that are none: {wrong}") from wrong

    def rows(self) -> npt.NDArray[np.uint16] | None:
        """None = a dense model, or nothing asked for."""
        return np.concatenate(self._parts) if self._parts else None
