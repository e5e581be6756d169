"""On a host where namespaces cannot nest, every machine has a bubblewrap of its own and is the same machine."""

import asyncio
import os
from pathlib import Path

import pytest

from twinmill.env.machine import cells
from twinmill.env.machine.base import MachineLostError, MachineStartError
from twinmill.env.machine.bwrap import Sandbox
from twinmill.env.machine.leftovers import leftovers
from twinmill.env.machine.namespace import BubblewrapMachine
from twinmill.records.tasks import MachineSpec

from .machines import Machines

play = Machines("bubblewrap").play


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    cells.close_all()
    monkeypatch.setitem(cells._sources.reasons, "nested", "for this test")
    yield
    cells.close_all()
    assert leftovers(os.getpid()) == []


def test_the_same_machine():
    async def body(machine):
        assert machine._cell.nest is None
        warm = await machine.exec(["python3", "main.py"], timeout_s=10)
        cold = await machine.exec(["python3", "-B", "main.py"], timeout_s=10)
        assert warm.stdout == cold.stdout != ""
        result = await machine.exec(["sh", "-c", "id -u; pwd; touch /x; set -- /proc/[0-9]*; echo $#"], timeout_s=10)
        assert result.stdout == "1000\n/work\n2\n"
        assert "Read-only" in result.stderr
        assert (await machine.exec(["sh", "-c", "head -c 9M /dev/zero > big"], timeout_s=10)).return_code == 1
        assert (await machine.exec(["unshare", "-U", "true"], timeout_s=10)).return_code == 1
        assert list(await machine.get(["**/*.py"])) == ["main.py"]
        assert machine.limits_in_force["disk"].endswith("each, held in memory")

    play(body, files={"main.py": "print({'a', 'b'})\n"}, disk_bytes=8 << 20)


def test_a_kill_from_outside():
    async def body(machine):
        os.kill(machine._cell.pid, 9)
        with pytest.raises(MachineLostError, match="signal 9 from outside"):
            await machine.exec(["true"], timeout_s=5)

    play(body)


@pytest.mark.parametrize(
    ("guest", "there", "instead"),
    [
        ("forge_guest.py", '{"x86_64": 56, "aarch64": 220}', '{"x86_64": 9999, "aarch64": 9999}'),
        ("init_guest.py", '_mount("proc", "/proc", "proc"', '_mount("proc", "/proc", "no such file system"'),
    ],
    ids=["clone", "mount"],
)
def test_a_host_that_refuses_to_nest_is_found_out_by_trying(monkeypatch, guest, there, instead):
    """The guests ask the kernel for what does not exist, and are refused as by a host that forbids it."""
    cells._sources.reasons.clear()
    text = Path.read_text
    assert there in text(Path(cells.__file__).parent / guest)
    monkeypatch.setattr(Path, "read_text", lambda path, *a, **k: text(path, *a, **k).replace(there, instead))

    async def one():
        machine = BubblewrapMachine(MachineSpec())
        await machine.start()
        try:
            assert machine._cell.nest is None
            assert (await machine.exec(["echo", "hi"], timeout_s=10)).stdout == "hi\n"
        finally:
            await machine.close()

    async def several():
        await asyncio.gather(*[one() for _ in range(3)])

    asyncio.run(several())
    assert set(cells.reasons()) == {"nested"}


def test_a_bubblewrap_that_does_not_work_is_named(monkeypatch):
    monkeypatch.setattr(Sandbox, "argv", lambda *_, **__: ["/bin/sh", "-c", "echo no luck >&2; exit 1"])
    cells._sources.reasons.clear()
    with pytest.raises(MachineStartError, match="no luck"):
        asyncio.run(BubblewrapMachine(MachineSpec()).start())
    assert cells.reasons() == {"nested": "no luck"}
