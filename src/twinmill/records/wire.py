"""The only serializer: msgpack for logs and sockets, JSON for people. Unknown fields and wrong types are refused."""

from typing import Any, TypeVar

import msgspec
import numpy as np

from .base import Record

R = TypeVar("R")


class WireError(ValueError):
    """Bytes that are not the record they should be. The message names the type and the field."""


def _enc(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": np.ascontiguousarray(value).tobytes()}
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"cannot serialize {type(value).__name__}")


def _dec(kind: type, value: Any) -> Any:
    if isinstance(value, dict) and "dtype" in value:
        return np.frombuffer(value["data"], value["dtype"]).reshape(value["shape"])
    raise NotImplementedError(f"cannot read {kind}")


_packer = msgspec.msgpack.Encoder(enc_hook=_enc, order="deterministic")
_json = msgspec.json.Encoder(enc_hook=_enc, order="deterministic")


def pack(record: Record) -> bytes:
    """Deterministic: equal records give equal bytes, which is what makes a repeated append idempotent."""
    return _packer.encode(record)


def unpack(data: bytes, kind: type[R]) -> R:
    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=_dec)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise WireError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


def to_json(record: Any) -> bytes:
    return _json.encode(record)


def from_json(data: bytes | str, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_dec)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WireError(f"not a {getattr(kind, '__name__', kind)}: {error}") from error
