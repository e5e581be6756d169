"""/openapi.json: what may be sent where, made from the very types that requests are read with."""

from functools import cache
from typing import Any

import msgspec

from twinmill import __version__

from .requests import ChatRequest, CompletionRequest, RewardRequest, SessionRequest

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_SESSION = {"name": "session", "in": "path", "required": True, "schema": {"type": "string"}}
_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
_INSIDE = "/v1/sessions/{session}"


@cache
def openapi() -> dict[str, Any]:
    kinds = (ChatRequest, CompletionRequest, SessionRequest, RewardRequest)
    bodies, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    chat, completion, session, reward = bodies
    paths: dict[str, dict[str, Any]] = {
        "/health": {"get": _operation("whether it serves")},
        "/v1/models": {"get": _operation("the model")},
        "/v1/models/{model}": {"get": _operation("the model", at=(_MODEL,))},
        "/v1/chat/completions": {"post": _operation("answer a chat", chat)},
        "/v1/completions": {"post": _operation("go on with a text or ids", completion)},
        "/v1/sessions": {"post": _operation("open a session", session)},
        _INSIDE: {
            "get": _operation("show a session", at=(_SESSION,)),
            "delete": _operation("end a session without a reward", at=(_SESSION,)),
        },
        f"{_INSIDE}/reward": {"post": _operation("end a session", reward, at=(_SESSION,))},
        f"{_INSIDE}/models": {"get": _operation("the model", at=(_SESSION,))},
        f"{_INSIDE}/chat/completions": {"post": _operation("a recorded chat call", chat, at=(_SESSION,))},
        f"{_INSIDE}/completions": {"post": _operation("a recorded completion", completion, at=(_SESSION,))},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "twinmill gateway", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Refusal": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(summary: str, body: dict[str, Any] | None = None, at: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": list(at),
        "responses": {
            "2XX": {"description": "done"},
            "4XX": {"description": "the error says what to do", "content": refusal},
            "503": {"description": "engine or store do not answer"},
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
