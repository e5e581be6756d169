"""Whatever is sent, the answer is a refusal in OpenAI's shape or a success, never a crash. `make test-slow` has the
schema-driven half."""

import json

import httpx2 as httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.engine.scripted import ScriptedEngine
from twinmill.store.blobs import open_blobs

from .rigs import BASH, nano, running, user

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
parts = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)})
arguments = json_values.map(json.dumps) | st.text(max_size=9)
functions = st.fixed_dictionaries({"name": st.sampled_from(["bash", "other"]), "arguments": arguments})
calls = st.fixed_dictionaries({"type": st.just("function"), "function": functions})
messages_of_any_kind = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    optional={
        "content": st.none() | st.text(max_size=20) | st.lists(parts, max_size=2),
        "tool_calls": st.lists(calls, max_size=2),
        "tool_call_id": st.text(max_size=4),
    },
)
KNOWN = (
    "model", "messages", "prompt", "tools", "tool_choice", "temperature", "top_p", "n", "max_tokens", "seed", "stop",
    "stream", "logprobs", "return_token_ids", "parallel_tool_calls", "response_format", "stream_options", "best_of",
    "task", "group", "attempts", "reward", "scores",
)  # fmt: skip
GOOD = {
    "/v1/chat/completions": {"model": "nano", "messages": [user("Hi")], "tools": [BASH], "max_tokens": 8},
    "/v1/completions": {"model": "nano", "prompt": "x", "max_tokens": 8},
    "/v1/sessions": {"task": "t"},
}


@pytest.fixture(scope="module")
def on(tmp_path_factory):
    """An engine that says nonsense: any ids at all, also those of markup."""
    folder = tmp_path_factory.mktemp("store")

    def nonsense(request):
        seed = request.sampling.seed
        return [(seed * 31 + k * k * 7 + len(request.token_ids)) % nano().vocab_size for k in range(40)]

    with (
        running(
            ScriptedEngine(nonsense), blobs=open_blobs(f"file://{folder}"), sessions=10_000, context_tokens=256
        ) as gateway,
        gateway.http() as http,
    ):
        session = http.post("/v1/sessions", json={"task": "t"}).json()
        paths = [*GOOD, *(f"/v1/sessions/{session['id']}/{end}" for end in ("chat/completions", "completions"))]
        yield http, [*paths, "/v1/sessions/nobody/reward"]


def check(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] and error["type"]
    elif answer.headers["Content-Type"].startswith("text/event-stream"):
        events = [line for line in answer.text.splitlines() if line]
        assert events[-1] == "data: [DONE]"
        assert all(json.loads(line.removeprefix("data: ")) for line in events[:-1])


@given(data=st.data())
@settings(max_examples=150)
def test_json_of_any_kind(on, data):
    http, paths = on
    path = data.draw(st.sampled_from(paths))
    good = next((body for end, body in GOOD.items() if path.endswith(end.removeprefix("/v1"))), {"reward": 1.0})
    changes = data.draw(st.dictionaries(st.sampled_from(KNOWN), json_values, max_size=2))
    check(http.post(path, content=json.dumps({**good, **changes})))


@given(
    messages=st.lists(messages_of_any_kind, min_size=1, max_size=5),
    stream=st.booleans(),
    stop=st.none() | st.text(min_size=1, max_size=2),
)
@settings(max_examples=100)
def test_histories_of_any_kind(on, messages, stream, stop):
    http, paths = on
    for path in (paths[0], paths[3]):
        body = {
            "model": "nano",
            "messages": messages,
            "tools": [BASH],
            "max_tokens": 30,
            "stream": stream,
            "stop": stop,
        }
        check(http.post(path, content=json.dumps(body)))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 100_000, b"{" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'{"model": NaN}', b'{"max_tokens": 1e999}', b"\x00" * 100,
        b'{"model": "nano", "messages": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"model": "nano", "prompt": [1, -1], "max_tokens": 3}', b'{"model": "nano", "prompt": [99999999999999999999]}',
        b'{"model": "nano", "prompt": []}', b'{"model": "nano", "prompt": [[]]}', b'{"model": "nano", "prompt": ["a", 1]}',
        b'{"model": "nano", "prompt": "' + b"x" * 100_000 + b'"}',
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(on, body):
    http, paths = on
    for path in paths:
        answer = http.post(path, content=body)
        check(answer)
        assert answer.status_code >= 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/v1/chat/completions", 405), ("PUT", "/v1/sessions", 405), ("GET", "/v1/models/gpt-9", 404),
        ("GET", "/v1/sessions/%00", 404), ("DELETE", "/v1/sessions/..%2f..", 404), ("POST", "/v1/sessions//reward", 404),
        ("GET", "/v1/models/%ff%fe", 404), ("BREW", "/health", 405),
    ],
)  # fmt: skip
def test_paths_that_there_are_not(on, method, path, status):
    answer = on[0].request(method, path)
    check(answer)
    assert answer.status_code == status
