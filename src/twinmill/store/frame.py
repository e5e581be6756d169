"""One payload per object, sealed with its length, a checksum and the key it was written to.

So a truncated object, a flipped bit, and a good object copied to a wrong key are all seen as Corrupt.
Payloads that zstd makes smaller are stored so; nothing is decompressed before its checksum matched.

    bytes 0-3    b"TWM1" payload as it is, b"TWZ1" payload as one zstd frame
    bytes 4-11   length of what is stored, little endian
    bytes 12-19  length of the payload itself, little endian
    bytes 20-35  first 16 bytes of BLAKE3(key, 0x00, bytes 0-19, what is stored)
    bytes 36-    what is stored
"""

import struct
from typing import TypeVar

import zstandard
from blake3 import blake3

from twinmill.records import wire
from twinmill.records.base import Record

from .errors import Corrupt

_LENGTHS = struct.Struct("<4sQQ")
_CHECKSUM_BYTES = 16
HEAD_BYTES = _LENGTHS.size + _CHECKSUM_BYTES
_PLAIN, _ZSTD = b"TWM1", b"TWZ1"
R = TypeVar("R")


def _checksum(key: str, lengths: bytes, stored: bytes) -> bytes:
    return blake3(key.encode() + b"\0" + lengths).update(stored).digest(length=_CHECKSUM_BYTES)


def seal(key: str, payload: bytes) -> bytes:
    """The bytes to store at `key`. Equal payloads give equal bytes."""
    squeezed = zstandard.ZstdCompressor(level=1).compress(payload)
    magic, stored = (_ZSTD, squeezed) if len(squeezed) < len(payload) else (_PLAIN, payload)
    lengths = _LENGTHS.pack(magic, len(stored), len(payload))
    return lengths + _checksum(key, lengths, stored) + stored


def unseal(key: str, data: bytes) -> bytes:
    """The payload that was sealed for `key`; Corrupt when `data` is anything else."""
    if len(data) < HEAD_BYTES:
        raise Corrupt(key, f"{len(data)} bytes, a frame's head alone has {HEAD_BYTES}")
    magic, stored_bytes, payload_bytes = _LENGTHS.unpack_from(data)
    if magic not in (_PLAIN, _ZSTD):
        raise Corrupt(key, f"starts with {magic!r}, not {_PLAIN!r} or {_ZSTD!r}")
    stored = data[HEAD_BYTES:]
    if len(stored) != stored_bytes:
        raise Corrupt(key, f"{len(stored)} bytes behind the head, {stored_bytes} were written")
    if _checksum(key, data[: _LENGTHS.size], stored) != data[_LENGTHS.size : HEAD_BYTES]:
        raise Corrupt(key, "checksum differs: changed after it was written, or written for another key")
    if magic == _PLAIN:
        return stored
    try:
        payload = zstandard.ZstdDecompressor().decompress(stored, max_output_size=payload_bytes)
    except zstandard.ZstdError as error:
        raise Corrupt(key, f"not a zstd frame: {error}") from error
    if len(payload) != payload_bytes:
        raise Corrupt(key, f"payload of {len(payload)} bytes, {payload_bytes} were written")
    return payload


def seal_record(key: str, record: Record) -> bytes:
    return seal(key, wire.pack(record))


def unseal_record(key: str, data: bytes, kind: type[R]) -> R:
    """The record that was sealed for `key`; Corrupt also when a sound frame holds another type."""
    try:
        return wire.unpack(unseal(key, data), kind)
    except wire.WireError as error:
        raise Corrupt(key, str(error)) from error
