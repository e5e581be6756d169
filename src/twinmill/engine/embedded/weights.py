"""WeightBuffers: the weights that are served, and a second set that is filled meanwhile."""

import threading
import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from twinmill.engine.base import EngineError
from twinmill.model.config import ModelConfig, Parity
from twinmill.model.hf import WeightsError, dtypes, load_bits, named_views, state_bits
from twinmill.model.transformer import Decoder
from twinmill.publish.tiles import Grid, gather
from twinmill.publish.wdx import digest

_KINDS = {2: "BF16", 4: "F32"}
"""element size of stored bits -> dtype; F16 is not told apart from BF16 by its bits and is not taken"""

INEXACT = b""
"""in place of a digest: the memory holds values that the stored dtype cannot, so it is not what was staged"""


class WeightBuffers:
    """Two decoders that change places. `stage` runs in any thread, `flip` in the one that computes."""

    def __init__(self, config: ModelConfig, parity: Parity) -> None:
        self._decoders = [Decoder(config, parity).requires_grad_(False) for _ in range(2)]
        self._serving = 0
        self._filling = threading.Lock()
        self._staged_at = 0.0
        self.version = -1
        """served; -1 = none yet"""
        self.staged: int | None = None

    @property
    def serving(self) -> Decoder:
        return self._decoders[self._serving]

    @property
    def _idle(self) -> Decoder:
        return self._decoders[1 - self._serving]

    def stage(self, version: int, tensors: Mapping[str, npt.NDArray]) -> None:
        """Fill the idle set. EngineError names the tensor that does not fit."""
        if version < self.version:
            raise EngineError(f"version {version} is older than {self.version}, the served one; versions never go back")
        for name, bits in tensors.items():
            if bits.dtype.kind != "u" or bits.itemsize not in _KINDS:
                raise EngineError(f"version {version}: {name} has {bits.dtype} bits; stored bits are uint16 or uint32")
        with self._filling:
            self.staged = None
            started = time.monotonic()
            try:
                load_bits(self._idle, tensors, {name: _KINDS[bits.itemsize] for name, bits in tensors.items()})
            except WeightsError as error:
                raise EngineError(f"version {version} does not fit this model: {error}") from error
            self.staged, self._staged_at = version, started

    def staged_digests(self, grid: Grid) -> list[bytes]:
        """The digest of every tile of what is staged, read back from the memory it will be computed with."""
        with self._filling:
            if self.staged is None:
                raise EngineError("nothing is staged; call stage first")
            views, kinds = named_views(self._idle), dtypes(self._idle)
            exact = {name for name, view in views.items() if kinds[name] == "F32" or _is_bfloat16(view)}
            bits = {name: np.ascontiguousarray(array) for name, array in state_bits(self._idle).items()}
        right = {n for n in exact if kinds[n] == grid.dtypes.get(n) and bits[n].shape == grid.shapes[n]}
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


def _is_bfloat16(view: torch.Tensor) -> bool:
    """Whether every fp32 value has the low half of its bits clear."""
    bits = view.contiguous().view(torch.int32).numpy()
    return not bool(np.bitwise_and(bits, 0xFFFF).any())
