"""What needs no command to run: the same on every backend, the fake included."""

import asyncio

import pytest

from twinmill.env.machine import make_machine
from twinmill.env.machine.base import Forkable, MachineLostError, MachineStartError, Pausable, Snapshotable
from twinmill.records.tasks import MachineSpec

from ..machines import Machines
from .conftest import REAL


@pytest.fixture(params=[*REAL, "fake"])
def machines(request):
    return request.getfixturevalue("remote") if request.param == "remote" else Machines(request.param)


FILES = {"main.py": "x = 1\n", "d/notes.txt": "hi"}


def test_files(machines):
    async def body(machine):
        assert await machine.get(["**/*.py"]) == {"main.py": b"x = 1\n"}
        await machine.put({"d/e/f": bytes(range(256)), "main.py": b"", "#!": b"#!/bin/sh\n"})
        assert list(await machine.get(["**"])) == ["#!", "d/e/f", "d/notes.txt", "main.py"]
        assert (await machine.get(["d/**"]))["d/e/f"] == bytes(range(256))
        assert await machine.get([]) == await machine.get(["nothing"]) == {}
        await machine.put({})

    machines.play(body, files=FILES)


@pytest.mark.parametrize("path", ["", "/x", "../x", "a/../../x", "a//b", "./x", "a/", "nul\0"])
def test_a_path_that_leaves_the_workspace(machines, path):
    async def body(machine):
        with pytest.raises(ValueError, match="workspace"):
            await machine.put({path: b""})
        for pattern in ("/etc/*", "../*"):
            with pytest.raises(ValueError, match="workspace"):
                await machine.get([pattern])

    machines.play(body)


def test_the_life_of_a_machine(machines):
    async def body():
        machine = machines.make()
        for call in (machine.exec(["true"], timeout_s=1), machine.put({}), machine.get(["*"])):
            with pytest.raises(MachineStartError, match="not started"):
                await call
        await machine.start()
        with pytest.raises(MachineStartError, match="once"):
            await machine.start()
        for argv, timeout_s in ((["true"], 0), (["true"], -1), ([], 1)):
            with pytest.raises(ValueError, match="deadline"):
                await machine.exec(argv, timeout_s=timeout_s)
        await machine.close()
        await machine.close()
        with pytest.raises(MachineLostError, match="closed"):
            await machine.get(["**"])
        with pytest.raises(MachineStartError, match="once"):
            await machine.start()

    asyncio.run(body())


def test_a_command_that_is_not_there(machines):
    result = machines.command("no-such-program")
    assert (result.return_code, result.stderr) == (127, "no-such-program: No such file or directory\n")


def test_forks_and_snapshots_of_files(machines):
    async def body(machine):
        assert isinstance(machine, Forkable) and isinstance(machine, Snapshotable)
        children = await machine.fork(2)
        await children[0].put({"main.py": b"changed"})
        await children[1].restore(await children[0].snapshot())
        for child in children:
            assert (await child.get(["*"]))["main.py"] == b"changed"
            assert (await child.get(["d/*"])) == {"d/notes.txt": b"hi"}
            await child.close()
        assert await machine.get(["main.py"]) == {"main.py": b"x = 1\n"}
        with pytest.raises(ValueError, match="snapshot"):
            await machine.restore(b"no tar")

    machines.play(body, files=FILES)


def test_pausing(machines):
    async def body(machine):
        if "pause" not in machine.capabilities:
            pytest.skip("no control groups here")
        assert isinstance(machine, Pausable)
        await machine.pause()
        with pytest.raises(ValueError, match="paused"):
            await machine.get(["*"])
        await machine.resume()
        assert await machine.get(["main.py"]) == {"main.py": b"x = 1\n"}

    machines.play(body, files=FILES)


def test_a_need_that_nobody_knows_is_a_mistake(machines):
    with pytest.raises(ValueError, match="teleport"):
        make_machine(machines.backend, MachineSpec(needs=("teleport",)))
