"""The embedded engine: continuous batching, KV shared within sessions and groups, weights swapped between two steps.

config      EngineConfig, and which backend it means on this machine (no torch)
engine      EmbeddedEngine: the Engine protocol on top of a scheduler thread; `serving` opens one on a model folder
scheduler   one loop: admit, forward, sample, finish; owns everything below
compute     what one step is, and the two backends that can do it: core_compute, torch_compute
kv          KvCache: slots, prefixes, eviction
attend      attention of one step over the cache, in torch
sampler     counter-based sampling, in torch
weights     WeightBuffers: what is served, what is staged
"""

from typing import TYPE_CHECKING

from .config import EngineConfig

if TYPE_CHECKING:
    from .engine import EmbeddedEngine, serving

__all__ = ["EmbeddedEngine", "EngineConfig", "serving"]


def __getattr__(name: str):  # type: ignore[no-untyped-def]
    """The engine needs torch, which a config that only names EngineConfig must not pay for."""
    if name in __all__:
        from . import engine

        return getattr(engine, name)
    raise AttributeError(name)
