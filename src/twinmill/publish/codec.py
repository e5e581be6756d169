"""How one tensor's change becomes bytes. Every codec is exact for every bit pattern.

A codec sees flat unsigned bits. For a full version `before` is a blank (all zero) of the right length, so
that a full version is nothing but a patch on the blank state.

Decoders trust nothing in a payload: each count and length is bounded by the tensor's size before it is
used, and whatever does not add up raises CodecError. What adds up but is wrong is found by the tensor's
digest.
"""

import struct
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zstandard

from .errors import CodecError as CodecError
from .tensors import Bits


class Codec(Protocol):
    name: str

    def encode(self, before: Bits, after: Bits) -> bytes: ...

    def decode(self, before: Bits, payload: bytes | memoryview) -> Bits:
        """New bits; `before` is left as it is (and is returned itself when nothing changed)."""
        ...


class Raw:
    """The bits themselves, little endian."""

    name = "raw"

    def encode(self, before: Bits, after: Bits) -> bytes:
        return after.tobytes()

    def decode(self, before: Bits, payload: bytes | memoryview) -> Bits:
        if len(payload) != before.nbytes:
            raise CodecError(f"{len(payload)} bytes for a tensor of {before.nbytes}")
        bits: Bits = np.frombuffer(payload, before.dtype)
        return bits if bits.flags.aligned else bits.copy()


class Same:
    """Nothing changed, no payload."""

    name = "same"

    def encode(self, before: Bits, after: Bits) -> bytes:
        if not np.array_equal(before, after):
            raise ValueError("codec 'same' was given two different tensors")
        return b""

    def decode(self, before: Bits, payload: bytes | memoryview) -> Bits:
        if len(payload):
            raise CodecError(f"{len(payload)} bytes where none are wanted")
        return before


class Gaps:
    """Where bits changed, as gaps between positions; how they changed, as wrapping differences; zstd over both.

    RL moves about one weight in a hundred per step, mostly by a unit in the last place: gaps fit one or two
    bytes and zigzagged differences are tiny. Byte planes put the (mostly zero) high bytes side by side.

        u8   gap width w in bytes: 1, 2, 4 or 8 u64  number of changes k, little endian one zstd frame of: w
        planes of k bytes (gap - 1 of each change from the one before, low plane first), then itemsize
        planes of k bytes (zigzag of after - before modulo 2^bits, low plane first)
    """

    name = "gaps"
    _head = struct.Struct("<BQ")

    def encode(self, before: Bits, after: Bits) -> bytes:
        where = np.flatnonzero(before != after)
        gaps = np.diff(where, prepend=-1).astype(np.uint64) - np.uint64(1)
        largest = int(gaps.max(initial=0))
        width = next(w for w in (1, 2, 4, 8) if largest < 1 << 8 * w)
        body = _planes(gaps, width) + _planes(_zigzag(after[where] - before[where]), after.itemsize)
        return self._head.pack(width, len(where)) + zstandard.ZstdCompressor(level=1).compress(body)

    def decode(self, before: Bits, payload: bytes | memoryview) -> Bits:
        if len(payload) < self._head.size:
            raise CodecError(f"{len(payload)} bytes, the head alone has {self._head.size}")
        width, count = self._head.unpack_from(payload)
        if width not in (1, 2, 4, 8) or count > before.size:
            raise CodecError(f"gap width {width}, {count} changes in a tensor of {before.size} elements")
        body = _decompress(payload[self._head.size :], count * (width + before.itemsize))
        gaps = _unplanes(body[: count * width], width)
        if count and int(gaps.max()) >= before.size:
            raise CodecError(f"a gap of {int(gaps.max())} in a tensor of {before.size} elements")
        where = np.cumsum(gaps.astype(np.int64) + 1) - 1
        if count and int(where[-1]) >= before.size:
            raise CodecError(f"position {int(where[-1])} in a tensor of {before.size} elements")
        after = before.copy()
        after[where] += _unzigzag(_unplanes(body[count * width :], before.itemsize).astype(before.dtype))
        return after


def _planes(values: npt.NDArray[Any], width: int) -> bytes:
    """The low `width` bytes of each value, byte by byte: all lowest bytes first."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    octets = little.view(np.uint8).reshape(len(values), values.itemsize)
    return octets[:, :width].T.tobytes()


def _unplanes(data: bytes, width: int) -> npt.NDArray[Any]:
    octets = np.frombuffer(data, np.uint8).reshape(width, len(data) // width).T
    return np.ascontiguousarray(octets).view(f"<u{width}").reshape(-1)


def _zigzag(difference: Bits) -> Bits:
    """Small steps up and down become small numbers: 0, -1, 1, -2 -> 0, 1, 2, 3; exact modulo 2^bits."""
    top = difference.dtype.type(difference.itemsize * 8 - 1)
    one = difference.dtype.type(1)
    return (difference << one) ^ (np.zeros_like(difference) - (difference >> top))


def _unzigzag(folded: Bits) -> Bits:
    one = folded.dtype.type(1)
    return (folded >> one) ^ (np.zeros_like(folded) - (folded & one))


def _decompress(frame: bytes | memoryview, want: int) -> bytes:
    """One zstd frame of exactly `want` bytes. The size it claims is checked before anything is allocated."""
    try:
        claimed = zstandard.get_frame_parameters(frame).content_size
        if claimed != want:
            raise CodecError(f"body claims {claimed} bytes, {want} are wanted")
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=max(want, 1), allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"body is no zstd frame: {error}") from error
    if len(data) != want:
        raise CodecError(f"body holds {len(data)} bytes, {want} are wanted")
    return data


CODECS: Mapping[str, Codec] = {codec.name: codec for codec in (Raw(), Same(), Gaps())}
