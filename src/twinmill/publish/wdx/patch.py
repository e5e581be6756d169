"""What changed in a tile."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .layout import Bits


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """k changed elements of one tile, by position. `new` is absolute, so writing a patch twice is writing it once."""

    index: npt.NDArray[np.uint32]
    """[k], rising"""
    old: Bits
    """[k] bits before"""
    new: Bits
    """[k] bits after"""

    def __len__(self) -> int:
        return len(self.index)

    def undo(self) -> "Patch":
        """The patch back."""
        return Patch(self.index, self.new, self.old)
