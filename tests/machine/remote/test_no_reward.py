"""Whatever goes wrong between client and server is infrastructure: an attempt that meets it has no verdict, not a 0."""

import asyncio
import socket

import pytest

from twinmill.env.machine.base import (
    MachineBusyError,
    MachineDestroyed,
    MachineLostError,
    MachineRefused,
    MachineStartError,
)
from twinmill.env.machine.remote.host import HostConfig, Tenant
from twinmill.env.machine.remote.server import serving
from twinmill.env.reward.grading import grade
from twinmill.records.tasks import Budget, Case, Grader, GraderKind, MachineSpec, Task

from .conftest import TOKEN, Slow

TASK = Task(
    id="t", taskset="t", messages=(), machine=MachineSpec(files={"main.py": "x = 1\n"}), tools=(), budget=Budget(),
    grader=Grader(kind=GraderKind.CASES, cases=(Case(id="a", module="main", call="x", expect="1"),)),
)  # fmt: skip


def verdict_of(make):
    return asyncio.run(grade(TASK, {"main.py": "x = 2\n"}, make, "e"))


def no_reward(make, kind, text):
    verdict = verdict_of(make)
    assert verdict.reward is None and verdict.scores == {}
    assert (verdict.error.type, text in verdict.error.message) == (kind.__name__, True), verdict.error


def test_a_server_that_is_not_there(fakes):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    server = fakes()
    no_reward(
        lambda spec: server.machine(spec=spec, url=url),
        MachineStartError,
        f"{url} did not answer for 1 s (ConnectError",
    )


def test_a_host_that_accepts_and_says_nothing(fakes):
    server = fakes()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        no_reward(lambda spec: server.machine(spec=spec, url=url), MachineStartError, "ReadTimeout")


def test_something_else_that_answers(fakes):
    """A web server that knows nothing of machines: said at once."""

    async def body():
        async def page(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
            writer.close()

        async with await asyncio.start_server(page, "127.0.0.1", 0) as web:
            url = f"http://127.0.0.1:{web.sockets[0].getsockname()[1]}"
            with pytest.raises(MachineRefused, match="is it a `twinmill machines serve`"):
                await fakes().machine(url=url).start()

    asyncio.run(body())


def test_a_token_that_the_server_does_not_know(fakes):
    server = fakes()
    no_reward(
        lambda spec: server.machine(spec=spec, token="another-token-of-16"), MachineRefused, "does not know this token"
    )
    assert server.made == []


@pytest.mark.parametrize("what", ["of the tenant", "of the server", "a minute"])
def test_a_quota_that_is_used_up(fakes, what):
    tenant = Tenant(
        name="tester", token=TOKEN, machines=1 if what == "of the tenant" else 9,
        creates_per_minute=1 if what == "a minute" else 600,
    )  # fmt: skip
    server = fakes(tenants=[tenant], config=HostConfig(machines=1 if what == "of the server" else 9))
    words = {
        "of the tenant": "tester has 1 machines, its most",
        "of the server": "the server has 1 machines, its most",
        "a minute": "tester may make 1 machines a minute",
    }

    async def body():
        first = server.machine()
        await first.start()
        verdict = await grade(TASK, {}, lambda spec: server.machine(spec=spec), "e")
        assert verdict.reward is None and verdict.error.type == "MachineBusyError"
        assert words[what] in verdict.error.message
        forked = await first.fork(1)
        assert isinstance(forked[0], MachineBusyError) and forked[0].retry_after_s > 0
        await first.close()

    asyncio.run(body())


def test_a_full_server_is_waited_for(fakes):
    server = fakes(config=HostConfig(machines=1))

    async def body():
        first, second = server.machine(), server.machine(busy_s=30.0)
        await first.start()
        waiting = asyncio.create_task(second.start())
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await first.close()
        await waiting
        await second.close()

    asyncio.run(body())


class Loses(Slow):
    """What the machine behind raises."""

    error: Exception

    async def put(self, files):
        raise self.error


@pytest.mark.parametrize("error", [MachineLostError("gone"), RuntimeError("a bug of the server"), KeyError("x")])
def test_what_is_lost_or_broken_on_the_server(fakes, error):
    server = fakes(make=type("Losing", (Loses,), {"error": error}))
    kind, text = MachineLostError, "gone" if isinstance(error, MachineLostError) else "the server's own mistake"
    no_reward(lambda spec: server.machine(spec=spec), kind, text)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device", "big"), MachineDestroyed("its memory was filled")]
)
def test_what_the_agents_files_did_is_the_agents(fakes, error):
    """A full disk and a destroyed machine come out as what they are, and are graded."""
    server = fakes(make=type("Full", (Loses,), {"error": error}))
    verdict = verdict_of(lambda spec: server.machine(spec=spec))
    assert verdict.reward == 0.0 and verdict.error is None


