"""CoreCompute: the step in one call of the native core."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch

from twinmill.engine.base import EngineError
from twinmill.model.config import ModelConfig
from twinmill.model.core.forward import KV_BLOCK, Asks, Core, Kv, Rows, drawing, new_kv, padded_dim, scoring
from twinmill.model.core.weights import Bits, Inexact, Misfit, PackedWeights

from .compute import Done, Draw, Work
from .config import EngineConfig
from .kv import KvCache
from .weights import WeightBuffers


class CoreCompute:
    """Implements Compute. It computes with as many threads as torch is set to in this process."""

    in_order = False

    def __init__(self, model: ModelConfig, config: EngineConfig) -> None:
        self._core = Core(model, torch.get_num_threads())
        self.cache = KvCache(model, config.slots, config.context_tokens, padded_dim(model.head_dim))
        self.weights: WeightBuffers[CoreSet] = WeightBuffers(CoreSet(model), CoreSet(model))
        self._kv = _view(self.cache)
        blocks = config.context_tokens // KV_BLOCK
        self._table = (np.arange(config.slots)[:, None] * model.kv_heads * blocks + np.arange(blocks)).astype(np.int32)
        """[slots, blocks]: a slot's blocks lie in a row, once for each key head"""
        self._scratch = new_kv(model, 0)
        """where texts are scored"""

    def step(self, work: Work) -> Done:
        slots = [*work.slots, *(chunk.slot for chunk in work.chunks for _ in range(chunk.count))]
        rows = Rows(*(np.array(x, np.int32) for x in (work.token_ids, slots, work.positions)), self._table)
        asks = _asks(work.draws) if work.draws else None
        result = self._core.forward(self.weights.serving.packed, rows, self._kv, asks)
        return Done(result.routes, result.token_ids.tolist(), result.logprobs.tolist())

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        lens = np.array([len(text) for text in texts], np.int32)
        blocks = -(-lens // KV_BLOCK)
        total = int(blocks.sum())
        if total > self._scratch.memory.shape[2]:
            self._scratch = new_kv(self._core.config, total)
        # one text's blocks behind another's; entries beyond a text's own are not looked at
        table = (np.cumsum(blocks) - blocks)[:, None].astype(np.int32) + np.arange(blocks.max(), dtype=np.int32)
        ids = np.concatenate([np.array(text, np.int32) for text in texts])
        sequence = np.repeat(np.arange(len(texts), dtype=np.int32), lens)
        position = np.concatenate([np.arange(n, dtype=np.int32) for n in lens])
        scored = np.flatnonzero(position < np.repeat(lens - 1, lens))
        rows, asks = Rows(ids, sequence, position, table), scoring(scored, ids[scored + 1])
        result = self._core.forward(self.weights.serving.packed, rows, self._scratch, asks)
        return [part.tolist() for part in np.split(result.logprobs, np.cumsum(lens - 1)[:-1])]


def _asks(draws: Sequence[Draw]) -> Asks:
    rows, positions, samplings = zip(*draws)
    return drawing(
        rows, positions, [s.temperature for s in samplings], [s.top_p for s in samplings], [s.seed for s in samplings]
    )


def _view(cache: KvCache) -> Kv:
    """The cache's memory as blocks: a slot's positions of one key head are neighbours."""
    _, _, slots, kv_heads, context, dim = cache.kv.shape
    values = slots * kv_heads * context * dim
    return Kv(cache.kv.numpy(), (values, 2 * values, KV_BLOCK * dim, context * dim))


class CoreSet:
    """Packed weights. Implements WeightSet."""

    def __init__(self, model: ModelConfig) -> None:
        self.packed = PackedWeights(model)

    def load(self, tensors: Mapping[str, Bits]) -> None:
        try:
            self.packed.load(tensors)
        except Misfit as error:
            raise EngineError(str(error)) from error

    def bits(self) -> dict[str, Bits]:
        found = {}
        for name in self.packed.places:
            with suppress(Inexact):
                found[name] = self.packed.bits(name)
        return found
