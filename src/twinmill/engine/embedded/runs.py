"""Run: one request from its arrival to its result."""

from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import numpy as np

from twinmill.engine.base import EngineError, Flip
from twinmill.records.engines import GenerateRequest, Generation
from twinmill.records.episodes import Finish, runs_of

from .kv import Ids, KvCache


@dataclass(eq=False)
class Run:
    """`slot` is its place in the cache while it is at work; the scheduler keeps it up to date."""

    request: GenerateRequest
    future: "Future[Generation]"
    context: Ids
    ids: list[int]
    """context and what was sampled"""
    slot: int = -1
    cached: int = 0
    recorded: int = 0
    """positions whose experts were recorded before their KV was computed anew"""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, request: GenerateRequest) -> "Run":
        return cls(request, Future(), np.array(request.token_ids, np.int64), list(request.token_ids))

    def accept(self, token: int, logprob: float, version: int) -> Finish | None:
        """Append a sampled token; says why it is the last one, if it is."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.request.sampling.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(self.versions) == self.request.sampling.max_tokens else None

    def record(self, cache: KvCache, start: int, experts: Sequence, version: int) -> None:  # type: ignore[type-arg]
        """Note what a forward computed of positions [start, start + len(experts)): experts [n, L, top_k].

        Where a sampled token was drawn from such a position before (a recompute), the experts of that time stay.
        """
        end = start + len(experts)
        cache.ids[self.slot, start:end] = self.ids[start:end]
        cache.versions[self.slot, start:end] = version
        cache.slots[self.slot].length = end
        first_drawn, known = len(self.context) - 1, self.recorded
        if known <= first_drawn or known <= start:
            cache.experts[self.slot, start:end] = experts
            return
        for position in range(start, end):
            if not first_drawn <= position < known:
                cache.experts[self.slot, position] = experts[position - start]

    def result(self, cache: KvCache, finish: Finish) -> Generation:
        end, first = len(self.ids) - 1, self.request.experts_from
        experts = cache.experts[self.slot, first:end]
        wanted = self.request.want_experts and experts.shape[1] > 0
        return Generation(
            sampled_ids=self.ids[len(self.context) :],
            logprobs=self.logprobs,
            version_runs=runs_of(self.versions),
            finish=finish,
            sampling=self.request.sampling,
            experts=experts.astype("<u2").tobytes() if wanted else None,
            experts_shape=experts.shape if wanted else None,  # type: ignore[arg-type]
            cached_tokens=self.cached,
            stale_kv_tokens=int((cache.versions[self.slot, :end] < self.versions[-1]).sum()),
            kv_runs=runs_of(cache.versions[self.slot, :end].tolist()),
        )


@dataclass(eq=False)
class Catching:
    """A flip with recomputation: done when the contexts that were at work are computed anew."""

    future: "Future[Flip]"
    runs: list[Run]
    paused_at: float
    swap_s: float
    """until the pause began"""


def settle(future: Future, result: object) -> None:  # type: ignore[type-arg]
    """Set a result or an exception, unless the caller has gone in the meantime."""
    try:
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
    except InvalidStateError:
        pass


def lost(why: object) -> EngineError:
    return why if isinstance(why, EngineError) else EngineError(f"the embedded engine has failed: {why!r}")
