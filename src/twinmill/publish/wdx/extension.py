"""The native extension behind the same functions as reference.py. Without it there are no paths, and nothing else works."""

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from ..errors import CodecError
from .layout import LAYOUTS, Bits
from .patch import Patch
from .tables import Tables

try:
    from . import _wdx  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # installed where no compiler was
    _native: Any = None
else:
    _native = _wdx

if TYPE_CHECKING:
    from .statistics import Statistics

REASONS: Final = (
    "fine",
    "no memory",
    "too short for its states",
    "the words end too early",
    "the bits end too early",
    "the states do not end where they must",
    "bits behind the end",
    "bytes between the words and the bits, or one taken twice",
    "more changes than elements",
    "a change behind the end",
    "a tile of changes without a change",
    "a change that changes nothing",
    "a change behind the end of a class",
    "an unknown kind of tile",
    "a patch of another tile",
)
"""in the order of `enum reason` in _format.h"""


def paths() -> tuple[str, ...]:
    """What this machine can run, fastest first; empty = the extension was not built."""
    return tuple(_native.paths()) if _native else ()


def use(path: str) -> None:
    _native.use(path)


def compare(before: Bits, after: Bits) -> Patch:
    return _patch(_native.compare(before, after, before.itemsize), before)


def compare_and_advance(snapshot: Bits, new: Bits) -> Patch:
    return _patch(_native.compare_and_advance(snapshot, new, snapshot.itemsize), snapshot)


def scatter(target: Bits, index: npt.NDArray[np.uint32], bits: Bits) -> None:
    _native.scatter(target, index, bits, target.itemsize)


def gather(into: "Statistics", before: Bits, after: Bits) -> None:
    layout = LAYOUTS[into.dtype]
    counts = (into.seen, into.changed, into.gaps, into.holes, into.nibbles, into.values, into.flat)
    _native.gather(*counts, before, after, layout.width, layout.shift, layout.exponents)


def digest(bits: Bits) -> bytes:
    return cast(bytes, _native.digest(bits, bits.itemsize))


def advance(before: bytes, patch: Patch) -> bytes:
    return cast(bytes, _native.advance(before, patch.index, patch.old, patch.new, patch.old.itemsize))


def encode_body(before: Bits, patch: Patch, tables: Tables, kind: int) -> bytes:
    return cast(bytes, _native.encode_body(_prepared(tables), before, patch.index, patch.old, patch.new, kind))


def decode_body(before: Bits, payload: bytes, tables: Tables) -> Patch:
    found = _native.decode_body(_prepared(tables), before, payload)
    if isinstance(found, int):
        raise CodecError(REASONS[found])
    return _patch(found, before)


def _patch(arrays: tuple[bytearray, bytearray, bytearray], like: Bits) -> Patch:
    index, old, new = arrays
    return Patch(np.frombuffer(index, np.uint32), np.frombuffer(old, like.dtype), np.frombuffer(new, like.dtype))


def _prepared(tables: Tables) -> object:
    """Ready to code with, made once per tables."""
    held = vars(tables)
    if "_prepared" not in held:
        layout = tables.layout
        held["_prepared"] = _native.prepare(
            layout.width,
            layout.shift,
            layout.exponents,
            tables.first,
            tables.classes,
            bytes(tables.modes),
            tables.chances,
            tables.positions,
            tables.values,
        )
    return cast(object, held["_prepared"])
