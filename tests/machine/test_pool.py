"""The pool of one process: turns, retries, the journal, and what a killed pool leaves."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from twinmill.env.machine import make_machine
from twinmill.env.machine.base import MachineBusyError, MachineLostError, MachineRefused, MachineStartError
from twinmill.env.machine.fake import FakeMachine
from twinmill.env.machine.leftovers import leftovers
from twinmill.env.machine.pool.journal import Journal, open_in
from twinmill.env.machine.pool.local import Pool
from twinmill.env.machine.pool.scheduler import PoolConfig
from twinmill.records.tasks import MachineSpec

SPEC = MachineSpec(files={"a.txt": "hi"})


class Fakes:
    """Makes fake machines, the first ones of which fail."""

    def __init__(self, *failures, start_s=0.0):
        self.failures, self.start_s = list(failures), start_s
        self.made = []

    def __call__(self, spec):
        fail = {"start": self.failures.pop(0)} if self.failures else {}
        machine = FakeMachine(spec, fail={name: error for name, error in fail.items() if error})
        plain = machine.start

        async def start():
            await asyncio.sleep(self.start_s)
            await plain()

        machine.start = start
        self.made.append(machine)
        return machine


def play(body, fakes, folder, **config):
    async def whole():
        pool = Pool(fakes, folder, PoolConfig(**{"retry_s": 0.01, **config}))
        try:
            return await body(pool)
        finally:
            await pool.close()

    return asyncio.run(whole())


def test_machines_wait_for_their_turn(tmp_path):
    async def body(pool):
        alive = most = 0

        async def one():
            nonlocal alive, most
            machine = pool.machine(SPEC)
            await machine.start()
            alive += 1
            most = max(most, alive)
            await asyncio.sleep(0.002)
            assert await machine.get(["**"]) == {"a.txt": b"hi"}
            alive -= 1
            await machine.close()

        await asyncio.gather(*[one() for _ in range(20)])
        return most

    fakes = Fakes()
    assert play(body, fakes, tmp_path, machines=3) == 3
    assert [m.state for m in fakes.made] == ["closed"] * 20
    assert [p for p in tmp_path.iterdir() if p.suffix == ".jsonl"] == [], (
        "a life that ended everything leaves no journal"
    )


def test_a_create_that_fails_is_tried_again_and_its_remains_are_closed(tmp_path):
    async def body(pool):
        machine = pool.machine(SPEC)
        await machine.start()
        await machine.close()

    fakes = Fakes(MachineStartError("no"), MachineBusyError("full", retry_after_s=0.01))
    play(body, fakes, tmp_path)
    assert [m.state for m in fakes.made] == ["closed"] * 3


def test_after_the_last_try_its_own_error_is_raised(tmp_path):
    async def body(pool):
        with pytest.raises(MachineStartError, match="third"):
            await pool.machine(SPEC).start()

    play(body, Fakes(*[MachineStartError(n) for n in ("first", "second", "third")]), tmp_path, tries=3)


def test_what_no_retry_can_change_is_raised_at_once(tmp_path):
    async def body(pool):
        with pytest.raises(MachineRefused):
            await pool.machine(SPEC).start()
        return pool.scheduler.nodes["here"].alive

    fakes = Fakes(MachineRefused("no network"))
    assert play(body, fakes, tmp_path) == 0 and len(fakes.made) == 1


def test_who_is_cancelled_gives_the_place_up(tmp_path):
    async def body(pool):
        first, second, third = (pool.machine(SPEC) for _ in range(3))
        await first.start()
        waiting = asyncio.create_task(second.start())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        late = asyncio.create_task(third.start())
        await first.close()
        await asyncio.wait_for(late, 2)
        await third.close()

    play(body, Fakes(), tmp_path, machines=1)


def test_a_turn_that_comes_in_the_moment_of_cancelling_is_not_lost(tmp_path):
    async def body(pool):
        first, second, third = (pool.machine(SPEC) for _ in range(3))
        await first.start()
        waiting = asyncio.create_task(second.start())
        await asyncio.sleep(0.01)
        waiting.cancel()  # before it can react, the place becomes free
        await first.close()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(third.start(), 2)
        await third.close()
        node = pool.scheduler.nodes["here"]
        return node.alive, node.creating

    assert play(body, Fakes(), tmp_path, machines=1) == (0, 0)


def test_a_machine_that_starts_while_the_pool_closes_is_ended(tmp_path):
    async def body(pool):
        starting = asyncio.create_task(pool.machine(SPEC).start())
        await asyncio.sleep(0.02)
        await pool.close()
        with pytest.raises(MachineLostError, match="the pool was closed"):
            await starting

    fakes = Fakes(start_s=0.1)
    play(body, fakes, tmp_path)
    assert [m.state for m in fakes.made] == ["closed"]


def test_a_machine_that_does_not_end_stays_in_the_journal(tmp_path):
    async def body(pool):
        machine = pool.machine(SPEC)
        await machine.start()

        async def stuck():
            raise MachineLostError("it does not end")

        machine._machine.close = stuck
        with pytest.raises(MachineLostError, match="does not end"):
            await machine.close()
        return pool.journal.path

    assert open_in(play(body, Fakes(), tmp_path)) == {1}


def test_closing_the_pool_ends_machines_and_tells_who_waits(tmp_path):
    async def body(pool):
        first, second = pool.machine(SPEC), pool.machine(SPEC)
        await first.start()
        waiting = asyncio.create_task(second.start())
        await asyncio.sleep(0.01)
        await pool.close()
        with pytest.raises(MachineLostError, match="the pool was closed"):
            await waiting
        with pytest.raises(MachineLostError, match="the pool was closed"):
            await pool.machine(SPEC).start()

    fakes = Fakes()
    play(body, fakes, tmp_path, machines=1)
    assert [m.state for m in fakes.made] == ["closed"]


def test_the_journal_is_written_before_a_machine_is_made(tmp_path):
    async def body(pool):
        seen = []
        plain = pool.make

        def make(spec):
            machine = plain(spec)
            start = machine.start

            async def look():
                seen.append(open_in(pool.journal.path))
                await start()

            machine.start = look
            return machine

        pool.make = make
        machine = pool.machine(SPEC)
        await machine.start()
        await machine.close()
        return seen, open_in(pool.journal.path)

    assert play(body, Fakes(), tmp_path) == ([{1}], set())


def test_a_disk_that_is_full_makes_no_machine(tmp_path):
    async def body(pool):
        def full(number):
            raise OSError(28, "No space left on device")

        pool.journal.create = full
        with pytest.raises(MachineStartError, match="no machine without a journal"):
            await pool.machine(SPEC).start()

    fakes = Fakes()
    play(body, fakes, tmp_path, tries=1)
    assert not any(call == ("start",) for machine in fakes.made for call in machine.calls)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineStartError, match="give the pool another folder"):
        Journal(tmp_path / "file")


def test_a_line_that_a_kill_has_cut_opened_nothing(tmp_path):
    path = tmp_path / "j"
    path.write_text('{"create": 1}\n{"create": 2}\n{"end": 1}\n{"create": 3')
    assert open_in(path) == {2}


KILLED = """
import asyncio, sys
from functools import partial
from pathlib import Path
from twinmill.env.machine import make_machine
from twinmill.env.machine.pool.local import Pool
from twinmill.env.machine.pool.scheduler import PoolConfig
from twinmill.records.tasks import MachineSpec

