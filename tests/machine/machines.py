"""Shared by the tests of this folder: play on real machines of one backend."""

import asyncio
from pathlib import Path

from twinmill.env.machine import BACKENDS, make_machine
from twinmill.env.machine.namespace import GRACE_S, NativeMachine
from twinmill.env.machine.remote.client import RemoteMachine
from twinmill.env.machine.remote.config import RemoteConfig, Server
from twinmill.env.machine.remote.host import HostConfig, Tenant
from twinmill.env.machine.remote.server import serving
from twinmill.records.tasks import MachineSpec


class Machines:
    """Fresh machines of one backend."""

    def __init__(self, backend="namespace"):
        assert backend in BACKENDS
        self.backend = backend

    def of(self, spec, grace_s=None):
        machine = make_machine(self.backend, spec)
        if grace_s is not None:
            machine.grace_s = grace_s
        return machine

    def make(self, *, grace_s=None, **spec):
        return self.of(MachineSpec(**spec), grace_s)

    def inside(self, machine):
        """The machine with the process 1: behind a remote one, the server's."""
        return machine

    def play(self, body, *, grace_s=None, **spec):
        """Run the coroutine function `body(machine)` on a fresh machine; returns what it returns."""

        async def whole():
            machine = self.make(grace_s=grace_s, **spec)
            await machine.start()
            try:
                return await body(machine)
            finally:
                await machine.close()

        return asyncio.run(whole())

    def command(self, *argv, timeout_s=10.0, stdin=b"", output_bytes=65536, **spec):
        """One command on a fresh machine."""

        async def body(machine):
            return await machine.exec(argv, timeout_s=timeout_s, stdin=stdin, output_bytes=output_bytes)

        return self.play(body, **spec)

    def script(self, text, *args, **more):
        """One Python program on a fresh machine."""
        return self.command("python3", "main.py", *args, files={"main.py": text}, **more)


TENANT = Tenant(name="tester", token="the-token-of-the-tests", machines=1000, creates_per_minute=100_000)


class RemoteMachines(Machines):
    """Native machines behind a server in a thread of this process: `with RemoteMachines(folder) as machines`."""

    def __init__(self, folder, **config):
        super().__init__("remote")
        self.grace_s = GRACE_S
        self._serving = serving(
            [TENANT], folder, config=HostConfig(backend="native", **config),
            make=lambda spec: NativeMachine(spec, grace_s=self.grace_s),
        )  # fmt: skip

    def __enter__(self):
        url, self.host = self._serving.__enter__()
        self.server = Server(RemoteConfig(url=url), TENANT.token)
        return self

    def __exit__(self, *error):
        return self._serving.__exit__(*error)

    def of(self, spec, grace_s=None):
        self.grace_s = GRACE_S if grace_s is None else grace_s
        return RemoteMachine(spec, server=self.server)

    def inside(self, machine):
        return self.host.find(self.host.account(TENANT.token), machine.key).machine


def descendants(pid):
    """Living processes below `pid`, as {pid: command line}."""
    children, lines = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            lines[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, todo = {}, [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found[child] = lines[child]
            todo.append(child)
    return found
