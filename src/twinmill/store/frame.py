"""One payload per object, sealed with its length, a checksum and the key it was written to.

So a truncated object, a flipped bit, and a good object copied to a wrong key are all seen as Corrupt.

    bytes 0-3    b"TWM1"
    bytes 4-11   length of the payload, little endian
    bytes 12-27  first 16 bytes of BLAKE3(key, 0x00, payload)
    bytes 28-    the payload
"""

import struct
from typing import TypeVar

from blake3 import blake3

from twinmill.records import wire
from twinmill.records.base import Record

from .errors import Corrupt

_HEAD = struct.Struct("<4sQ16s")
_MAGIC = b"TWM1"
R = TypeVar("R")


def _checksum(key: str, payload: bytes) -> bytes:
    return blake3(key.encode() + b"\0" + payload).digest(length=16)


def seal(key: str, payload: bytes) -> bytes:
    """The bytes to store at `key`."""
    return _HEAD.pack(_MAGIC, len(payload), _checksum(key, payload)) + payload


def unseal(key: str, data: bytes) -> bytes:
    """The payload that was sealed for `key`; Corrupt when `data` is anything else."""
    if len(data) < _HEAD.size:
        raise Corrupt(key, f"{len(data)} bytes, a frame alone has {_HEAD.size}")
    magic, length, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise Corrupt(key, f"starts with {magic!r}, not {_MAGIC!r}")
    payload = data[_HEAD.size :]
    if len(payload) != length:
        raise Corrupt(key, f"payload of {len(payload)} bytes, {length} were written")
    if _checksum(key, payload) != checksum:
        raise Corrupt(key, "checksum differs: changed after it was written, or written for another key")
    return payload


def seal_record(key: str, record: Record) -> bytes:
    return seal(key, wire.pack(record))


def unseal_record(key: str, data: bytes, kind: type[R]) -> R:
    """The record that was sealed for `key`; Corrupt also when a sound frame holds another type."""
    try:
        return wire.unpack(unseal(key, data), kind)
    except wire.WireError as error:
        raise Corrupt(key, str(error)) from error
