"""`twinmill serve`: an OpenAI-compatible server, on an embedded engine or on a running one, whose sessions become episodes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

from rich.console import Console

from twinmill.cli.blocks import ConfigError
from twinmill.cli.places import model_folder, open_run
from twinmill.engine.base import Engine

console = Console()
LONGEST = 8192
"""context of an embedded engine where --context says nothing and the model could do more: its KV is memory"""


def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    keys: Path | None = None,
    store: str = "sessions",
    name: str | None = None,
    engine: str | None = None,
    root: Path = Path("runs"),
    context: int | None = None,
    calls: int = 64,
    threads: int = 2,
    drain_s: float = 30.0,
) -> None:
    """Serve a model as OpenAI's API does, until Ctrl-C or SIGTERM, which let calls at work finish.

    POST /v1/sessions gives a foreign harness a base_url of its own: every call below it is recorded, token-exact, and with
    the reward that is posted back the session becomes an episode in the store's episodes log.

    Args:
        model: Hugging Face folder, or RUN@VERSION (e.g. latest@40)
        port: 0 = any free one
        keys: file with one bearer key a line; without it whoever can connect may use everything, so only on this machine
        store: folder or URL in which sessions land
        name: under which the model is served; the folder's by default
        engine: RUN/CLUSTER, whose engine answers and follows the run's versions; without it an embedded engine of its own
        root: folder of the runs
        context: most tokens of one context, a multiple of 64; the model's own by default, at most 8192
        calls: at once; further ones are told to come again
        threads: of the embedded engine
        drain_s: how long calls at work may take after SIGTERM, seconds
    """
    known = _keys(keys)
    if not known and not _here_only(host):
        raise ConfigError(f"--host {host} is open to others: give --keys FILE with one key a line, or serve 127.0.0.1")
    from twinmill.online.gateway.run import listen

    try:
        listener = listen(host, port)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror}; choose another --port") from None
    with listener, model_folder(model) as folder:
        served = name or (Path(model).name if Path(model).exists() else model)
        asyncio.run(_serve(folder, listener, served, known, store, engine, root, context, calls, threads, drain_s))
    console.print("stopped: calls at work were answered, open sessions are in the log as lost")


async def _serve(
    folder: Path, listener: socket.socket, name: str, keys: tuple[str, ...], store: str, engine: str | None, root: Path,
    context: int | None, calls: int, threads: int, drain_s: float,
) -> None:  # fmt: skip
    from twinmill.data.render import open_renderer
    from twinmill.online.gateway import Gateway, GatewayConfig
    from twinmill.online.gateway.run import Server, serve, url_of
    from twinmill.store.blobs import open_blobs

    blobs = open_blobs(store)
    opening = _embedded(folder, context, threads) if engine is None else _running(engine, root)
    async with opening as (answers, tokens):
        config = GatewayConfig(model=name, context_tokens=tokens, turn_tokens=tokens, calls=calls)
        gateway = Gateway(answers, open_renderer(folder), config, blobs=blobs, keys=keys)
        version = (await answers.state()).serving

        def ready(_: Server) -> None:
            url = url_of(listener)
            key = ' -H "Authorization: Bearer KEY"' if keys else ""
            say = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello"}]})
            console.print(
                f"serving {name}, version {version}, contexts of {tokens} tokens, at {url}/v1", soft_wrap=True
            )
            console.print(
                f"sessions (POST {url}/v1/sessions) land in {store}; keys: {len(keys) or 'none'}\n", soft_wrap=True
            )
            console.print(
                f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{say}'",
                soft_wrap=True, highlight=False, markup=False,
            )  # fmt: skip

        await serve(gateway, listener, drain_s=drain_s, ready=ready)


@asynccontextmanager
async def _embedded(folder: Path, context: int | None, threads: int) -> AsyncIterator[tuple[Engine, int]]:
    import torch

    from twinmill.engine.embedded import EngineConfig, serving
    from twinmill.model.config import read_config

    torch.set_num_threads(threads)
    tokens = context or min(read_config(folder).max_positions, LONGEST) // 64 * 64
    async with serving(folder, EngineConfig(context_tokens=tokens)) as engine:
        yield engine, tokens


@asynccontextmanager
async def _running(engine: str, root: Path) -> AsyncIterator[tuple[Engine, int]]:
    """The engine of a run's cluster, over its socket."""
    from twinmill.engine.client import EngineClient
    from twinmill.engine.embedded import EngineConfig

    run, slash, cluster = engine.rpartition("/")
    if not slash:
        raise ConfigError(f"--engine {engine}: write RUN/CLUSTER, e.g. latest/east")
    folder, blocks = open_run(run, root)
    names = [c["name"] for c in blocks.get("clusters", list)]
    if cluster not in names:
        raise ConfigError(f"--engine {engine}: the run's clusters are {', '.join(names)}")
    async with EngineClient(folder.socket(f"engine-{cluster}")) as client:
        yield client, blocks.get("engine", EngineConfig).context_tokens


def _keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    keys = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    if not keys:
        raise ConfigError(f"--keys {path}: the file has no key; write one a line")
    return keys


def _here_only(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
