"""WeightBuffers: the weights that are served, and a second set that is filled meanwhile."""

import threading
import time
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from twinmill.engine.base import EngineError
from twinmill.model.core.weights import KINDS, Bits
from twinmill.publish.tiles import Grid, gather
from twinmill.publish.wdx import digest

INEXACT = b""
"""in place of a digest: the memory holds values that the stored dtype cannot, so it is not what was staged"""


class WeightSet(Protocol):
    """One set of weights, in the memory that is computed with."""

    def load(self, tensors: Mapping[str, Bits]) -> None:
        """Fill it from stored bits. EngineError names the tensor that does not fit, before anything is written."""
        ...

    def bits(self) -> dict[str, Bits]:
        """Stored bits read back from this memory, contiguous; without tensors that now hold what their dtype cannot."""
        ...


S = TypeVar("S", bound=WeightSet)


class WeightBuffers(Generic[S]):
    """Two sets that change places. `stage` runs in any thread, `flip` in the one that computes."""

    def __init__(self, first: S, second: S) -> None:
        self._sets = (first, second)
        self._serving = 0
        self._filling = threading.Lock()
        self._staged_at = 0.0
        self.version = -1
        """served; -1 = none yet"""
        self.staged: int | None = None

    @property
    def serving(self) -> S:
        return self._sets[self._serving]

    @property
    def _idle(self) -> S:
        return self._sets[1 - self._serving]

    def stage(self, version: int, tensors: Mapping[str, Bits]) -> None:
        """Fill the idle set. EngineError names the tensor that does not fit."""
        if version < self.version:
            raise EngineError(f"version {version} is older than {self.version}, the served one; versions never go back")
        for name, bits in tensors.items():
            if bits.dtype.kind != "u" or bits.itemsize not in KINDS:
                raise EngineError(f"version {version}: {name} has {bits.dtype} bits; stored bits are uint16 or uint32")
        with self._filling:
            self.staged = None
            started = time.monotonic()
            try:
                self._idle.load(tensors)
            except EngineError as error:
                raise EngineError(f"version {version} does not fit this model: {error}") from error
            self.staged, self._staged_at = version, started

    def staged_digests(self, grid: Grid) -> list[bytes]:
        """The digest of every tile of what is staged, read back from the memory it will be computed with."""
        with self._filling:
            if self.staged is None:
                raise EngineError("nothing is staged; call stage first")
            bits = self._idle.bits()
        right = {n for n, b in bits.items() if KINDS[b.itemsize] == grid.dtypes.get(n) and b.shape == grid.shapes[n]}
        return [
            digest(gather(tile, bits)) if all(piece.name in right for piece in tile.pieces) else INEXACT
            for tile in grid.tiles
        ]

    def flip(self) -> float:
        """Serve what is staged; returns the seconds since it began to be staged."""
        if not self._filling.acquire(blocking=False):
            raise EngineError("a version is being staged; flip after stage has returned")
        try:
            if self.staged is None:
                raise EngineError("nothing is staged; call stage first")
            self._serving = 1 - self._serving
            self.version, self.staged = self.staged, None
            return time.monotonic() - self._staged_at
        finally:
            self._filling.release()
