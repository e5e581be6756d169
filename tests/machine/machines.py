"""Shared by the tests of this folder: play on one real machine."""

import asyncio
from pathlib import Path

from twinmill.env.machine.namespace import NamespaceMachine
from twinmill.records.tasks import MachineSpec


def play(body, *, grace_s=5.0, **spec):
    """Run the coroutine function `body(machine)` on a fresh namespace machine; returns what it returns."""

    async def whole():
        machine = NamespaceMachine(MachineSpec(**spec), grace_s=grace_s)
        await machine.start()
        try:
            return await machine_body(machine)
        finally:
            await machine.close()

    machine_body = body
    return asyncio.run(whole())


def command(*argv, timeout_s=10.0, stdin=b"", output_bytes=65536, **spec):
    """One command on a fresh machine."""

    async def body(machine):
        return await machine.exec(argv, timeout_s=timeout_s, stdin=stdin, output_bytes=output_bytes)

    return play(body, **spec)


def script(text, *args, **more):
    """One Python program on a fresh machine."""
    return command("python3", "main.py", *args, files={"main.py": text}, **more)


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
