"""`twinmill machines serve | status`: machines for runs on other hosts, over HTTP."""

import asyncio
import os
import resource
import time
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console

from twinmill.cli.blocks import ConfigError

console = Console()
TOKEN_ENV = "TWINMILL_MACHINES_TOKEN"
HERE = ("127.0.0.1", "localhost", "::1")


class TenantConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the tenants' file, under the tenant's name. Example: [acme] token_env = "ACME_TOKEN"."""

    token_env: str
    """NAME of the environment variable that holds the token"""
    machines: int = 64
    """most at once"""
    creates_per_minute: int = 600
    operator: bool = False
    """may see (not use) the machines of all tenants"""


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 8400,
    backend: str = "namespace",
    folder: Path = Path("machines"),
    token_env: str = TOKEN_ENV,
    tenants: Path | None = None,
    machines: int = 256,
    lease_s: float = 600.0,
    drain_s: float = 30.0,
    body_mib: int = 256,
) -> None:
    """Serve machines of this host by HTTP until Ctrl-C or SIGTERM, which lets those that are there come to their end.

    Args:
        host: address to listen at; 0.0.0.0 = all of this host's
        port: 0 = any free one
        backend: of the machines: namespace, native, bubblewrap
        folder: of the journal, from which the next server ends what a killed one left
        token_env: NAME of the environment variable that holds the token of the only tenant
        tenants: TOML file with a table for each tenant: token_env, machines, creates_per_minute, operator; instead of token_env
        machines: most at once, of all tenants
        lease_s: the longest that a machine can live without a sign of life from its client
        drain_s: how long machines may go on after SIGTERM; a second SIGTERM ends them at once
        body_mib: the largest request
    """
    from twinmill.env.machine import BACKENDS
    from twinmill.env.machine.remote.host import Host, HostConfig, Tenant
    from twinmill.env.machine.remote.server import serve as serve_http

    if backend not in BACKENDS or backend == "remote":
        local = [name for name in BACKENDS if name != "remote"]
        raise ConfigError(f"--backend: no local machines {backend!r}; choose one of {', '.join(local)}")
    for name, value in {"--machines": machines, "--lease-s": lease_s, "--body-mib": body_mib}.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")
    known = (
        _tenants(tenants) if tenants is not None else {"default": TenantConfig(token_env=token_env, machines=machines)}
    )
    who = [
        Tenant(
            name=name, token=_token(t.token_env, f"tenant {name}"), machines=t.machines,
            creates_per_minute=t.creates_per_minute, operator=t.operator or len(known) == 1,
        )
        for name, t in known.items()
    ]  # fmt: skip
    if host not in HERE:
        console.print(
            "[yellow]tokens and files cross in clear: beyond a line of your own, put a proxy with TLS before it[/]"
        )

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each machine takes a few

    def ready(url: str, behind: Host, stop: object) -> None:
        ended = f"; ended {len(behind.found)} machines that a killed server left" if behind.found else ""
        console.print(
            f"machines ({backend}, at most {machines}) for {', '.join(known)} at {url}{ended}", soft_wrap=True
        )

    asyncio.run(
        serve_http(
            host, port, who, folder, config=HostConfig(backend=backend, machines=machines, lease_s=lease_s),
            body_bytes=body_mib << 20, drain_s=drain_s, ready=ready,
        )
    )  # fmt: skip
    console.print("ended, and no machine is left")


def status(url: str = "http://127.0.0.1:8400", *, token_env: str = TOKEN_ENV) -> None:
    """Machines, tenants and leases of a server of machines.

    Args:
        url: of the server
        token_env: NAME of the environment variable that holds the token
    """
    from twinmill.board.leases import leases_table, summary, tenants_table
    from twinmill.env.machine.remote.client import status_of
    from twinmill.env.machine.remote.config import RemoteConfig, Server

    server = Server(RemoteConfig(url=url, token_env=token_env, patience_s=2.0), _token(token_env, url))
    found = asyncio.run(status_of(server))
    console.print(summary(found, now=time.time()))
    console.print(tenants_table(found))
    if found.leases:
        console.print(leases_table(found))


def _tenants(path: Path) -> dict[str, TenantConfig]:
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=dict[str, TenantConfig])
    except (msgspec.ValidationError, msgspec.DecodeError, OSError) as error:
        raise ConfigError(f"--tenants: {path}: {error}") from error
    if not found:
        raise ConfigError(
            f'--tenants: {path} names nobody: add a table, for example [acme] with token_env = "ACME_TOKEN"'
        )
    return found


def _token(name: str, of: str) -> str:
    token = os.environ.get(name, "")
    if not token:
        raise ConfigError(
            f"{of}: the environment variable {name} is empty; put the token into it, of 16 characters or more"
        )
    return token
