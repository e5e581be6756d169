"""The expert choice of a growing context, as engines report it turn by turn."""

import numpy as np
import numpy.typing as npt

from twinmill.engine.base import EngineError
from twinmill.records.engines import Generation


class ExpertTrace:
    """Rows [known, layers, top_k]: row i is the choice at token i. The first report of a position is the one that
    sampling used, so it is kept even if a restarted engine computes the position again."""

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

    def rows(self) -> npt.NDArray[np.uint16] | None:
        """None = a dense model, or nothing asked for."""
        return np.concatenate(self._parts) if self._parts else None
