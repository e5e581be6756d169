"""The nano model's own chat format: a handful of special tokens instead of JSON, so that a model of three million
parameters spends its capacity on the code.

    <|bos|><|user|>Fix main.py. ...<|end|><|bot|><|call|>replace<|arg|>main.py<|arg|>3<|arg|>    return a + b<|end|>
    <|tool|>ok<|end|><|bot|>...

Arguments are positional, in the order of the tool's schema. Tool schemas are not rendered: the model knows its tools.
Text never produces a special token, whatever it says.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from twinmill.records.tasks import Message, ToolCall, ToolSpec

from .base import Parsed, RenderError, read_json

SPECIALS = (
    "<|pad|>",
    "<|bos|>",
    "<|user|>",
    "<|bot|>",
    "<|call|>",
    "<|arg|>",
    "<|end|>",
    "<|tool|>",
    "<|sys|>",
)
_INTEGER = re.compile(r"-?[0-9]{1,18}")
"""what every reader of a log can hold"""
PAD, BOS, USER, BOT, CALL, ARG, END, TOOL, SYS = range(len(SPECIALS))


class NanoRenderer:
    def __init__(self, tokenizer: Tokenizer):
        tokenizer.encode_special_tokens = True  # text that spells a special token stays text
        for i, token in enumerate(SPECIALS):
            if tokenizer.token_to_id(token) != i:
                raise ValueError(
                    f"not a nano tokenizer: {token} should have id {i}, has {tokenizer.token_to_id(token)}"
                )
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.stop_ids, self.start_id = frozenset((END,)), BOS

    @classmethod
    def from_folder(cls, folder: str | Path) -> "NanoRenderer":
        return cls(Tokenizer.from_file(str(Path(folder) / "tokenizer.json")))

    def text_ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return [BOS, *self._say(messages, tools), BOT]

    def _say(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            if message.role == "assistant":
                ids += [BOT, *self.assistant(message, tools)]
            else:
                opener = {"user": USER, "tool": TOOL, "system": SYS}[message.role]
                ids += [opener, *self.text_ids(message.content), END]
        return ids

    def assistant(self, message: Message, tools: Sequence[ToolSpec]) -> list[int]:
        order = {tool.name: tool.parameters for tool in tools}
        ids = self.text_ids(message.content)
        for call in message.tool_calls:
            ids += [CALL, *self.text_ids(call.name)]
            for name in order.get(call.name, call.arguments):
                if name not in call.arguments:
                    raise RenderError(f"nano writes every argument of a call; this one of {call.name} has no {name!r}")
                value = call.arguments[name]
                ids += [ARG, *self.text_ids(value if isinstance(value, str) else json.dumps(value))]
        return [*ids, END]

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        ids = list(sampled_ids)
        if ids and ids[-1] == END:
            ids = ids[:-1]
        parts = _split(ids, CALL)
        content = self.decode(parts[0])
        specs = {tool.name: tool for tool in tools}
        calls = []
        for part in parts[1:]:
            name, *values = (self.decode(piece) for piece in _split(part, ARG))
            spec = specs.get(name)
            if spec is None:
                return Parsed(content=content, error=f"no tool {name!r}")
            if len(values) != len(spec.parameters):
                return Parsed(
                    content=content, error=f"{name} takes {len(spec.parameters)} arguments, not {len(values)}"
                )
            arguments: dict[str, Any] = {}
            for (key, kind), value in zip(spec.parameters.items(), values):
                if kind == "integer":
                    if not _INTEGER.fullmatch(value.strip()):
                        return Parsed(content=content, error=f"{name}: {key} must be an integer")
                    arguments[key] = int(value)
                elif kind == "json":
                    try:
                        arguments[key] = read_json(value)
                    except ValueError:
                        return Parsed(content=content, error=f"{name}: {key} must be JSON")
                else:
                    arguments[key] = value
            calls.append(ToolCall(name=name, arguments=arguments))
        return Parsed(content=content, tool_calls=tuple(calls))

    def follow(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        closed = bool(sampled_ids) and sampled_ids[-1] == END
        return [*([] if closed else [END]), *self._say(messages, tools), BOT]

    def observe(self, sampled_ids: Sequence[int], observations: Sequence[str]) -> list[int]:
        return self.follow(sampled_ids, [Message(role="tool", content=text) for text in observations], ())


def _split(ids: Sequence[int], at: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for i in ids:
        if i == at:
            parts.append([])
        else:
            parts[-1].append(i)
    return parts
