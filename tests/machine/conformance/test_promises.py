"""Machines that isolate keep the protocol's promises."""

import asyncio
import errno
import hashlib

import pytest

from twinmill.env.machine import namespace
from twinmill.env.machine.base import MachineLostError, MachineStartError
from twinmill.records.base import Ref
from twinmill.records.tasks import MachineSpec


def test_files_are_there_before_the_first_turn_and_come_back(machines):
    async def body(machine):
        await machine.put({"d/e/data.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\necho ran\n"})
        assert (await machine.exec(["./run.sh"], timeout_s=5)).stdout == "ran\n"
        assert await machine.get(["**/*.py"]) == {"main.py": b"x = 1\n"}
        everything = await machine.get(["**"])
        assert list(everything) == ["d/e/data.bin", "main.py", "run.sh"]
        assert everything["d/e/data.bin"] == bytes(range(256))
        assert await machine.get(["nothing/*"]) == {}

    machines.play(body, files={"main.py": "x = 1\n"})


def test_put_replaces_links_and_get_never_follows_them(machines):
    async def body(machine):
        await machine.exec(
            ["sh", "-c", "ln -s /etc/passwd a.py; ln -s /etc d; mkfifo f.py; echo 1 > b.py"], timeout_s=5
        )
        assert await machine.get(["**"]) == {"b.py": b"1\n"}
        await machine.put({"a.py": b"mine"})
        assert (await machine.get(["a.py"]))["a.py"] == b"mine"
        assert "user" in (await machine.exec(["cat", "/etc/passwd"], timeout_s=5)).stdout

    machines.play(body)


def test_what_cannot_be_put_says_so_with_the_machines_own_errno(machines):
    async def body(machine):
        await machine.put({"folder/x": b""})
        with pytest.raises(IsADirectoryError, match="folder"):
            await machine.put({"folder": b""})
        with pytest.raises(FileExistsError):
            await machine.put({"folder/x/y": b""})
        for path in ("/x", "../x", "a/../../x"):
            with pytest.raises(ValueError, match="workspace"):
                await machine.put({path: b""})
        with pytest.raises(OSError, match="No space") as full:
            await machine.put({"big": bytes(3 << 20)})
        assert full.value.errno == errno.ENOSPC
        await machine.put({"kept": b"old"})
        with pytest.raises(OSError, match="No space"):
            await machine.put({"kept": bytes(3 << 20)})
        assert await machine.get(["**"]) == {"folder/x": b"", "kept": b"old"}

    machines.play(body, disk_bytes=2 << 20)


