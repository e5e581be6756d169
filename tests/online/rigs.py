"""A gateway on a real socket, in a thread of its own, with an engine that is told what to say or a small real one."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import httpx2 as httpx
from openai import OpenAI

from twinmill.data.render import Renderer, open_renderer
from twinmill.engine.base import Engine
from twinmill.engine.scripted import ScriptedEngine
from twinmill.online.gateway import Gateway, GatewayConfig
from twinmill.online.gateway.run import Server, listen, serve, url_of
from twinmill.records.engines import KvPolicy
from twinmill.records.tasks import Message, ToolCall, ToolSpec
from twinmill.store.blobs import Blobs

NANO = Path(__file__).parents[2] / "models" / "nano"
PATIENCE_S = 60.0
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
BASH_SPEC = ToolSpec(name="bash", description="Run a command.", parameters={"command": "string"})


@cache
def nano() -> Renderer:
    return open_renderer(NANO)


def text(said: str) -> list[int]:
    """Ids of a model that says so and stops."""
    return nano().assistant(Message(role="assistant", content=said), ())


def bash(command: str, content: str = "") -> list[int]:
    call = ToolCall(name="bash", arguments={"command": command})
    return nano().assistant(Message(role="assistant", content=content, tool_calls=(call,)), [BASH_SPEC])


def user(said: str) -> dict:
    return {"role": "user", "content": said}


class Reciter(ScriptedEngine):
    """Says one turn after the other; a call that goes on where the last one stopped gets the rest of it, as a real engine
    does when a turn is asked for in slices."""

    def __init__(self, turns: Sequence[list[int]], **settings) -> None:
        self.turns = list(turns)
        self._saying: tuple[list[int], list[int]] = ([], [])
        super().__init__(self._recite, **{"experts": (2, 2, 8), **settings})

    def _recite(self, request) -> list[int]:
        context, turn = self._saying
        done = len(request.token_ids) - len(context)
        if not context or not 0 < done < len(turn) or request.token_ids != context + turn[:done]:
            self._saying = context, turn = list(request.token_ids), self.turns.pop(0)
            done = 0
        return turn[done:]


@dataclass
class Running:
    url: str
    gateway: Gateway
    drain: Callable[[], None]
    thread: threading.Thread

    def client(self, key: str = "unused", base_url: str | None = None) -> OpenAI:
        return OpenAI(api_key=key, base_url=base_url or f"{self.url}/v1", max_retries=0, timeout=PATIENCE_S)

    def http(self, key: str = "") -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    def session(self, task: str = "t", key: str = "", **settings) -> dict:
        with self.http(key) as http:
            answer = http.post("/v1/sessions", json={"task": task, **settings})
            assert answer.status_code == 201, answer.text
            return answer.json()

    def reward(self, session: dict, reward: float | None, key: str = "", **more) -> httpx.Response:
        with self.http(key) as http:
            return http.post(f"/v1/sessions/{session['id']}/reward", json={"reward": reward, **more})


@contextmanager
def running(
    engine: Engine, *, blobs: Blobs | None = None, keys: Sequence[str] = (), renderer: Renderer | None = None, **limits
) -> Iterator[Running]:
    config = GatewayConfig(**{"model": "nano", "context_tokens": 1024, **limits})
    gateway = Gateway(engine, renderer or nano(), config, blobs=blobs, keys=keys)
    listener = listen("127.0.0.1", 0)
    started = threading.Event()
    found: list[tuple[Server, asyncio.AbstractEventLoop]] = []

    def ready(server: Server) -> None:
        found.append((server, asyncio.get_running_loop()))
        started.set()

    def work() -> None:
        try:
            asyncio.run(serve(gateway, listener, drain_s=PATIENCE_S, ready=ready))
        finally:
            started.set()

    thread = threading.Thread(target=work, daemon=True)
    url = url_of(listener)
    thread.start()
    assert started.wait(PATIENCE_S) and found, "the gateway did not start"
    server, loop = found[0]

    def drain() -> None:
        if thread.is_alive():
            loop.call_soon_threadsafe(server.drain)

    try:
        yield Running(url, gateway, drain, thread)
    finally:
        drain()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the gateway did not end"


def embedded(context_tokens: int = 512):  # type: ignore[no-untyped-def]
    """A real engine that serves models/nano as version 0. Close it."""
    from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
    from twinmill.model import hf
    from twinmill.model.config import read_config

    engine = EmbeddedEngine(
        read_config(NANO), EngineConfig(context_tokens=context_tokens), engine_id="nano", cluster="here"
    )

    async def load() -> None:
        bits, _ = hf.read_bits(NANO)
        await engine.stage(0, bits)
        await engine.flip(KvPolicy.RECOMPUTE)

    asyncio.run(load())
    return engine
