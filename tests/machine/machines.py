"""Shared by the tests of this folder: play on real machines of one backend."""

import asyncio
from pathlib import Path

from twinmill.env.machine import BACKENDS, make_machine
from twinmill.records.tasks import MachineSpec


class Machines:
    """Fresh machines of one backend."""

    def __init__(self, backend="namespace"):
        assert backend in BACKENDS
        self.backend = backend

    def make(self, *, grace_s=None, **spec):
        machine = make_machine(self.backend, MachineSpec(**spec))
        if grace_s is not None:
            machine.grace_s = grace_s
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
