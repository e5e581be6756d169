"""Fork, snapshot, pause, jobs, ports: what a backend has it does right, and what it lacks it refuses by name."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from twinmill.env.machine import cgroups
from twinmill.env.machine.base import Capability, InfrastructureError, MachineRefused

from .test_storms import COUNT

LACKING = {
    "native": set(),
    "remote": set(),
    "bubblewrap": {"background", "expose", "seccomp", "landlock", "services"},
}
"""what a backend may refuse; where no control groups can be made, everybody may refuse what they give"""
OF_GROUPS = {"pause": "freezer", "memory-group": "memory"}


def needs(machines, *capabilities):
    """Play with these, or be refused by name where the backend lacks them."""

    def play(body, **spec):
        try:
            return machines.play(body, needs=capabilities, **spec)
        except MachineRefused as refusal:
            held = {controller for place in cgroups.places() for controller in place.controllers}
            lacking = LACKING[machines.backend] | {name for name, needed in OF_GROUPS.items() if needed not in held}
            named = {name for name in lacking & set(capabilities) if name in str(refusal)}
            if not named or named != lacking & set(capabilities):
                raise
            pytest.skip(f"refused by name: {refusal}")

    return play


async def close_all(children):
    await asyncio.gather(*[child.close() for child in children])


def test_children_of_a_fork_have_the_files_and_go_their_own_ways(machines):
    async def body(parent):
        await parent.exec(
            ["sh", "-c", "mkdir d; echo old > d/old; echo 1 > gone; ln -s d link; echo t > /tmp/t"], timeout_s=5
        )
        children = await parent.fork(3)
        assert not any(isinstance(child, Exception) for child in children)
        try:
            for number, machine in enumerate([parent, *children]):
                change = f"cat d/old link/old main.py /tmp/t; rm gone; echo {number} > mine; echo more >> d/old"
                said = await machine.exec(["sh", "-c", change], timeout_s=5)
                assert (said.stdout, said.stderr) == ("old\nold\npass\nt\n", "")
            for number, machine in enumerate([parent, *children]):
                files = await machine.get(["**"])
                assert files == {"d/old": b"old\nmore\n", "main.py": b"pass\n", "mine": b"%d\n" % number}
        finally:
            await close_all(children)

    needs(machines, Capability.FORK)(body, files={"main.py": "pass\n"})


def test_a_fork_of_a_fork_and_the_end_of_its_parent(machines):
    async def body(first):
        line, generations = first, []
        for generation in range(4):
            await line.put({f"g{generation}": b"%d" % generation})
            (line,) = await line.fork(1)
            generations.append(line)
        try:
            await first.close()
            await close_all(generations[:-1])
            assert await line.get(["**"]) == {f"g{n}": b"%d" % n for n in range(4)}
            assert (
                await line.exec(["sh", "-c", "rm -r g0; mkdir g0; touch g0/x; ls"], timeout_s=5)
            ).stdout == "g0\ng1\ng2\ng3\n"
            assert sorted(await line.get(["**"])) == ["g0/x", "g1", "g2", "g3"]
        finally:
            await line.close()

    needs(machines, Capability.FORK)(body)


def test_each_child_of_a_fork_has_an_outcome_of_its_own(machines, monkeypatch):
    """Every second child cannot be made."""
    from twinmill.env.machine import cells, namespace
    from twinmill.env.machine.base import MachineStartError

    async def body(parent):
        opened, count = cells.open_cell, 0

        async def failing(*args, **more):
            nonlocal count
            count += 1
            if count % 2 == 0:
                raise MachineStartError("no room")
            return await opened(*args, **more)

        monkeypatch.setattr(namespace, "open_cell", failing)
        children = await parent.fork(4)
        assert [isinstance(child, InfrastructureError) for child in children] == [False, True, False, True]
        await close_all(children[::2])
        with pytest.raises(ValueError, match="count"):
            await parent.fork(0)

    needs(machines, Capability.FORK)(body)


def test_a_fork_cannot_have_more_disk_than_its_spec(machines):
    async def body(parent):
        (child,) = await parent.fork(1)
        try:
            full = await child.exec(["sh", "-c", "cat /dev/zero > big"], timeout_s=20)
            assert "No space" in full.stderr
            assert (await parent.exec(["sh", "-c", "head -c 1M /dev/zero > ok"], timeout_s=5)).return_code == 0
        finally:
            await child.close()

    needs(machines, Capability.FORK)(body, disk_bytes=4 << 20)


def test_a_snapshot_is_the_same_bytes_and_comes_back_elsewhere(machines):
    async def body(machine):
        await machine.exec(
            ["sh", "-c", "mkdir -p a/b; echo 1 > a/b/c; ln -s b a/l; chmod 700 a; echo t > /tmp/t"], timeout_s=5
        )
        kept = await machine.snapshot()
        assert kept == await machine.snapshot()
        other = machines.make(files={"stale": "x"})
        await other.start()
        try:
            await other.restore(kept)
            look = await other.exec(["sh", "-c", "ls; cat a/l/c /tmp/t; stat -c %a a"], timeout_s=5)
            assert (look.stdout, look.stderr) == ("a\n1\nt\n700\n", "")
            with pytest.raises(ValueError, match="snapshot"):
                await other.restore(b"no tar")
        finally:
            await other.close()

    needs(machines, Capability.SNAPSHOT)(body)


def test_a_paused_machine_uses_no_time_and_goes_on(machines):
    async def body(machine):
        await machine.pause()
        with pytest.raises(ValueError, match="paused"):
            await machine.exec(["true"], timeout_s=1)
        await machine.resume()
        assert (await machine.exec(["echo", "on"], timeout_s=5)).stdout == "on\n"
        await machine.pause()  # and is closed while paused

    needs(machines, Capability.PAUSE)(body)


def test_a_job_stands_still_while_its_machine_is_paused(machines):
    async def body(machine):
        count = "import time\nwhile True:\n    open('ticks', 'a').write('x'); time.sleep(.01)\n"
        await machine.run_background(["python3", "-c", count])
        await until(lambda: machine.get(["ticks"]))
        await machine.pause()
        await asyncio.sleep(0.1)
        pid = machines.inside(machine)._cell.pid
        before = cpu_ticks(pid)
        await asyncio.sleep(0.4)
        assert cpu_ticks(pid) == before
        await machine.resume()
        first = len((await machine.get(["ticks"]))["ticks"])
        deadline = time.monotonic() + 10
        while len((await machine.get(["ticks"]))["ticks"]) == first and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert len((await machine.get(["ticks"]))["ticks"]) > first

    needs(machines, Capability.BACKGROUND, Capability.PAUSE)(body)


def cpu_ticks(pid):
    """Of all processes in the pid namespace of `pid`."""
    space, total = os.readlink(f"/proc/{pid}/ns/pid"), 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "ns" / "pid") == space:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return total


async def until(condition, within_s=20):
    deadline = time.monotonic() + within_s
    while not (found := await condition()):
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.02)
    return found


def test_jobs_live_on_between_commands_and_end_when_told(machines):
    async def body(machine):
        talk = "import os, time\nprint('up', flush=True)\nos.fork()\nif os.fork() == 0: os.setsid()\nwhile True: time.sleep(.05)\n"
        talker = await machine.run_background(["python3", "-c", talk], log="talk.log")
        short = await machine.run_background(["sh", "-c", "exit 3"])
        await until(lambda: said(machine, "talk.log", b"up\n"))

        async def ended():
            return (await machine.jobs())[short] == 3

        await until(ended)
        for _ in range(3):  # what a command leaves is killed, the job is not
            await machine.exec(["sh", "-c", "sleep 100 & sleep 100 & setsid sleep 100 & echo"], timeout_s=5)
        assert (await machine.exec(["python3", "-c", COUNT], timeout_s=5)).stdout == "7\n"  # 2, keeper, 4 talkers
        assert (await machine.jobs())[talker] is None
        await machine.stop(talker)
        assert (await machine.jobs())[talker] == -9
        assert (await machine.exec(["python3", "-c", COUNT], timeout_s=5)).stdout == "2\n"
        with pytest.raises(FileNotFoundError):
            await machine.run_background(["no-such-program"])
        with pytest.raises(ValueError, match="workspace"):
            await machine.run_background(["true"], log="/etc/x")

    async def said(machine, path, text):
        return (await machine.get([path])).get(path) == text

    needs(machines, Capability.BACKGROUND)(body)


def test_a_fork_bomb_beside_a_job(machines):
    """A bomb may take the job with it; the machine stays usable."""

    async def body(machine):
        await machine.run_background(["sleep", "1000"])
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
        result = await machine.exec(["python3", "-c", bomb], timeout_s=1)
        assert result.timed_out
        left = await machine.exec(["python3", "-c", COUNT], timeout_s=20)
        assert int(left.stdout) <= 4  # it and process 1, and the job with its keeper, if they live

    needs(machines, Capability.BACKGROUND)(body, processes=32)


def test_a_machine_with_jobs_is_not_forked(machines):
    async def body(machine):
        job = await machine.run_background(["sleep", "1000"])
        with pytest.raises(ValueError, match="background"):
            await machine.fork(1)
        await machine.stop(job)
        await close_all(await machine.fork(1))

    needs(machines, Capability.BACKGROUND, Capability.FORK)(body)


SERVER = """
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'inside ' + self.path.encode())
    def log_message(self, *a): pass
