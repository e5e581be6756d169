"""EngineConfig: the settings of an embedded engine."""

from twinmill.model.config import Parity
from twinmill.records.base import Record


class EngineConfig(Record):
    """How much an embedded engine holds and how it computes."""

    parity: Parity = Parity.STRICT
    """how far results are independent of the batch; see model/config.py"""
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
        if self.context_tokens <= 0 or self.context_tokens % 64:
            raise ValueError(f"engine.context_tokens = {self.context_tokens}: must be a positive multiple of 64")
        if not 0 < self.batch <= self.slots:
            raise ValueError(f"engine.batch = {self.batch}: must lie in 1..slots ({self.slots})")
        if self.prefill_tokens <= 0 or self.request_s <= 0:
            raise ValueError("engine.prefill_tokens and engine.request_s must be positive")
