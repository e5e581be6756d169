"""Between client and server a line that loses what it carries: nothing is done twice, and nothing is lost by it."""

import asyncio
import contextlib
import time

import pytest

from twinmill.env.machine.base import MachineLostError, MachineStartError
from twinmill.records.machines import LeaseEnd
from twinmill.records.tasks import MachineSpec

from .conftest import TOKEN


class Line:
    """A relay to a server. `lose` answers are swallowed, each with its connection, after the server has given it."""

    def __init__(self, url):
        self.port = int(url.rpartition(":")[2])
        self.lose, self.lost = 0, 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _relay(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def there():
            while data := await reader.read(65536):
                far_writer.write(data)
                await far_writer.drain()

        going = asyncio.create_task(there())
        try:
            while data := await far_reader.read(65536):
                if self.lose:
                    self.lose, self.lost = self.lose - 1, self.lost + 1
                    return
                writer.write(data)
                await writer.drain()
        finally:
            going.cancel()
            with contextlib.suppress(OSError):
                far_writer.close()
                writer.close()


def played(fakes, body, **config):
    server = fakes()

    async def whole():
        async with Line(server.url) as line:
            machine = server.machine(url=line.url, patience_s=5.0, **config)
            try:
                return await body(machine, line)
            finally:
                await machine.close()

    return asyncio.run(whole()), server


def test_a_create_whose_answer_was_lost_twice_makes_one_machine(fakes):
    async def body(machine, line):
        line.lose = 2
        await machine.start()
        return line.lost

    lost, server = played(fakes, body)
    assert (lost, len(server.made)) == (2, 1)


def test_a_command_whose_answer_was_lost_is_not_run_again(fakes):
    async def body(machine, line):
        await machine.start()
        said = []
        for _ in range(3):
            line.lose = 1
            said.append((await machine.exec(["count"], timeout_s=5)).stdout)
        return said, line.lost

    (said, lost), server = played(fakes, body)
    assert (said, lost) == (["1", "2", "3"], 3)
    assert sum(call == ("exec", "count") for call in server.made[0].calls) == 3


def test_a_command_that_is_running_when_the_line_breaks_is_waited_for(fakes):
    """Answers begin with a sign of life, which is lost; who asks again gets the end of the same command."""

    async def body(machine, line):
        await machine.start()
        line.lose = 1
        started = time.monotonic()
        await machine.exec(["sleep", "1"], timeout_s=5)
        return line.lost, time.monotonic() - started

    (lost, seconds), server = played(fakes, body)
    assert lost == 1 and seconds < 4
    assert server.made[0].calls.count(("exec", "sleep", "1")) == 1


def test_a_fork_whose_answer_was_lost_makes_its_children_once(fakes):
    async def body(machine, line):
        await machine.start()
        line.lose = 1
        children = await machine.fork(2)
        await children[0].put({"a": b"1"})
        files = [await child.get(["*"]) for child in children]
        for child in children:
            await child.close()
        return files

    files, server = played(fakes, body)
    assert files == [{"a": b"1"}, {}]
    account = server.host.account(TOKEN)
    assert (account.created, account.ended[LeaseEnd.CLOSED.value], account.alive) == (3, 3, 0)


def test_many_ask_for_one_key_and_get_one_machine(fakes):
    server = fakes()
    first, *others = [server.machine() for _ in range(4)]
    for other in others:
        other.key = first.key

    async def whole():
        await asyncio.gather(*[machine.start() for machine in (first, *others)])
        await first.close()
        with pytest.raises(MachineLostError, match="closed"):
            await others[0].exec(["true"], timeout_s=1)
        for other in others:
            await other.close()

    asyncio.run(whole())
    assert len(server.made) == 1


def test_one_key_is_not_for_two_specs(fakes):
    server = fakes()
    first, second = server.machine(), server.machine(spec=MachineSpec(files={"a": "b"}))
    second.key = first.key

    async def whole():
        await first.start()
        with pytest.raises(MachineStartError, match="every machine needs a key of its own"):
            await second.start()
        await first.close()

    asyncio.run(whole())


def test_no_tenant_reaches_anothers_machine(tmp_path, fakes):
    from twinmill.env.machine.remote.host import Tenant

    tenants = [Tenant(name="a", token="a" * 16), Tenant(name="b", token="b" * 16)]
    server = fakes(tenants=tenants)
    mine, other = server.machine(token="a" * 16), server.machine(token="b" * 16)
    other.key = mine.key

    async def whole():
        await mine.start()
        await mine.put({"secret": b"1"})
        await other.start()
        assert await other.get(["*"]) == {}
        await other.close()
        assert await mine.get(["*"]) == {"secret": b"1"}
        await mine.close()

    asyncio.run(whole())
    assert len(server.made) == 2