http.server.HTTPServer(('127.0.0.1', 8000), H).serve_forever()
"""


def test_a_port_inside_is_reached_from_outside(machines):
    async def ask(host, port, path):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        try:
            return (await asyncio.wait_for(reader.read(), 10)).rpartition(b"\r\n\r\n")[2]
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def body(machine):
        address = await machine.expose(8000)
        assert await ask(*address, "/nobody") == b""  # nothing listens yet
        await machine.run_background(["python3", "main.py"])
        await until(lambda: ask(*address, "/a"))
        busy = asyncio.create_task(machine.exec(["sleep", "1"], timeout_s=10))
        answers = await asyncio.gather(*[ask(*address, f"/{n}") for n in range(5)])
        assert answers == [b"inside /%d" % n for n in range(5)]
        assert not busy.done() or (await busy).return_code == 0
        await busy
        return address

    address = needs(machines, Capability.EXPOSE, Capability.BACKGROUND)(body, files={"main.py": SERVER})
    with pytest.raises(ConnectionError):
        asyncio.run(ask(*address, "/closed"))


@pytest.mark.parametrize("capability", Capability)
def test_a_need_is_given_or_refused_by_name(machines, capability):
    async def body(machine):
        assert capability in machine.capabilities

    needs(machines, capability)(body) if capability != "network" else refused(machines, capability)


def refused(machines, capability):
    with pytest.raises(MachineRefused, match=capability):
        asyncio.run(machines.make(needs=(capability,)).start())
