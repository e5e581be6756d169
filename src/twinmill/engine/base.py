"""What an engine is: token ids in; token ids, logprobs, chosen experts and weight version out."""

from collections.abc import Mapping
from typing import Protocol

import numpy.typing as npt

from twinmill.records.base import Record
from twinmill.records.engines import EngineState, GenerateRequest, Generation, KvPolicy, ScoreRequest, Scores


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
