"""What clients send. Unknown fields are refused by name, known ones that this server cannot honour too: nothing that changes
an answer is ignored in silence. Fields that change nothing here (user, store, metadata, ...) are taken and forgotten.

Within messages unknown fields are let through: harnesses echo back whatever a client library has put there.
"""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from twinmill.data.render.base import read_json
from twinmill.records.episodes import StopReason
from twinmill.records.tasks import Message, ToolCall, ToolSpec

from .prompts import Prompt
from .refusals import BadRequest

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=2**31)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
StopText = Annotated[str, Meta(min_length=1, max_length=200)]
Zero = Annotated[float, Meta(ge=0, le=0)]
"""of a penalty that the engine does not know: 0, or refused"""


class Part(Struct, kw_only=True, frozen=True):
    type: str
    text: str = ""


class Function(Struct, kw_only=True, frozen=True):
    name: Name
    arguments: str = "{}"
    """a JSON object, as text"""


class Call(Struct, kw_only=True, frozen=True):
    function: Function
    id: str = ""
    type: Literal["function"] = "function"


class ChatMessage(Struct, kw_only=True, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[Call] | None = None


class ToolFunction(Struct, kw_only=True, frozen=True):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True, frozen=True):
    function: ToolFunction
    type: Literal["function"] = "function"


class TextFormat(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]


class StreamOptions(Struct, kw_only=True, frozen=True):
    include_usage: bool = False


class _Sampled(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What chats and completions share."""

    model: str = ""
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Annotated[int, Meta(ge=1, le=1024)] | None = None
    max_tokens: Tokens | None = None
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    """give prompt_token_ids, and token_ids with each choice"""
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=0)] | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(_Sampled, kw_only=True, frozen=True, forbid_unknown_fields=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    """engines tell the log-probability of what was sampled, and of nothing else"""
    response_format: TextFormat | None = None
    reasoning_effort: Any = None

    def prompt(self) -> Prompt:
        tools = [] if self.tool_choice == "none" else self.tools or []
        return Prompt(tuple(_message(m, i) for i, m in enumerate(self.messages)), tuple(map(_tool, tools)))


class CompletionRequest(_Sampled, kw_only=True, frozen=True, forbid_unknown_fields=True):
    prompt: str | list[str | int | list[int]]
    """a text, or the ids of one; a list of either is several prompts"""
    logprobs: Annotated[int, Meta(ge=0, le=1)] | None = None
    """0 and 1 alike: of what was sampled; engines tell of nothing else"""
    echo: Literal[False] | None = None
    best_of: Annotated[int, Meta(ge=1, le=1)] | None = None
    suffix: None = None

    def prompts(self) -> list[Prompt]:
        if isinstance(self.prompt, str):
            return [Prompt(self.prompt)]
        if not self.prompt:
            raise BadRequest("prompt is an empty list: give a text or token ids", "prompt")
        if len({type(part) for part in self.prompt}) > 1:
            raise BadRequest("prompt mixes texts and ids: give texts, or ids, or lists of ids", "prompt")
        if isinstance(self.prompt[0], int):
            return [Prompt(tuple(self.prompt))]  # type: ignore[arg-type]
        return [Prompt(p if isinstance(p, str) else tuple(p)) for p in self.prompt]  # type: ignore[arg-type]


class SessionRequest(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Opens a session: one attempt at a task."""

    task: Name
    """id of the task, as the harness calls it"""
    group: Name | None = None
    """sessions with the same group are attempts at one task that are compared; None = a group of its own"""
    attempts: Annotated[int, Meta(ge=1, le=1024)] = 1
    """size of the group: when so many of its sessions have a reward, its slot is closed and may be trained"""
    temperature: Temperature = 1.0
    """every call of the session is sampled at this, whatever the harness asks for: the trainer must know it"""
    seed: Seed | None = None
    """None = by the gateway's seed, slot and attempt"""


class RewardRequest(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Ends a session. reward null = it could not be graded, which is never 0."""

    reward: float | None
    scores: dict[str, float] = {}
    """what the reward was made of, by name"""
    stop: StopReason = StopReason.FINISHED


R = TypeVar("R")
_AT = re.compile(r" - at `\$\.?(.*)`$")


def read(body: bytes, kind: type[R]) -> R:
    """BadRequest names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        found = _AT.search(str(error))
        where = found[1] if found else None
        unknown = re.search(r"unknown field `(.*?)`", str(error))
        if unknown and not where:
            raise BadRequest(f"{unknown[1]}: this server has no such parameter; leave it out", unknown[1]) from None
        raise BadRequest(f"{_AT.sub('', str(error))}{f', at {where}' if where else ''}", where) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _message(message: ChatMessage, index: int) -> Message:
    where = f"messages[{index}]"
    parts = message.content if isinstance(message.content, list) else [Part(type="text", text=message.content or "")]
    for part in parts:
        if part.type != "text":
            raise BadRequest(f"{where}: content of type {part.type!r}; this model reads text only", f"{where}.content")
    calls = message.tool_calls or []
    if calls and message.role != "assistant":
        raise BadRequest(f"{where}: only an assistant calls tools, not a {message.role}", f"{where}.tool_calls")
    return Message(
        role="system" if message.role == "developer" else message.role,
        content="\n".join(part.text for part in parts),
        tool_calls=tuple(_call(call, f"{where}.tool_calls[{k}]") for k, call in enumerate(calls)),
    )


def _call(call: Call, where: str) -> ToolCall:
    try:
        arguments = read_json(call.function.arguments or "{}")
    except ValueError as error:
        raise BadRequest(f"{where}: arguments are not JSON: {error}", where) from None
    if not isinstance(arguments, dict):
        raise BadRequest(f"{where}: arguments must be a JSON object, as text", where)
    return ToolCall(name=call.function.name, arguments=arguments)


def _tool(tool: Tool) -> ToolSpec:
    """A foreign tool: its schema as it came, and its arguments in order for formats that write them by position."""
    schema = tool.function.parameters or {"type": "object", "properties": {}}
    properties = schema.get("properties")
    kinds = {}
    for name, of in (properties if isinstance(properties, dict) else {}).items():
        kind = of.get("type") if isinstance(of, dict) else None
        kinds[name] = kind if kind in ("string", "integer") else "json"
    return ToolSpec(
        name=tool.function.name, description=tool.function.description or "", parameters=kinds, schema=schema
    )
