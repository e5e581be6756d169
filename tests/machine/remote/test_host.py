"""Tenants, quotas and leases, without HTTP."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from twinmill.env.machine.base import MachineLostError, MachineStartError
from twinmill.env.machine.fake import FakeMachine
from twinmill.env.machine.remote.host import Bucket, Host, HostConfig, Tenant
from twinmill.env.machine.remote.journal import Journal, read
from twinmill.records.machines import Call, Done, Failed, Get, Jobs, LeaseEnd, LeaseEnded, LeaseOpened, Put, Snapshot
from twinmill.records.tasks import MachineSpec

from .conftest import TOKEN

SPEC = MachineSpec()
ONE = (Tenant(name="a", token=TOKEN),)


@asynccontextmanager
async def hosting(folder, make=FakeMachine, tenants=ONE, **config):
    with Journal(folder) as journal:
        host = Host(make, tenants, journal, HostConfig(**config))
        watching = asyncio.create_task(host.watch())
        try:
            yield host, host.account(TOKEN)
        finally:
            await host.drain(0.0)
            watching.cancel()


def journal_of(folder):
    return [line.what for line in read(folder / "1.jsonl") if isinstance(line.what, LeaseOpened | LeaseEnded)]


def test_a_bucket_gives_so_many_at_once_and_then_evenly():
    now = [0.0]
    bucket = Bucket(60, lambda: now[0])
    assert [bucket.take() for _ in range(60)] == [0.0] * 60
    assert bucket.take() == pytest.approx(1.0)
    now[0] = 0.5
    assert bucket.take() == pytest.approx(0.5)
    now[0] = 1.0
    assert bucket.take() == 0.0
    now[0] = 1e6
    assert [bucket.take() for _ in range(61)][-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("tenants", "words"),
    [
        ([], "at least one tenant"),
        ([Tenant(name="a", token="x" * 16), Tenant(name="a", token="y" * 16)], "share one of their names"),
        ([Tenant(name="a", token="x" * 16), Tenant(name="b", token="x" * 16)], "share one of their tokens"),
    ],
)
def test_tenants_that_cannot_be(tmp_path, tenants, words):
    async def body():
        with pytest.raises(ValueError, match=words), Journal(tmp_path) as journal:
            Host(FakeMachine, tenants, journal, HostConfig())

    asyncio.run(body())


def test_a_short_token_and_an_empty_quota_are_refused_and_no_token_is_shown():
    with pytest.raises(ValueError, match="must have at least 16"):
        Tenant(name="a", token="short")
    for token in ("with spaces in the middle", "of two lines\n-and-so-on", "schlüssel-mit-umlaut"):
        with pytest.raises(ValueError, match="no header can carry") as error:
            Tenant(name="a", token=token)
        assert token not in str(error.value)
    with pytest.raises(ValueError, match="at least 1"):
        Tenant(name="a", token="x" * 16, machines=0)
    assert "x" * 16 not in repr(Tenant(name="a", token="x" * 16))


def test_a_lease_is_on_disk_before_its_machine_is_made(tmp_path):
    seen = []

    def make(spec):
        seen.append(journal_of(tmp_path))
        return FakeMachine(spec)

    async def body():
        async with hosting(tmp_path, make) as (host, account):
            await host.create(account, "key-1", SPEC, 60.0)

    asyncio.run(body())
    assert seen == [[LeaseOpened(lease="000000", tenant="a", key="key-1")]]
    assert journal_of(tmp_path)[1:] == [LeaseEnded(lease="000000", reason=LeaseEnd.DRAINED)]


def test_what_cannot_be_made_ends_its_lease_and_its_key_is_free_again(tmp_path):
    fail = [MachineStartError("no room")]

    def make(spec):
        return FakeMachine(spec, fail={"start": fail.pop()} if fail else {})

    async def body():
        async with hosting(tmp_path, make) as (host, account):
            with pytest.raises(MachineStartError, match="no room"):
                await host.create(account, "key-1", SPEC, 60.0)
            await host.create(account, "key-1", SPEC, 60.0)
            assert account.ended == {"failed": 1} and account.alive == 1

    asyncio.run(body())


def test_a_close_while_a_machine_starts_leaves_none(tmp_path):
    made = []

    class Starting(FakeMachine):
        async def start(self):
            made.append(self)
            await asyncio.sleep(30)

    async def body():
        async with hosting(tmp_path, Starting) as (host, account):
            creating = asyncio.create_task(host.create(account, "key-1", SPEC, 60.0))
            await asyncio.sleep(0.1)
            await host.close(account, "key-1")
            with pytest.raises(MachineLostError, match="before it was ready"):
                await creating
            assert made[0].state == "closed" and account.alive == 0

    asyncio.run(body())


def test_a_slow_start_is_no_lost_client(tmp_path):
    class Starting(FakeMachine):
        async def start(self):
            await asyncio.sleep(0.5)
            await super().start()

    async def body():
        async with hosting(tmp_path, Starting) as (host, account):
            await host.create(account, "key-1", SPEC, 0.2)
            assert account.alive == 1
            await asyncio.sleep(0.5)
            assert account.ended == {"expired": 1}

    asyncio.run(body())


def test_a_host_that_stood_still_gives_its_clients_that_time_on_top(tmp_path):
    async def body():
        async with hosting(tmp_path) as (host, account):
            await host.create(account, "key-1", SPEC, 1.0)
            await asyncio.sleep(0.1)
            time.sleep(2.0)
            await asyncio.sleep(0.2)
            assert account.alive == 1
            await asyncio.sleep(1.5)
            assert account.alive == 0

    asyncio.run(body())


def test_calls_are_answered_once_and_again_but_never_backwards(tmp_path):
    async def body():
        async with hosting(tmp_path) as (host, account):
            await host.create(account, "key-1", SPEC, 60.0)
            lease = host.find(account, "key-1")
            put = Call(number=0, ask=Put(files={"a": b"1"}))
            assert await host.call(lease, put) == Done() == await host.call(lease, put)
            assert lease.machine.calls.count(("put", "a")) == 1
            await host.call(lease, Call(number=3, ask=Get(patterns=("*",))))
            with pytest.raises(MachineLostError, match="two clients have one key"):
                host.call(lease, put)

    asyncio.run(body())


def test_an_answer_that_nobody_fetches_is_freed(tmp_path, monkeypatch):
    monkeypatch.setattr("twinmill.env.machine.remote.host.ANSWER_KEPT_S", 0.1)

    async def body():
        async with hosting(tmp_path) as (host, account):
            await host.create(account, "key-1", SPEC, 60.0)
            lease = host.find(account, "key-1")
            await host.call(lease, Call(number=0, ask=Snapshot()))
            assert lease.answer is not None
            await asyncio.sleep(0.4)
            assert lease.answer is None
            with pytest.raises(MachineLostError):
                host.call(lease, Call(number=0, ask=Snapshot()))

    asyncio.run(body())


def test_what_a_backend_lacks_is_refused_by_name(tmp_path):
    async def body():
        async with hosting(tmp_path) as (host, account):
            await host.create(account, "key-1", SPEC, 60.0)
            answer = await host.call(host.find(account, "key-1"), Call(number=0, ask=Jobs()))
            assert answer == Failed(kind="MachineRefused", message="the server's FakeMachine has no background")

    asyncio.run(body())


def test_an_operator_sees_all_and_others_themselves(tmp_path):
    tenants = (Tenant(name="a", token=TOKEN), Tenant(name="op", token="o" * 16, operator=True))

    async def body():
        async with hosting(tmp_path, tenants=tenants) as (host, account):
            operator = host.account("o" * 16)
            await host.create(account, "key-1", SPEC, 60.0)
            await host.create(operator, "key-2", SPEC, 60.0)
            assert [row.key for row in host.status(account).leases] == ["key-1"]
            assert [row.name for row in host.status(account).tenants] == ["a"]
            assert [row.key for row in host.status(operator).leases] == ["key-1", "key-2"]
            with pytest.raises(MachineLostError):
                host.find(operator, "key-1")
            assert host.account("nobody's") is None

    asyncio.run(body())


def no_space(file, what):
    raise OSError(28, "No space left on device")


def test_a_journal_that_cannot_be_written_makes_no_machine_and_loses_none(tmp_path, monkeypatch):
    async def body():
        async with hosting(tmp_path) as (host, account):
            await host.create(account, "key-1", SPEC, 60.0)
            with monkeypatch.context() as full:
                full.setattr("twinmill.env.machine.remote.journal._append", no_space)
                with pytest.raises(MachineStartError, match="cannot write its journal"):
                    await host.create(account, "key-2", SPEC, 60.0)
                await host.close(account, "key-1")
            assert account.alive == 0 and account.created == 1

    asyncio.run(body())
    with Journal(tmp_path) as next_one:
        assert next_one.ended_before == ["000000"]  # the end that could not be written is written now
