"""What clients get: OpenAI's shapes, and beside them `twinmill`: versions of the tokens, and in a session what became of it."""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from twinmill.data.render import Renderer
from twinmill.records.episodes import Finish

from .refusals import Refused
from .speech import Listener, Said, plain


@dataclass
class Answer:
    """One choice, finished or growing."""

    prompt_ids: list[int]
    said: Said
    listener: Listener
    fresh: str = ""
    """the text of the last slice"""
    facts: dict[str, Any] = field(default_factory=dict)
    """of the session: id, segment, turn, new_segment; {} outside of one"""

    @property
    def finish_reason(self) -> str | None:
        if self.said.finish is None:
            return None
        return "tool_calls" if self.listener.calls else "length" if self.said.finish is Finish.LENGTH else "stop"


class Shape:
    """How answers to one request look. `chat` or plain completion; what else the client asked for."""

    def __init__(self, renderer: Renderer, model: str, *, chat: bool, logprobs: bool, token_ids: bool) -> None:
        self._renderer, self._model, self._chat = renderer, model, chat
        self._logprobs, self._token_ids = logprobs, token_ids
        self._id = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12)
        self._created = int(time.time())

    def whole(self, answers: Sequence[Answer], prompts: int) -> dict[str, Any]:
        body = self._frame(answers[0], "chat.completion" if self._chat else "text_completion")
        body["choices"] = [self._choice(i, answer) for i, answer in enumerate(answers)]
        body["usage"] = _usage(answers, len(answers) // prompts)
        if self._token_ids:
            body["prompt_token_ids"] = answers[0].prompt_ids
        return body

    def chunk(self, answer: Answer, first: bool) -> dict[str, Any]:
        """A slice of a streamed answer; its choice has only what is new."""
        body = self._frame(answer, "chat.completion.chunk" if self._chat else "text_completion")
        choice: dict[str, Any] = {"index": 0, "finish_reason": answer.finish_reason}
        if self._chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            delta["content"] = answer.fresh
            if answer.finish_reason is not None and answer.listener.calls:
                delta["tool_calls"] = [{"index": k, **call} for k, call in enumerate(_calls(answer))]
            choice["delta"] = delta
        else:
            choice["text"] = answer.fresh
        choice |= self._details(answer, answer.said.fresh)
        if self._token_ids and first:
            body["prompt_token_ids"] = answer.prompt_ids
        return body | {"choices": [choice]}

    def usage_chunk(self, answer: Answer) -> dict[str, Any]:
        body = self._frame(answer, "chat.completion.chunk" if self._chat else "text_completion")
        return body | {"choices": [], "usage": _usage([answer], 1)}

    def _frame(self, answer: Answer, kind: str) -> dict[str, Any]:
        runs = [[run.version, run.count] for run in answer.said.version_runs]
        body: dict[str, Any] = {"id": self._id, "object": kind, "created": self._created, "model": self._model}
        body["twinmill"] = {"version_runs": runs, **answer.facts}
        if answer.listener.mistake is not None:
            body["twinmill"]["tool_call_mistake"] = answer.listener.mistake
        if runs:
            body["system_fingerprint"] = f"version-{runs[-1][0]}"
        return body

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": answer.finish_reason}
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": answer.listener.told, "refusal": None}
            if answer.listener.calls:
                message["content"] = message["content"] or None
                message["tool_calls"] = _calls(answer)
            choice["message"] = message
        else:
            choice["text"] = answer.listener.told
        if len(answer.said.version_runs) and index:
            choice["version_runs"] = [[run.version, run.count] for run in answer.said.version_runs]
        return choice | self._details(answer, 0)

    def _details(self, answer: Answer, start: int) -> dict[str, Any]:
        """Log-probabilities and ids of the tokens from `start` on."""
        ids, logprobs = answer.said.ids[start:], answer.said.logprobs[start:]
        details: dict[str, Any] = {"logprobs": None}
        if self._logprobs and self._chat:
            tokens = [_token(self._renderer.decode([i]), logprob) for i, logprob in zip(ids, logprobs)]
            details["logprobs"] = {"content": tokens, "refusal": None}
        elif self._logprobs:
            ends = [len(plain(self._renderer, answer.said.ids[:n])) for n in range(start, start + len(ids))]
            texts = [self._renderer.decode([i]) for i in ids]
            details["logprobs"] = {
                "tokens": texts, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": ends,
            }  # fmt: skip
        if self._token_ids:
            details["token_ids"] = ids
        return details


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def error_event(refused: Refused) -> bytes:
    """In the middle of a stream there is no status any more."""
    return event(refused.body())


DONE = b"data: [DONE]\n\n"


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{secrets.token_hex(8)}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in answer.listener.calls
    ]


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def _usage(answers: Sequence[Answer], n: int) -> dict[str, Any]:
    """A prompt that has n answers counts once."""
    prompt = sum(len(answer.prompt_ids) for answer in answers[::n])
    sampled = sum(len(answer.said.ids) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
