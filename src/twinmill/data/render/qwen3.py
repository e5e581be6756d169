"""Qwen3: ChatML with Hermes tool calls, as the family's own chat template writes them (thinking off).

What was sampled is never rendered again: a turn's ids are kept, and `observe` only appends.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from twinmill.records.tasks import Message, ToolCall, ToolSpec

from .base import Parsed, read_json

_PREAMBLE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_USAGE = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_NO_THINKING = "<think>\n\n</think>\n\n"


def _schema(tool: ToolSpec) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in tool.parameters.items()}
    parameters = tool.schema or {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


class Qwen3Renderer:
    """Needs a tokenizer with <|im_start|>, <|im_end|>; text never produces them."""

    opening = _NO_THINKING
    """what stands at the start of every answer"""

    def __init__(self, tokenizer: Tokenizer):
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._start, self._end = (self._special(token) for token in ("<|im_start|>", "<|im_end|>"))
        self.vocab_size = tokenizer.get_vocab_size()
        eot = tokenizer.token_to_id("<|endoftext|>")
        self.stop_ids = frozenset(i for i in (self._end, eot) if i is not None)
        self.start_id = self._end if eot is None else eot
        # Markup tokens that the template itself writes; ordinary text that spells them is kept as text.
        self._markup = {token: i for token in _MARKUP if (i := tokenizer.token_to_id(token)) is not None}

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Qwen3Renderer":
        return cls(Tokenizer.from_file(str(Path(folder) / "tokenizer.json")))

    def _special(self, token: str) -> int:
        if (i := self._tokenizer.token_to_id(token)) is None:
            raise ValueError(f"not a ChatML tokenizer: it has no {token}")
        return i

    def text_ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _template_ids(self, text: str) -> list[int]:
        """Ids of template text, in which markup tokens are tokens."""
        for token, i in self._markup.items():
            if token in text:
                before, after = text.split(token, 1)
                return [*self._template_ids(before), i, *self._template_ids(after)]
        return self.text_ids(text) if text else []

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _block(self, role: str, body: list[int]) -> list[int]:
        return [self._start, *self.text_ids(role + "\n"), *body, self._end, *self.text_ids("\n")]

    def _opener(self) -> list[int]:
        return [self._start, *self.text_ids("assistant\n"), *self._template_ids(self.opening)]

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        rest = list(messages)
        system = rest.pop(0).content if rest and rest[0].role == "system" else ""
        ids: list[int] = []
        if tools:
            lines = "".join("\n" + json.dumps(_schema(tool), ensure_ascii=False) for tool in tools)
            text = (system + "\n\n" if system else "") + _PREAMBLE
            ids += self._block("system", [*self.text_ids(text + lines), *self._usage_ids()])
        elif system:
            ids += self._block("system", self.text_ids(system))
        return [*ids, *self._say(rest, tools), *self._opener()]

    def _say(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        ids: list[int] = []
        for role, together in groupby(messages, key=lambda message: message.role):
            if role == "tool":  # neighbouring results share one block
                parts = [self._response(message.content) for message in together]
                ids += self._block("user", [i for k, part in enumerate(parts) for i in (*self._gap(k), *part)])
                continue
            for message in together:
                body = self.text_ids(message.content) if role != "assistant" else self.assistant(message, tools)[:-1]
                ids += self._block(role, body)
        return ids

    def _gap(self, k: int) -> list[int]:
        return self.text_ids("\n") if k else []

    def _usage_ids(self) -> list[int]:
        return self._template_ids(_USAGE)

    def _response(self, text: str) -> list[int]:
        return [
            *self._template_ids("<tool_response>\n"),
            *self.text_ids(text),
            *self._template_ids("\n</tool_response>"),
        ]

    def assistant(self, message: Message, tools: Sequence[ToolSpec]) -> list[int]:
        ids = self.text_ids(message.content) if message.content else []
        for k, call in enumerate(message.tool_calls):
            body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
            lead = "\n<tool_call>\n" if k or message.content else "<tool_call>\n"
            ids += [*self._template_ids(lead), *self.text_ids(body), *self._template_ids("\n</tool_call>")]
        return [*ids, self._end]

    def parse(self, sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Parsed:
        ids = [i for i in sampled_ids if i not in self.stop_ids]
        text = self.decode(ids)
        specs = {tool.name: tool for tool in tools}
        content, *blocks = text.split("<tool_call>")
        calls = []
        for block in blocks:
            body, closed, _ = block.partition("</tool_call>")
            try:
                call = read_json(body)
            except ValueError as error:
                return Parsed(content=content.strip(), error=f"tool call is not JSON: {error}")
            if not closed:
                return Parsed(content=content.strip(), error="tool call is not closed")
            problem = _problem(call, specs)
            if problem:
                return Parsed(content=content.strip(), error=problem)
            calls.append(ToolCall(name=call["name"], arguments=call["arguments"]))
        return Parsed(content=content.strip(), tool_calls=tuple(calls))

    def follow(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        closed = bool(sampled_ids) and sampled_ids[-1] in self.stop_ids
        ids = [*([] if closed else [self._end]), *self.text_ids("\n")]
        return [*ids, *self._say(messages, tools), *self._opener()]

    def observe(self, sampled_ids: Sequence[int], observations: Sequence[str]) -> list[int]:
        return self.follow(sampled_ids, [Message(role="tool", content=text) for text in observations], ())


def _problem(call: Any, specs: dict[str, ToolSpec]) -> str | None:
    """What is wrong with a parsed call, in words the model can act on; None = nothing."""
    if (
        not isinstance(call, dict)
        or not isinstance(call.get("name"), str)
        or not isinstance(call.get("arguments"), dict)
    ):
        return 'a tool call is {"name": ..., "arguments": {...}}'
    spec = specs.get(call["name"])
    if spec is None:
        return f"no tool {call['name']!r}"
    if spec.schema is not None:
        return None
    if set(call["arguments"]) != set(spec.parameters):
        return f"{spec.name} takes {', '.join(spec.parameters) or 'no arguments'}"
    kinds: dict[str, type] = {"integer": int, "string": str}
    for name, kind in spec.parameters.items():
        value = call["arguments"][name]
        if not isinstance(value, kinds[kind]) or isinstance(value, bool):
            return f"{spec.name}: {name} must be {'an' if kind == 'integer' else 'a'} {kind}"
    return None
