"""Messages <-> token ids, one file per model family. What was sampled is never re-tokenized."""

from collections.abc import Sequence
from typing import Protocol

from twinmill.records.base import Record
from twinmill.records.tasks import Message, ToolCall, ToolSpec


class Parsed(Record):
    """What sampled ids say. `error` is the model's own mistake in words it can act on; None = well formed."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    error: str | None = None


class Renderer(Protocol):
    vocab_size: int
    stop_ids: frozenset[int]
    start_id: int
    """stands before every document of a corpus"""

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a fresh context, ending where the assistant speaks."""
        ...

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed: ...

    def observe(self, sampled_ids: Sequence[int], observations: Sequence[str]) -> list[int]:
        """Ids appended after a sampled turn: closes the turn if no stop token was sampled, gives one tool result per
        call, and ends where the assistant speaks again. Never re-renders what was sampled."""
        ...

    def assistant(self, message: Message, tools: Sequence[ToolSpec]) -> list[int]:
        """Ids that a model would sample to say `message`, stop token included (for SFT and the scripted engine)."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...
