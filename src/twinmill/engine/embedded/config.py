"""EngineConfig: the settings of an embedded engine, and who computes in it."""

from collections.abc import Mapping
from typing import NamedTuple

from twinmill.model import core
from twinmill.model.config import ModelConfig, Parity
from twinmill.records.base import Record

BACKENDS: Mapping[str, tuple[str, str]] = {
    "core": ("core_compute", "CoreCompute"),
    "torch": ("torch_compute", "TorchCompute"),
}
"""who can compute: name -> module in this folder, class"""


class EngineConfig(Record):
    """How much an embedded engine holds and how it computes."""

    backend: str = ""
    """who computes: core (native) or torch; "" = core where it is built and has all that the model needs, else torch"""
    parity: Parity = Parity.STRICT
    """how far results of the torch backend are independent of the batch (model/config.py); the core's always are"""
    context_tokens: int = 1024
    """longest context, sampled tokens included; a multiple of 64"""
    slots: int = 48
    """contexts whose KV is kept, those at work included"""
    batch: int = 32
    """most requests at work at once; the rest wait in order of arrival"""
    prefill_tokens: int = 512
    """most context tokens computed in one step, beside one token of every decoding request"""
    request_s: float = 300.0
    """deadline of one request, seconds, waiting included"""

    def __post_init__(self) -> None:
        if self.backend and self.backend not in BACKENDS:
            names = ", ".join(BACKENDS)
            raise ValueError(f'engine.backend = {self.backend!r}: there are {names} and "" (core where it can)')
        if self.parity is Parity.CORE:
            raise ValueError("engine.parity = core: that is the trainer's; for an engine set engine.backend = core")
        if self.context_tokens <= 0 or self.context_tokens % 64:
            raise ValueError(f"engine.context_tokens = {self.context_tokens}: must be a positive multiple of 64")
        if not 0 < self.batch <= self.slots:
            raise ValueError(f"engine.batch = {self.batch}: must lie in 1..slots ({self.slots})")
        if self.prefill_tokens <= 0 or self.request_s <= 0:
            raise ValueError("engine.prefill_tokens and engine.request_s must be positive")


class Choice(NamedTuple):
    backend: str
    why: str
    """in words for a log line"""


def backend_of(config: EngineConfig, model: ModelConfig) -> Choice:
    """Who computes this model on this machine. "core" is only ever said where the core can, or where it is demanded."""
    if config.backend:
        return Choice(config.backend, "as engine.backend says")
    if not core.available():
        return Choice("torch", "the native core is not built here")
    if lacking := core.lacks(model):
        return Choice("torch", f"the native core has no {lacking}")
    return Choice("core", "the native core is built")
