"""Which implementation works: the native extension in one of its paths, or the reference."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from . import extension, reference
from .layout import Bits
from .patch import Patch
from .tables import Tables

if TYPE_CHECKING:
    from .statistics import Statistics


class Engine(Protocol):
    """What both implementations can do; `tile.py`, `digest.py` and `statistics.py` check the arguments."""

    def compare(self, before: Bits, after: Bits) -> Patch: ...
    def compare_and_advance(self, snapshot: Bits, new: Bits) -> Patch: ...
    def scatter(self, target: Bits, index: npt.NDArray[np.uint32], bits: Bits) -> None: ...
    def gather(self, into: "Statistics", before: Bits, after: Bits) -> None: ...
    def digest(self, bits: Bits) -> bytes: ...
    def advance(self, before: bytes, patch: Patch) -> bytes: ...
    def encode_body(self, before: Bits, patch: Patch, tables: Tables, kind: int) -> bytes: ...
    def decode_body(self, before: Bits, payload: bytes, tables: Tables) -> Patch: ...


REFERENCE: Final = "reference"


def backends() -> tuple[str, ...]:
    """What this machine can use, best first; the last is always the reference."""
    return (*extension.paths(), REFERENCE)


def backend() -> str:
    """What is used: avx512, avx2, portable or reference. All give the same bytes."""
    return _used


def engine() -> Engine:
    """The module that does the work."""
    return reference if _used == REFERENCE else extension


def slow() -> str:
    """One line on why deltas are slow here and what to do; "" = they are not."""
    if _used != REFERENCE:
        return ""
    return (
        "weight deltas use the NumPy reference, a hundred times slower than the native extension: "
        "install a C compiler (gcc or clang) and reinstall twinmill"
    )


@contextmanager
def using(name: str) -> Iterator[None]:
    """Use this backend inside the block, in all threads. For tests and benchmarks."""
    global _used
    if name not in backends():
        raise ValueError(f"backend {name!r}; this machine has {', '.join(backends())}")
    before = _used
    try:
        _use(name)
        yield
    finally:
        _use(before)


def _use(name: str) -> None:
    global _used
    if name != REFERENCE:
        extension.use(name)
    _used = name


_used = backends()[0]
