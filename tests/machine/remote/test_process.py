"""A real server in a process of its own, with real machines: killed, started anew, told to end; its clients killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from twinmill.env.machine.base import MachineLostError
from twinmill.env.machine.leftovers import leftovers
from twinmill.env.machine.remote.client import RemoteMachine, status_of
from twinmill.env.machine.remote.config import RemoteConfig, Server
from twinmill.env.machine.remote.journal import read
from twinmill.records.machines import LeaseEnd, LeaseEnded, LeaseOpened
from twinmill.records.tasks import MachineSpec

TOKEN = "a-token-for-the-processes"
NAME = "MACHINES_TOKEN_OF_THIS_TEST"


@pytest.fixture(autouse=True)
def quick():
    """Both ends as they are."""


class Process:
    """`twinmill machines serve` on a folder."""

    def __init__(self, folder, port=0, *more):
        command = [sys.executable, "-m", "twinmill.cli.main", "machines", "serve", "--port", str(port)]
        self.process = subprocess.Popen(
            [*command, "--folder", str(folder), "--token-env", NAME, *more],
            stdout=subprocess.PIPE, text=True, env={**os.environ, NAME: TOKEN, "COLUMNS": "300"},
        )  # fmt: skip
        self.said = self.process.stdout.readline()
        self.url = next(word for word in self.said.split() if word.startswith("http")).rstrip(";")
        self.port = int(self.url.rpartition(":")[2])

    def server(self, **config):
        return Server(RemoteConfig(url=self.url, **{"patience_s": 20.0, **config}), TOKEN)

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def ends(folder):
    """(leases opened, reason -> leases ended) over all lives."""
    lines = [line.what for path in folder.glob("*.jsonl") for line in read(path)]
    opened = sum(isinstance(line, LeaseOpened) for line in lines)
    return opened, Counter(line.reason for line in lines if isinstance(line, LeaseEnded))


def test_a_kill_in_the_middle_of_commands_and_the_next_life(tmp_path):
    async def through_a_kill(first):
        server = first.server()
        machines = [RemoteMachine(MachineSpec(), server=server) for _ in range(3)]
        for machine in machines:
            await machine.start()
        running = [asyncio.create_task(machine.exec(["sleep", "60"], timeout_s=60)) for machine in machines]
        await asyncio.sleep(0.5)
        pid = first.process.pid
        await asyncio.to_thread(first.end, signal.SIGKILL)
        second = await asyncio.to_thread(Process, tmp_path, first.port)
        with second:
            assert "ended 3 machines that a killed server left" in second.said
            assert leftovers(pid) == []
            for task in running:
                with pytest.raises(MachineLostError, match="started anew"):
                    await task
            again = RemoteMachine(MachineSpec(), server=server)
            await again.start()
            assert (await again.exec(["echo", "here"], timeout_s=20)).stdout == "here\n"
            for machine in (*machines, again):
                await machine.close()
            assert await asyncio.to_thread(second.end) == 0

    with Process(tmp_path) as first:
        asyncio.run(through_a_kill(first))
    assert ends(tmp_path) == (4, {LeaseEnd.KILLED: 3, LeaseEnd.CLOSED: 1})


CLIENT = """
import asyncio, sys
from twinmill.env.machine.remote.client import RemoteMachine
from twinmill.env.machine.remote.config import RemoteConfig, Server
from twinmill.records.tasks import MachineSpec
async def main():
    machine = RemoteMachine(MachineSpec(), server=Server(RemoteConfig(url=sys.argv[1], lease_s=2.0), sys.argv[2]))
    await machine.start()
    print("up", flush=True)
    await machine.exec(["sleep", "100"], timeout_s=100)
asyncio.run(main())
"""


def test_a_killed_client_loses_its_machine_with_its_lease_and_not_before(tmp_path):
    async def alive(server):
        return (await status_of(server)).alive

    with Process(tmp_path) as served:
        client = subprocess.Popen([sys.executable, "-c", CLIENT, served.url, TOKEN], stdout=subprocess.PIPE, text=True)
        assert client.stdout.readline() == "up\n"
        time.sleep(3)  # longer than the lease: its heart beats
        assert asyncio.run(alive(served.server())) == 1
        client.kill()
        client.wait()
        client.stdout.close()
        deadline = time.monotonic() + 20
        while asyncio.run(alive(served.server())) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert served.end() == 0
    assert ends(tmp_path) == (1, {LeaseEnd.EXPIRED: 1})


def test_sigterm_lets_machines_end_within_their_time_and_ends_the_others(tmp_path):
    async def body(served):
        short, long = (RemoteMachine(MachineSpec(), server=served.server(patience_s=1.0)) for _ in range(2))
        await short.start()
        await long.start()
        running = [asyncio.create_task(m.exec(["sleep", s], timeout_s=60)) for m, s in ((short, "1.5"), (long, "50"))]
        await asyncio.sleep(0.3)
        served.process.send_signal(signal.SIGTERM)
        assert (await running[0]).return_code == 0
        await short.close()
        with pytest.raises(MachineLostError):
            await running[1]
        await long.close()

    with Process(tmp_path, 0, "--drain-s", "4") as served:
        asyncio.run(body(served))
        assert served.process.wait(30) == 0
        pid = served.process.pid
    assert leftovers(pid) == []
    assert ends(tmp_path) == (2, {LeaseEnd.CLOSED: 1, LeaseEnd.DRAINED: 1})


def test_a_second_sigterm_does_not_wait(tmp_path):
    async def body(served):
        machine = RemoteMachine(MachineSpec(), server=served.server(patience_s=1.0))
        await machine.start()
        served.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        served.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert await asyncio.to_thread(served.process.wait, 30) == 0
        assert time.monotonic() - started < 20
        await machine.close()

    with Process(tmp_path, 0, "--drain-s", "300") as served:
        asyncio.run(body(served))
    assert ends(tmp_path) == (1, {LeaseEnd.DRAINED: 1})
