"""What travels on an engine's socket: length-prefixed msgpack records, many calls at once, told apart by `call`.

client                                  server
Call(call=7, body=GenerateRequest) -->
                                   <--  Answer(call=7, body=Generation | Refusal)
Drop(call=7)                       -->  (the caller gave up: stop working on it)
"""

import asyncio
import struct
from enum import Enum

from twinmill.records import wire
from twinmill.records.base import Record
from twinmill.records.engines import EngineState, GenerateRequest, Generation, ScoreRequest, Scores

MAX_FRAME = 256 * 2**20
_LENGTH = struct.Struct("<I")


class StateRequest(Record):
    """How are you? Also the client's way to see that a silent engine is alive."""


class Call(Record):
    call: int
    body: GenerateRequest | ScoreRequest | StateRequest


class Drop(Record):
    call: int


class RefusalKind(Enum):
    LOST = "lost"
    """EngineError"""
    TOO_LONG = "too_long"
    """ContextTooLong"""


class Refusal(Record):
    kind: RefusalKind
    message: str


class Answer(Record):
    call: int
    body: Generation | Scores | EngineState | Refusal


def encode(record: Record) -> bytes:
    data = wire.pack(record)
    return _LENGTH.pack(len(data)) + data


async def read(stream: asyncio.StreamReader, kind: type) -> Record | None:
    """The next record, of `kind` (a Record or a union of them); None = the other side is gone. WireError on rubbish."""
    try:
        (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
        if length > MAX_FRAME:
            raise wire.WireError(
                f"a frame of {length} bytes; at most {MAX_FRAME} are taken: is this an engine's socket?"
            )
        data = await stream.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return wire.unpack(data, kind)
