"""The fake machine keeps the protocol's promises."""

import asyncio

import pytest

from twinmill.env.machine import BACKENDS, make_machine
from twinmill.env.machine.base import ExecResult, MachineLostError, MachineStartError
from twinmill.env.machine.fake import FakeMachine
from twinmill.records.tasks import MachineSpec

SPEC = MachineSpec(files={"main.py": "x = 1\n", "d/notes.txt": "hi"})


def test_files_commands_and_failures():
    def run(argv, stdin, files):
        files["out.txt"] = stdin.upper()
        return ExecResult(stdout=" ".join(argv), stderr="", return_code=3)

    async def body():
        machine = FakeMachine(SPEC, run=run)
        with pytest.raises(MachineStartError):
            await machine.exec(["true"], timeout_s=1)
        await machine.start()
        assert await machine.get(["**/*.py"]) == {"main.py": b"x = 1\n"}
        result = await machine.exec(["cat", "-"], timeout_s=1, stdin=b"abc")
        assert (result.stdout, result.return_code) == ("cat -", 3)
        assert (await machine.get(["**"]))["out.txt"] == b"ABC"
        with pytest.raises(ValueError, match="workspace"):
            await machine.put({"../x": b""})
        await machine.close()
        await machine.close()
        with pytest.raises(MachineLostError):
            await machine.get(["**"])

    asyncio.run(body())


def test_without_a_function_nothing_is_found_and_failures_are_scripted():
    async def body():
        machine = FakeMachine(SPEC, fail={"put": OSError(28, "No space left on device")})
        await machine.start()
        assert (await machine.exec(["python3", "main.py"], timeout_s=1)).return_code == 127
        with pytest.raises(OSError, match="No space"):
            await machine.put({"a": b""})

    asyncio.run(body())


def test_backends_are_named_by_a_literal_map():
    assert isinstance(make_machine("fake", SPEC), FakeMachine)
    with pytest.raises(ValueError, match=", ".join(BACKENDS)):
        make_machine("vm", SPEC)
