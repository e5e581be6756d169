"""Floods: of zombies, of output, of bytes that are no text, of links and devices, of ways to outlive a deadline."""

import asyncio
import time

import pytest


async def still_works(machine):
    result = await machine.exec(["python3", "-c", "print(6 * 7)"], timeout_s=10)
    assert (result.stdout, result.stderr, result.return_code) == ("42\n", "", 0)


def test_ten_megabytes_of_output_come_back_whole(machines):
    size = 10 << 20
    program = f"import sys\nsys.stdout.write('0123456789abcde\\n' * {size // 16})\nsys.stderr.write('e' * {size})\n"

    async def body(machine):
        await machine.put({"main.py": program.encode()})
        result = await machine.exec(["python3", "main.py"], timeout_s=60, output_bytes=size)
        assert (len(result.stdout), len(result.stderr), result.truncated) == (size, size, False)
        assert result.stdout == "0123456789abcde\n" * (size // 16)
        short = await machine.exec(["python3", "main.py"], timeout_s=60, output_bytes=size - 1)
        assert (len(short.stdout), short.truncated) == (size - 1, True)

    machines.play(body)


def test_binary_output_and_input(machines):
    every = bytes(range(256))
    result = machines.command("cat", stdin=every)
    assert result.stdout == every.decode(errors="replace")
    back = machines.command("sh", "-c", "cat > data", stdin=every)
    assert back.return_code == 0

    async def body(machine):
        await machine.exec(["sh", "-c", "cat > data"], timeout_s=5, stdin=every * 3)
        assert await machine.get(["data"]) == {"data": every * 3}
        await machine.exec(["sh", "-c", "printf x > \"$(printf 'bad\\377name')\"; printf y > 'new\nline'"], timeout_s=5)
        assert await machine.get(["*e"]) == {"new\nline": b"y"}  # a name that is no UTF-8 has no place in a record

    machines.play(body)


COUNT = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
ZOMBIES = """
import os, time
for _ in range({count}):
    try:
        if os.fork() == 0:
            try: os.fork()   # an orphan: process 1 has to collect it
            finally: os._exit(0)
        {collect}
    except OSError:
        time.sleep(.001)
print("done")
"""


def test_a_storm_of_zombies(machines):
    """Collected ones, orphans and uncollected ones; none is left, and none stops the next command."""

    async def body(machine):
        stormy = ZOMBIES.format(count=400, collect="os.wait()")
        assert (await machine.exec(["python3", "-c", stormy], timeout_s=30)).stdout == "done\n"
        hoarding = ZOMBIES.format(count=60, collect="pass")
        assert (await machine.exec(["python3", "-c", hoarding], timeout_s=30)).stdout == "done\n"
        assert (await machine.exec(["python3", "-c", COUNT], timeout_s=10)).stdout == "2\n"  # it and process 1

    machines.play(body, processes=64)


ESCAPES = {
    "signals": """
import signal
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
""",
    "new session": "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n",
    "stopped child": "import os, signal\nif os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\n",
    "closed output": "import os\nif os.fork(): os._exit(0)\nfor fd in range(3): os.close(fd)\n",
    "held output": "import os\nif os.fork(): os._exit(0)\n",
    "busy threads": """
import threading
def spin():
    while True: pass
for _ in range(4): threading.Thread(target=spin, daemon=True).start()
""",
}
STAYS = """
import time
end = time.time() + 20
while time.time() < end:
    time.sleep(.02)
    open('/tmp/alive', 'a').write('x')
"""


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_outlives_its_deadline(machines, name):
    async def body(machine):
        started = time.monotonic()
        await machine.exec(["python3", "-c", ESCAPES[name] + STAYS], timeout_s=1)
        assert time.monotonic() - started < 8
        look = ["sh", "-c", "touch /tmp/alive; wc -c < /tmp/alive; sleep 0.3; wc -c < /tmp/alive"]
        first, second = (await machine.exec(look, timeout_s=10)).stdout.split()
        assert first == second
        assert (await machine.exec(["python3", "-c", COUNT], timeout_s=10)).stdout == "2\n"

    machines.play(body)


def test_links_and_devices_lead_the_host_nowhere(machines):
    """A put through links, a get of everything: neither touches what is not the workspace's."""
    plant = (
        "import os\n"
        "os.symlink('/etc', 'etc'); os.symlink('/proc/1', 'one'); os.symlink('/dev', 'dev')\n"
        "os.symlink('/dev/zero', 'zero.py'); os.symlink('self.py', 'self.py'); os.mkfifo('pipe.py')\n"
        "os.link('real.py', 'hard.py')\n"
        "for kind in (0o60666, 0o20666):\n"
        "    for place in ('/work/disk.py', '/tmp/disk', '/dev/disk', '/dev/shm/disk'):\n"
        "        try: os.mknod(place, kind, os.makedev(1, 5)); print('made', place)\n        except OSError: pass\n"
        "import socket; socket.socket(socket.AF_UNIX).bind('sock.py')\n"
    )

    async def body(machine):
        await machine.put({"real.py": b"1"})
        assert (await machine.exec(["python3", "-c", plant], timeout_s=10)).stdout == ""
        assert await machine.get(["**"]) == {"hard.py": b"1", "real.py": b"1"}
        for path in ("etc/passwd", "one/status", "dev/planted"):
            with pytest.raises(OSError):
                await machine.put({path: b"x"})
        for path in ("zero.py", "self.py", "pipe.py", "sock.py"):
            await machine.put({path: b"mine"})
        assert (await machine.get(["zero.py"])) == {"zero.py": b"mine"}
        await still_works(machine)

    machines.play(body)


def test_two_machines_share_no_file_and_no_memory(machines):
    async def body(first):
        second = machines.make()
        await second.start()
        try:
            fill = "for d in /work /tmp /dev/shm; do echo secret > $d/x; done"
            await first.exec(["sh", "-c", fill], timeout_s=5)
            look = await second.exec(
                ["sh", "-c", "cat /work/x /tmp/x /dev/shm/x; df /work | tail -1 | tr -s ' ' | cut -d' ' -f3"],
                timeout_s=5,
            )
            assert look.stdout == "0\n" or int(look.stdout) <= 64
            await asyncio.gather(still_works(first), still_works(second))
        finally:
            await second.close()

    machines.play(body)
