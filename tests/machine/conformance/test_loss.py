"""What ends from outside is noticed within its deadline, called by its right name, and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twinmill.env.machine import cells, nest
from twinmill.env.machine.base import MachineLostError, MachineStartError
from twinmill.env.machine.cells import close_all
from twinmill.env.machine.leftovers import leftovers

from ..machines import descendants


@pytest.fixture(autouse=True)
def own_nest():
    close_all()
    yield
    close_all()
    assert leftovers(os.getpid()) == []


def test_a_stopped_machine_is_noticed_and_can_be_closed(machines):
    async def body(machine):
        pid = machines.inside(machine)._cell.pid
        os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(MachineLostError, match="stopped from outside"):
            await machine.exec(["true"], timeout_s=0.5)
        assert time.monotonic() - started < 3
        with pytest.raises(MachineLostError, match="stopped from outside"):
            await machine.get(["**"])
        return pid

    pid = machines.play(body, grace_s=0.5)
    assert not os.path.exists(f"/proc/{pid}") or pid not in descendants(os.getpid())


def test_a_machine_stopped_in_the_middle_of_a_command(machines):
    async def body(machine):
        running = asyncio.create_task(machine.exec(["sleep", "30"], timeout_s=0.5))
        await asyncio.sleep(0.2)
        os.kill(machines.inside(machine)._cell.pid, signal.SIGSTOP)
        with pytest.raises(MachineLostError, match="stopped"):
            await running

    machines.play(body, grace_s=0.5)


def test_a_kill_from_outside_is_no_act_of_the_agent(machines):
    async def body(machine):
        running = asyncio.create_task(machine.exec(["sleep", "30"], timeout_s=30))
        await asyncio.sleep(0.2)
        os.kill(machines.inside(machine)._cell.pid, signal.SIGKILL)
        with pytest.raises(MachineLostError, match="signal 9 from outside"):
            await running

    machines.play(body)


def test_the_end_of_the_forge_loses_its_machines_and_the_next_start_makes_a_new_one(machines):
    async def body(machine):
        forge = machines.inside(machine)._cell.nest.process
        forge.kill()
        started = time.monotonic()
        with pytest.raises(MachineLostError, match="sandbox around"):
            await machine.exec(["sleep", "30"], timeout_s=30)
        assert time.monotonic() - started < 5
        other = machines.make()
        await other.start()
        assert (await other.exec(["echo", "again"], timeout_s=5)).stdout == "again\n"
        await other.close()
        assert other is not machine

    machines.play(body)


def test_a_stopped_forge_is_given_up_while_its_machines_go_on(machines, monkeypatch):
    async def body(machine):
        monkeypatch.setattr(cells, "START_S", 0.5)
        forge = machines.inside(machine)._cell.nest.process.pid
        stopped = [pid for pid, line in descendants(forge).items() if "forge_guest" in line] + [forge]
        for pid in stopped:
            if pid != machines.inside(machine)._cell.pid:
                os.kill(pid, signal.SIGSTOP)
        other = machines.make()
        with pytest.raises(MachineStartError, match="does not answer"):
            await other.start()
        assert (await machine.exec(["echo", "here"], timeout_s=5)).stdout == "here\n"
        monkeypatch.setattr(cells, "START_S", 20)
        other = machines.make()
        await other.start()
        await other.close()

    machines.play(body)


def test_closing_leaves_no_process_no_mount_and_no_open_file(machines):
    async def one():
        machine = machines.make(files={"a": "x"})
        await machine.start()
        running = asyncio.create_task(machine.exec(["sh", "-c", "sleep 60 & sleep 60"], timeout_s=60))
        await asyncio.sleep(0.1)
        await machine.close()
        with pytest.raises((MachineLostError, OSError)):
            await running

    async def body():
        await one()
        mounts = Path("/proc/self/mountinfo").read_text()
        forge = set(descendants(os.getpid()))
        await asyncio.sleep(0.5)  # both ends of a connection close when they find the time
        files = len(os.listdir("/proc/self/fd"))
        await asyncio.gather(*[one() for _ in range(5)])
        deadline = time.monotonic() + 5
        while (
            set(descendants(os.getpid())) != forge or len(os.listdir("/proc/self/fd")) != files
        ) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert set(descendants(os.getpid())) == forge
        assert Path("/proc/self/mountinfo").read_text() == mounts
        assert len(os.listdir("/proc/self/fd")) == files

    asyncio.run(body())


HOST = """
import asyncio, os, sys
from twinmill.env.machine import make_machine
from twinmill.records.tasks import MachineSpec
async def main():
    machines = [make_machine(sys.argv[1], MachineSpec()) for _ in range(3)]
    for m in machines: await m.start()
    print(os.getpid(), flush=True)
    await asyncio.gather(*[m.exec(["sleep", "100"], timeout_s=100) for m in machines])
asyncio.run(main())
"""


@pytest.mark.parametrize(("how", "stopped"), [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_the_death_of_the_host_process_ends_everything(machines, how, stopped):
    if machines.backend == "remote":
        pytest.skip("its host is the server: tests/machine/remote/ kills one")
    host = subprocess.Popen([sys.executable, "-c", HOST, machines.backend], stdout=subprocess.PIPE, text=True)
    pid = int(host.stdout.readline())
    assert pid == host.pid
    assert len([x for x in leftovers(pid) if x.startswith("process")]) >= 4
    if stopped:  # nobody is left to read an end of file: the kernel's signal of a parent's death must do
        for child in descendants(pid):
            os.kill(child, signal.SIGSTOP)
    host.send_signal(how)
    host.wait()
    deadline = time.monotonic() + 10
    while any(x.startswith("process") for x in leftovers(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [x for x in leftovers(pid) if x.startswith("process")] == []
    # Empty control groups are all that may be left, and the next process to start removes them.
    clean = "from twinmill.env.machine.cgroups import places; places()"
    subprocess.run([sys.executable, "-c", clean], check=True)
    assert leftovers(pid) == []


def test_a_forked_child_of_the_host_does_not_keep_the_machines_alive(machines):
    if machines.backend == "remote":
        pytest.skip("its host is the server, which forks nothing but machines")

    async def start():
        machine = machines.make()
        await machine.start()

    asyncio.run(start())
    forge = nest.mark(os.getpid())
    child = os.fork()
    if child == 0:
        os._exit(0 if not cells._sources.nests else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert any(forge in x for x in leftovers(os.getpid()))