def test_get_leaves_out_what_is_too_large(machines):
    async def body(machine):
        big = namespace.GET_FILE_BYTES
        await machine.exec(
            ["sh", "-c", f"truncate -s {big + 1} a; truncate -s {big} b; truncate -s 60M c"], timeout_s=5
        )
        assert [(path, len(data)) for path, data in (await machine.get(["**"])).items()] == [("b", big)]
        for i in range(20):
            await machine.exec(["truncate", "-s", str(big), f"x{i:02}"], timeout_s=5)
        got = await machine.get(["x*"])
        assert list(got) == [f"x{i:02}" for i in range(namespace.GET_TOTAL_BYTES // big)]

    machines.play(body)


def test_streams_codes_and_caps(machines):
    result = machines.command("sh", "-c", "cat; echo err >&2; exit 7", stdin=b"in")
    assert (result.stdout, result.stderr, result.return_code) == ("in", "err\n", 7)
    assert machines.command("sh", "-c", "kill -TERM $$").return_code == -15
    missing = machines.command("no-such-program", "x")
    assert (missing.return_code, missing.stderr) == (127, "no-such-program: No such file or directory\n")
    capped = machines.command("sh", "-c", "printf 123456; printf abc >&2", output_bytes=4)
    assert (capped.stdout, capped.stderr, capped.truncated) == ("1234", "abc", True)
    assert machines.command("printf", "\\377x").stdout == "\ufffdx"


def test_large_input_passes_through_and_unread_input_does_not_block(machines):
    data = bytes(range(256)) * 4096
    result = machines.command("sha256sum", stdin=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert machines.command("true", stdin=data).return_code == 0


def test_output_before_the_deadline_is_kept(machines):
    result = machines.command("sh", "-c", "echo before; sleep 30", timeout_s=0.5)
    assert (result.stdout, result.timed_out, result.return_code) == ("before\n", True, -9)
    assert result.duration_s < 5


def test_nothing_of_a_command_outlives_it_and_the_next_one_starts_clean(machines):
    async def body(machine):
        await machine.exec(["sh", "-c", "cd /tmp; export A=1; sleep 100 & sleep 100 & echo"], timeout_s=5)
        result = await machine.exec(["sh", "-c", "pwd; echo ${A:-no}; set -- /proc/[0-9]*; echo $#"], timeout_s=5)
        # process 1 and sh, which counts by itself: in a pipeline each may look before the other is there
        assert result.stdout == "/work\nno\n2\n"

    machines.play(body)


def test_a_command_sees_a_clean_environment_and_no_open_files(machines):
    program = "import os\nprint(sorted(os.environ))\nprint(sorted(os.listdir('/proc/self/fd')))\n"
    fast = machines.script(program)
    # 3 is the folder being listed
    assert fast.stdout.splitlines()[1] == "['0', '1', '2', '3']"
    assert "TWINMILL" not in fast.stdout.upper()
    cold = machines.command("python3", "-B", "main.py", files={"main.py": program})
    assert cold.stdout == fast.stdout


def test_output_is_the_same_in_every_machine(machines):
    program = "print({'a', 'b', 'c', 'd', 'e'}, hash('x'))\nimport os; print(os.getcwd(), __file__, os.getuid())\n"
    first, second = machines.script(program), machines.script(program)
    assert first.stdout == second.stdout
    assert first.stdout.splitlines()[1] == "/work /work/main.py 1000"
    assert machines.command("python3", "-B", "main.py", files={"main.py": program}).stdout == first.stdout


def test_random_numbers_differ_between_runs(machines):
    program = "import random, uuid, os\nprint(random.random(), uuid.uuid4(), os.urandom(4))\n"
    assert len({machines.script(program).stdout for _ in range(3)}) == 3


def test_a_spec_that_cannot_be_given_is_refused(machines):
    for spec in (
        MachineSpec(network=True),
        MachineSpec(snapshot=Ref(key="k", digest="d", bytes=1)),
    ):
        with pytest.raises(MachineStartError, match=r"no (network|snapshot) yet"):
            asyncio.run(machines.of(spec).start())
    with pytest.raises(MachineStartError, match="memory_bytes"):
        asyncio.run(machines.make(memory_bytes=1 << 20).start())


def test_life_cycle_errors(machines):
    async def body():
        machine = machines.make()
        with pytest.raises(MachineStartError, match="not started"):
            await machine.exec(["true"], timeout_s=1)
        await machine.start()
        with pytest.raises(MachineStartError, match="once"):
            await machine.start()
        with pytest.raises(ValueError, match="deadline"):
            await machine.exec(["true"], timeout_s=0)
        await machine.close()
        await machine.close()
        with pytest.raises(MachineLostError, match="closed"):
            await machine.get(["**"])

    asyncio.run(body())


def test_a_cancelled_request_leaves_the_machine_unusable_but_closable(machines):
    async def body(machine):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(machine.exec(["sleep", "60"], timeout_s=60), 0.2)
        with pytest.raises(MachineLostError, match="cancelled"):
            await machine.exec(["true"], timeout_s=1)

    machines.play(body)


def test_many_machines_at_once_do_not_mix(machines):
    async def one(i):
        machine = machines.make(files={"main.py": f"print({i})\n"})
        await machine.start()
        try:
            result = await machine.exec(["python3", "main.py"], timeout_s=30)
            return result.stdout, sorted(await machine.get(["**"]))
        finally:
            await machine.close()

    async def body():
        return await asyncio.gather(*[one(i) for i in range(24)])

    assert asyncio.run(body()) == [(f"{i}\n", ["main.py"]) for i in range(24)]


def test_what_binds_is_said(machines):
    async def body(machine):
        return machine.limits_in_force

    said = machines.play(body, memory_bytes=256 << 20, disk_bytes=8 << 20, processes=20)
    assert set(said) == {"made by", "memory", "processes", "disk", "time", "network", "system calls"}
    assert said["memory"].startswith("256 MiB for the machine")
    assert "20 by rlimit" in said["processes"]
    assert said["disk"].startswith("8 MiB")
