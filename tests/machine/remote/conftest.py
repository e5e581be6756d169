"""Servers of fake machines: nothing here needs a sandbox but what says so."""

import asyncio

import pytest

from twinmill.env.machine.base import ExecResult
from twinmill.env.machine.fake import FakeMachine
from twinmill.env.machine.remote.client import RemoteMachine
from twinmill.env.machine.remote.config import RemoteConfig, Server
from twinmill.env.machine.remote.host import HostConfig, Tenant
from twinmill.env.machine.remote.server import serving
from twinmill.records.tasks import MachineSpec

TOKEN = "the-token-of-the-tests"


class Slow(FakeMachine):
    """`sleep N` takes N seconds, `count` adds a line to a file and says how many there are."""

    async def exec(self, argv, **more):
        await super().exec(argv, **more)
        if argv[0] == "sleep":
            await asyncio.sleep(float(argv[1]))
        if argv[0] == "count":
            self.files["n"] = self.files.get("n", b"") + b"x"
        return ExecResult(stdout=str(len(self.files.get("n", b""))), stderr="", return_code=0)


class Fakes:
    """A server of fake machines, and the machines that it made."""

    def __init__(self, folder, *, make=Slow, tenants=None, **more):
        self.made = []

        def making(spec):
            self.made.append(make(spec))
            return self.made[-1]

        tenants = tenants or [Tenant(name="tester", token=TOKEN)]
        self._serving = serving(tenants, folder, make=making, **more)

    def __enter__(self):
        self.url, self.host = self._serving.__enter__()
        return self

    def __exit__(self, *error):
        return self._serving.__exit__(*error)

    def machine(self, *, token=TOKEN, url=None, spec=None, **config):
        config = {"patience_s": 1.0, "busy_s": 0.0, **config}
        server = Server(RemoteConfig(url=url or self.url, **config), token)
        return RemoteMachine(spec or MachineSpec(), server=server)


@pytest.fixture
def fakes(tmp_path):
    """fakes(**what Fakes takes): a server for as long as the test runs."""
    opened = []

    def make(folder=tmp_path / "server", **more):
        opened.append(Fakes(folder, **more))
        return opened[-1].__enter__()

    yield make
    for one in reversed(opened):
        one.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Beats, sweeps and silences of a server that is near."""
    monkeypatch.setattr("twinmill.env.machine.remote.server.BEAT_S", 0.2)
    monkeypatch.setattr("twinmill.env.machine.remote.host.SWEEP_S", 0.05)
    monkeypatch.setattr("twinmill.env.machine.remote.client.SILENCE_S", 2.0)


__all__ = ["TOKEN", "Fakes", "HostConfig", "Slow"]