def test_a_lease_that_runs_out(fakes):
    """The client's loop stands still for longer than its lease: its machine is ended, and that is nobody's failure."""
    server = fakes(config=HostConfig(lease_s=0.4))

    async def body():
        machine = server.machine()
        await machine.start()
        machine._link._heart.cancel()
        await asyncio.sleep(1.0)
        assert server.made[0].state == "closed"
        with pytest.raises(MachineLostError, match="lease ran out, without a sign of life from its client for"):
            await machine.exec(["true"], timeout_s=1)
        await machine.close()

    asyncio.run(body())


def test_a_heartbeat_keeps_an_idle_machine_and_one_in_a_long_command(fakes):
    server = fakes(config=HostConfig(lease_s=0.5))

    async def body():
        idle, busy = server.machine(), server.machine()
        await asyncio.gather(idle.start(), busy.start())
        await busy.exec(["sleep", "1.5"], timeout_s=9)
        await idle.exec(["true"], timeout_s=9)
        await asyncio.gather(idle.close(), busy.close())

    asyncio.run(body())


def test_the_heart_tells_of_machines_that_are_no_more(fakes):
    server = fakes(config=HostConfig(lease_s=0.4))

    async def body():
        machine = server.machine()
        await machine.start()
        account = server.host.account(TOKEN)
        server.host._leases[account.tenant.name, machine.key].until = 0.0
        await asyncio.sleep(1.0)
        with pytest.raises(MachineLostError, match="lease ran out"):
            machine._there()
        await machine.close()

    asyncio.run(body())


def test_a_server_that_goes_away_for_good(fakes, tmp_path):
    async def body():
        with serving([Tenant(name="t", token=TOKEN)], tmp_path / "other", make=Slow) as (url, _):
            machine = fakes().machine(url=url)
            await machine.start()
        with pytest.raises(MachineLostError, match="did not answer for 1 s"):
            await machine.get(["*"])
        with pytest.raises(MachineLostError, match="did not answer"):
            await machine.get(["*"])
        await machine.close()

    asyncio.run(body())


def test_a_server_that_was_started_anew(fakes, tmp_path):
    """At the same address, with the same tenants, and without the machine."""

    async def body():
        with serving([Tenant(name="t", token=TOKEN)], tmp_path / "other", make=Slow) as (url, _):
            machine = fakes().machine(url=url)
            await machine.start()
        port = int(url.rpartition(":")[2])
        with serving([Tenant(name="t", token=TOKEN)], tmp_path / "other", make=Slow, port=port):
            with pytest.raises(MachineLostError, match="started anew"):
                await machine.get(["*"])
            await machine.close()

    asyncio.run(body())


def test_a_body_that_is_too_large(fakes):
    server = fakes(body_bytes=100_000)

    async def body():
        machine = server.machine()
        await machine.start()
        with pytest.raises(MachineRefused, match="takes bodies of up to 100000 bytes"):
            await machine.put({"big": bytes(200_000)})
        await machine.put({"small": b"1"})
        assert await machine.get(["*"]) == {"small": b"1"}
        await machine.close()
        with pytest.raises(MachineRefused, match="100000 bytes"):
            await server.machine(spec=MachineSpec(files={"big": "x" * 200_000})).start()

    asyncio.run(body())


def test_a_server_that_drains_makes_no_new_machine_and_lets_the_others_end(tmp_path, fakes):
    other = fakes()

    async def body():
        with serving([Tenant(name="t", token=TOKEN)], tmp_path / "other", make=Slow, drain_s=20.0) as (url, host):
            machine = other.machine(url=url)
            await machine.start()
            host._draining.set()
            with pytest.raises(MachineBusyError, match="about to end"):
                await other.machine(url=url).start()
            assert (await machine.exec(["count"], timeout_s=5)).stdout == "1"
            await machine.close()

    asyncio.run(body())
