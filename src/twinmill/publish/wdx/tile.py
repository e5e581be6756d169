"""One tile: what changed in it as bytes, and back. The first byte says how it was written.

The encoder takes the smallest of the allowed kinds. RAW and PLANES do not depend on what was there before; they are
tried only where the entropy coded kinds save little, as on the first sync.
"""

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard

from ..errors import CodecError
from . import native
from .layout import LAYOUTS, TILE_MAX, Bits
from .patch import Patch
from .tables import Tables


class Kind(IntEnum):
    EMPTY = 0
    """nothing changed"""
    RAW = 1
    """all new bits, little endian"""
    PLANES = 2
    """all new bits, one zstd frame of byte planes"""
    CLASSES = 3
    """codec 1: positions and differences by class of the old exponent; the reader scans the old bits of the tile"""
    FLAT = 4
    """codec 2: gaps and differences; the reader looks at the old bits of changed elements only. Larger, decodes faster"""


ALLOWED: Final = frozenset({Kind.EMPTY, Kind.RAW, Kind.PLANES, Kind.CLASSES})
"""across regions; inside a rack allow FLAT instead of CLASSES"""
_SAVES_LITTLE: Final = 0.5
"""share of the raw bytes from which RAW and PLANES are tried as well"""


def compare(before: Bits, after: Bits) -> Patch:
    """What changed between two flat arrays of the same width and at most 2^20 elements."""
    _check_pair(before, after)
    return native.engine().compare(before, after)


def compare_and_advance(snapshot: Bits, new: Bits) -> Patch:
    """The same in one pass that also writes `new` over the snapshot; `patch.undo()` is the way back."""
    _check_pair(snapshot, new)
    return native.engine().compare_and_advance(snapshot, new)


def apply(patch: Patch, target: Bits) -> None:
    """Write the new bits. Idempotent. IndexError, with nothing written, when a position lies outside of `target`."""
    write(target, patch.index, patch.new)


def write(target: Bits, index: npt.NDArray[np.uint32], new: Bits) -> None:
    """`target[index] = new`, for rising positions; as `apply`."""
    if len(index) and int(index[-1]) >= target.size:
        raise IndexError(f"a patch for position {int(index[-1])} of a tile of {target.size} elements")
    native.engine().scatter(target, index, new)


def encode_tile(before: Bits, after: Bits, tables: Tables, allow: Collection[Kind] = ALLOWED) -> bytes:
    """A payload from which decode_tile(before, ...) finds what changed."""
    return encode_patch(before, compare(before, after), tables, allow)


def encode_patch(before: Bits, patch: Patch, tables: Tables, allow: Collection[Kind] = ALLOWED) -> bytes:
    """encode_tile where the patch is known already. `before` holds the old bits: the snapshot has not advanced yet."""
    _check_tile(before, tables)
    if not len(patch) and Kind.EMPTY in allow:
        return bytes([Kind.EMPTY])
    found = []
    if len(patch):
        body = native.engine().encode_body
        found = [body(before, patch, tables, kind) for kind in (Kind.CLASSES, Kind.FLAT) if kind in allow]
    if not found or min(map(len, found)) > _SAVES_LITTLE * before.nbytes:
        after = before.copy()
        after[patch.index] = patch.new
        if Kind.PLANES in allow:
            found.append(bytes([Kind.PLANES]) + zstandard.ZstdCompressor(level=1).compress(_planes(after)))
        if Kind.RAW in allow:
            found.append(bytes([Kind.RAW]) + after.tobytes())
    if not found:
        raise ValueError(f"no allowed kind can hold this tile; allowed are {sorted(allow)}")
    return min(found, key=len)


def decode_tile(before: Bits, payload: bytes | memoryview, tables: Tables) -> Patch:
    """What changed; `before` is only read. CodecError for bytes that encode_tile does not write; bytes that a wrong base
    makes seem right are found by the digest."""
    _check_tile(before, tables)
    payload = bytes(payload)
    if not payload:
        raise CodecError("a tile without its kind")
    kind = payload[0]
    if kind in (Kind.CLASSES, Kind.FLAT):
        return native.engine().decode_body(before, payload, tables)
    if kind not in _WHOLE:
        raise CodecError(f"tile of kind {kind}; this reader knows {', '.join(map(str, Kind))}")
    return _WHOLE[kind](before, payload[1:])


def _read_empty(before: Bits, body: bytes) -> Patch:
    if body:
        raise CodecError(f"{len(body)} bytes in an empty tile")
    return Patch(np.zeros(0, np.uint32), before[:0].copy(), before[:0].copy())


def _read_raw(before: Bits, body: bytes) -> Patch:
    if len(body) != before.nbytes:
        raise CodecError(f"{len(body)} bytes for a tile of {before.nbytes}")
    return native.engine().compare(before, np.frombuffer(body, before.dtype).copy())


def _read_planes(before: Bits, body: bytes) -> Patch:
    try:
        claimed = zstandard.get_frame_parameters(body).content_size
        if claimed != before.nbytes:  # before anything is allocated
            raise CodecError(f"planes of {claimed} bytes for a tile of {before.nbytes}")
        data = zstandard.ZstdDecompressor().decompress(body, max_output_size=before.nbytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"planes are no zstd frame: {error}") from error
    if len(data) != before.nbytes:
        raise CodecError(f"planes of {len(data)} bytes for a tile of {before.nbytes}")
    octets = np.frombuffer(data, np.uint8).reshape(before.itemsize, before.size)
    return native.engine().compare(before, np.ascontiguousarray(octets.T).view(before.dtype).reshape(-1))


_WHOLE: Final[Mapping[int, Callable[[Bits, bytes], Patch]]] = {
    Kind.EMPTY: _read_empty,
    Kind.RAW: _read_raw,
    Kind.PLANES: _read_planes,
}


def _planes(bits: Bits) -> bytes:
    """Byte j of every element in plane j, low plane first."""
    return bits.view(np.uint8).reshape(bits.size, bits.itemsize).T.tobytes()


def _check_tile(bits: Bits, tables: Tables) -> None:
    if bits.itemsize != LAYOUTS[tables.dtype].width:
        raise ValueError(f"elements of {bits.itemsize} bytes with tables for {tables.dtype}")
    _check(bits)


def _check_pair(before: Bits, after: Bits) -> None:
    _check(before)
    if before.dtype != after.dtype or before.shape != after.shape:
        raise ValueError(f"{before.dtype}{before.shape} against {after.dtype}{after.shape}: not the same tile")
    _check(after)


def _check(bits: Bits) -> None:
    if bits.dtype.kind != "u" or bits.itemsize > 4 or bits.ndim != 1 or not bits.flags.c_contiguous:
        raise ValueError(f"a tile is a flat contiguous array of u8, u16 or u32, not {bits.dtype}{bits.shape}")
    if not 1 <= bits.size <= TILE_MAX:
        raise ValueError(f"a tile of {bits.size} elements; 1 to {TILE_MAX} are allowed")
