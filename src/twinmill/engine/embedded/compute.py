"""Compute: what a scheduler needs done, and who can do it.

core     the native core (model/core): fast, and bitwise independent of the batch
torch    the same in a few pages of torch: the readable reference, and the fallback where no compiler was

A backend owns the cache, because the kernels decide how keys lie in it, and both weight sets.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from twinmill.model import core
from twinmill.model.config import ModelConfig
from twinmill.records.engines import Sampling

from .config import BACKENDS, EngineConfig, backend_of
from .kv import KvCache
from .weights import WeightBuffers


class Chunk(NamedTuple):
    """`count` tokens of a slot's context, from position `start` on."""

    slot: int
    start: int
    count: int


class Draw(NamedTuple):
    """Sample a token after a row; `position` is its index in its context."""

    row: int
    position: int
    sampling: Sampling


class Work(NamedTuple):
    """One step. Rows [0, D) are one token of D slots that decode (slots 0, 1, ... where the backend says `in_order`);
    behind them come the chunks, row by row."""

    token_ids: Sequence[int]
    """axis T"""
    positions: Sequence[int]
    slots: Sequence[int]
    """[D]"""
    chunks: Sequence[Chunk]
    draws: Sequence[Draw]
    """in rising order of row"""


class Done(NamedTuple):
    routes: npt.NDArray[np.integer]
    """[T, L, top_k]; L = mixture layers"""
    sampled_ids: list[int]
    """one for each draw"""
    logprobs: list[float]


class Compute(Protocol):
    cache: KvCache
    weights: WeightBuffers
    in_order: bool
    """whether those that decode must be in slots 0, 1, ... in the order of their rows"""

    def step(self, work: Work) -> Done:
        """One forward under the serving weights, its keys and values left in the cache."""
        ...

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of all ids of each text but the first, at temperature 1."""
        ...


def open_compute(model: ModelConfig, config: EngineConfig) -> Compute:
    """Raises model.core.CoreUnavailable where "core" is demanded and not built, or lacks what the model needs."""
    backend = backend_of(config, model).backend
    if backend == "core" and (lacking := core.lacks(model)):
        raise core.CoreUnavailable(
            f'engine.backend = core: the core has no {lacking}; set engine.backend to "" or torch'
        )
    module, name = BACKENDS[backend]
    compute: Compute = getattr(import_module(f".{module}", __package__), name)(model, config)
    return compute
