"""Layouts that others have published for sparse updates of bf16 weights, written again from their descriptions, without tuning.

Each takes the weights before and after, by tensor, and gives the bytes that would cross the link; and back. They are
yardsticks of size, and of speed as far as NumPy and zstd go. No checksums: what verification costs is not compared here.

raw      flat positions as int32 and new bits, per tensor                 TRL, vLLM sparse, verl
xor      zstd-1 of old xor new, per tensor                                slime (xor), Fireworks arc_v2
pulse    rows and columns as differences, new bits; one zstd-1 frame      PULSE / grail v3.1 (arXiv 2602.03839)
nemo     gaps between flat positions, u16 where they fit, xor of bits;    NeMo-RL sparse refit
         zstd-1 per tensor
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import zstandard

Bits = npt.NDArray[np.uint16]
State = Mapping[str, Bits]
Wire = dict[str, tuple[bytes, ...]]
"""tensor -> its pieces; "" for what all tensors share. Names and lengths are not counted: every layout needs them"""


class Layout(Protocol):
    def encode(self, before: State, after: State) -> Wire: ...

    def decode(self, before: State, wire: Wire) -> dict[str, Bits]: ...


def size(wire: Wire) -> int:
    return sum(len(piece) for pieces in wire.values() for piece in pieces)


def _changed(before: Bits, after: Bits) -> tuple[npt.NDArray[np.intp], Bits]:
    where = np.flatnonzero(before.reshape(-1) != after.reshape(-1))
    return where, after.reshape(-1)[where]


def _with(before: Bits, where: npt.NDArray, new: Bits) -> Bits:
    found = before.copy()
    found.reshape(-1)[where] = new
    return found


def _zstd(data: bytes | memoryview) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(data)


def _unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


class Raw:
    def encode(self, before: State, after: State) -> Wire:
        wire = {}
        for name in before:
            where, new = _changed(before[name], after[name])
            wire[name] = (where.astype("<i4").tobytes(), new.tobytes())
        return wire

    def decode(self, before: State, wire: Wire) -> dict[str, Bits]:
        pieces = ((name, np.frombuffer(wire[name][0], "<i4"), np.frombuffer(wire[name][1], "<u2")) for name in before)
        return {name: _with(before[name], where, new) for name, where, new in pieces}


class Xor:
    def encode(self, before: State, after: State) -> Wire:
        return {name: (_zstd((before[name] ^ after[name]).data),) for name in before}

    def decode(self, before: State, wire: Wire) -> dict[str, Bits]:
        return {
            name: bits ^ np.frombuffer(_unzstd(wire[name][0]), "<u2").reshape(bits.shape)
            for name, bits in before.items()
        }


class Pulse:
    """Columns are differences within a row, absolute at its start; rows are u8 where all their differences fit."""

    def encode(self, before: State, after: State) -> Wire:
        pieces, counts = list[bytes](), list[int]()
        for name, bits in before.items():
            where, new = _changed(bits, after[name])
            rows, columns = np.divmod(where, bits.shape[-1])
            down = np.diff(rows, prepend=0)
            along = np.where(np.diff(rows, prepend=-1) > 0, columns, np.diff(columns, prepend=0))
            narrow = down.max(initial=0) <= 255 and along.max(initial=0) <= 65535
            kinds = ("<u1", "<u2") if narrow else ("<i4", "<i4")
            pieces += [
                bytes([int(narrow)]),
                down.astype(kinds[0]).tobytes(),
                along.astype(kinds[1]).tobytes(),
                new.tobytes(),
            ]
            counts.append(len(where))
        return {"": (np.array(counts, "<u4").tobytes(), _zstd(b"".join(pieces)))}

    def decode(self, before: State, wire: Wire) -> dict[str, Bits]:
        counts, data = np.frombuffer(wire[""][0], "<u4"), _unzstd(wire[""][1])
        found, at = {}, 0
        for (name, bits), count in zip(before.items(), counts.tolist()):
            narrow, at = data[at], at + 1
            down = np.frombuffer(data, "<u1" if narrow else "<i4", count, at)
            at += down.nbytes
            along = np.frombuffer(data, "<u2" if narrow else "<i4", count, at)
            at += along.nbytes
            new = np.frombuffer(data, "<u2", count, at)
            at += new.nbytes
            rows = np.cumsum(down, dtype=np.int64)
            begins = np.diff(rows, prepend=-1) > 0
            total = np.cumsum(along, dtype=np.int64)
            base = np.maximum.accumulate(np.where(begins, np.arange(count), 0)) if count else rows
            columns = total - (total - along)[base]
            found[name] = _with(bits, rows * bits.shape[-1] + columns, new)
        return found


class Nemo:
    def encode(self, before: State, after: State) -> Wire:
        wire = {}
        for name, bits in before.items():
            where, new = _changed(bits, after[name])
            gaps = np.diff(where, prepend=-1) - 1
            kind = "<u2" if gaps.max(initial=0) <= 65535 else "<u4"
            change = new ^ bits.reshape(-1)[where]
            wire[name] = (kind[2:].encode(), _zstd(gaps.astype(kind).tobytes() + change.tobytes()))
        return wire

    def decode(self, before: State, wire: Wire) -> dict[str, Bits]:
        found = {}
        for name, bits in before.items():
            width, data = int(wire[name][0]), _unzstd(wire[name][1])
            count = len(data) // (width + 2)
            where = np.cumsum(np.frombuffer(data, f"<u{width}", count).astype(np.int64) + 1) - 1
            change = np.frombuffer(data, "<u2", count, width * count)
            found[name] = _with(bits, where, bits.reshape(-1)[where] ^ change)
        return found


LAYOUTS: Mapping[str, Layout] = {"raw": Raw(), "xor+zstd": Xor(), "PULSE": Pulse(), "NeMo": Nemo()}
