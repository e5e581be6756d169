"""What a quantiser is, which tensors it gets, and how a whole state goes through it."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ..errors import Refused
from ..tensors import Array, Bits, State, check_state
from .floats import SOURCES


class Part(NamedTuple):
    """One of the tensors that a quantised tensor consists of: stored bits and their dtype name."""

    bits: Array
    dtype: str


class Quantiser(Protocol):
    """Pure: equal bits in, equal bits out, on every machine. A change of any output bit is a new version of the name."""

    name: str
    """with its version, e.g. "fp8_block/1": WeightVersion.quantisation of a stream that it makes"""
    bytes_per_param: float
    """size of what it makes, scales included"""

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Can a tensor of this shape be quantised?"""
        ...

    def quantise(self, bits: Bits, dtype: str) -> dict[str, Part]:
        """Suffix of the name -> part; "" is the tensor itself. Refused for a dtype that is no float of 16 or 32 bits."""
        ...

    def dequantise(self, parts: Mapping[str, Array]) -> npt.NDArray[np.float64]:
        """The values that the parts stand for, exactly; for tests and error bounds."""
        ...


class QuantiseRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tensors are quantised. The others pass as they are."""

    keep: tuple[str, ...] = ("*embed*", "lm_head*", "*norm*", "*.gate.weight", "*router*", "*shared_expert_gate*")
    """name patterns (of a shell) that are left alone: few weights, much damage; () = no name is"""
    dims: tuple[int, ...] = (2,)
    """numbers of dimensions that are quantised; 3 = experts stacked in one tensor, or convolutions: see `keep`"""

    def takes(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:
        if len(shape) not in self.dims or dtype not in SOURCES:
            return False
        return not any(fnmatchcase(name, pattern) for pattern in self.keep)


class Quantised(NamedTuple):
    """A state as an engine holds it, to be published as a stream of its own."""

    state: dict[str, Array]
    dtypes: dict[str, str]


def quantise(
    state: State, dtypes: Mapping[str, str], quantiser: Quantiser, rule: QuantiseRule | None = None
) -> Quantised:
    """The whole state through `quantiser`, as far as `rule` (None = its defaults) and the shapes allow.

    A tensor that is left alone is the very array that was given. Refused when a scale's name is taken already.
    """
    check_state(state, dtypes)
    rule = rule or QuantiseRule()
    made: dict[str, Array] = {}
    kinds: dict[str, str] = {}
    for name, array in state.items():
        chosen = rule.takes(name, array.shape, dtypes[name]) and quantiser.fits(array.shape)
        parts = quantiser.quantise(array, dtypes[name]) if chosen else {"": Part(array, dtypes[name])}
        for suffix, part in parts.items():
            if name + suffix in made or (suffix and name + suffix in state):
                raise Refused(
                    f"tensor {name + suffix!r} is there already, {quantiser.name} would write it for {name!r}: "
                    "is this state quantised already?"
                )
            made[name + suffix], kinds[name + suffix] = part
    return Quantised(made, kinds)