async def main():
    pool = Pool(partial(make_machine, "namespace"), Path(sys.argv[1]), PoolConfig())
    for _ in range(2):
        machine = pool.machine(MachineSpec())
        await machine.start()
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_the_next_pool_ends_what_a_killed_one_left(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    [path] = tmp_path.glob("*.jsonl")
    assert open_in(path) == {1, 2}
    living = Journal(tmp_path)  # a pool of another process, while the first one lives
    assert living.ended_before == 0 and path.exists()
    living.close()
    child.send_signal(signal.SIGKILL)
    child.wait()
    after = Journal(tmp_path)
    assert after.ended_before == 2 and not path.exists()
    assert leftovers(child.pid) == []
    after.close()


def test_a_process_number_that_is_anothers_by_now_is_not_touched(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"twinmill-{os.getpid()}"])
    try:
        (tmp_path / f"{other.pid}-1.jsonl").write_text(json.dumps({"create": 7}) + "\n")
        journal = Journal(tmp_path)
        assert journal.ended_before == 1 and other.poll() is None
        journal.close()
    finally:
        other.kill()
        other.wait()


def test_real_machines_through_the_pool(tmp_path):
    async def body(pool):
        async def one(n):
            machine = pool.machine(SPEC, group="g")
            await machine.start()
            try:
                return (await machine.exec(["cat", "a.txt"], timeout_s=20)).stdout, machine.limits_in_force["network"][
                    :4
                ]
            finally:
                await machine.close()

        return await asyncio.gather(*[one(n) for n in range(6)])

    began = time.monotonic()
    assert play(body, lambda spec: make_machine("namespace", spec), tmp_path, machines=2) == [("hi", "none")] * 6
    assert time.monotonic() - began < 60 and not list(tmp_path.glob("*.jsonl"))
