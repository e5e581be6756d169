"""Messages <-> token ids, one file per model family. What was sampled is never re-tokenized."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from twinmill.records.base import Record
from twinmill.records.tasks import Message, ToolCall, ToolSpec


class Parsed(Record):
    """What sampled ids say. `error` is the model's own mistake in words it can act on; None = well formed."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    error: str | None = None


class RenderError(ValueError):
    """Messages that this family's format cannot say. In words for whoever wrote them."""


def read_json(text: str) -> Any:
    """A JSON value that every log can hold: msgpack has no integers of more than 64 bits and no bottomless nesting. ValueError
    says what is wrong."""
    try:
        value = msgspec.json.decode(text.encode())
        msgspec.msgpack.encode(value)
    except (msgspec.DecodeError, msgspec.ValidationError, OverflowError, RecursionError, UnicodeError) as error:
        raise ValueError(str(error)) from error
    return value


class Renderer(Protocol):
    vocab_size: int
    stop_ids: frozenset[int]
    start_id: int
    """stands before every document of a corpus"""

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a fresh context, ending where the assistant speaks."""
        ...

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed: ...

    def follow(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids appended after a sampled turn: closes the turn if no stop token was sampled, says `messages`, and ends where
        the assistant speaks again. Never re-renders what was sampled."""
        ...

    def observe(self, sampled_ids: Sequence[int], observations: Sequence[str]) -> list[int]:
        """`follow` with one tool result per call."""
        ...

    def assistant(self, message: Message, tools: Sequence[ToolSpec]) -> list[int]:
        """Ids that a model would sample to say `message`, stop token included (for SFT and the scripted engine)."""
        ...

    def text_ids(self, text: str) -> list[int]:
        """Ids of plain text: no special token, whatever it spells."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...
