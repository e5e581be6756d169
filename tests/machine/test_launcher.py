"""What only the native launcher does, and what happens where it cannot."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from twinmill.env.machine import cells, make_machine, native
from twinmill.env.machine.base import MachineRefused, MachineStartError
from twinmill.env.machine.leftovers import leftovers
from twinmill.records.tasks import MachineSpec

from .machines import Machines

pytestmark = pytest.mark.skipif(bool(native.supported()), reason=f"native machines: {native.supported()}")
machines = Machines("native")


@pytest.fixture(autouse=True)
def fresh():
    cells.close_all()
    yield
    cells.close_all()
    assert leftovers(os.getpid()) == []


DENIED = """
import ctypes, errno, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    ctypes.set_errno(0)
    result = libc.syscall(*words)
    return errno.errorcode.get(ctypes.get_errno(), 'allowed') if result < 0 else 'allowed'
x86 = platform.machine() == 'x86_64'
for name, number in {'open_tree': 428, 'fsopen': 430, 'io_uring_setup': 425, 'bpf': 321 if x86 else 280,
                     'setns': 308 if x86 else 268, 'userfaultfd': 323 if x86 else 282, 'keyctl': 250 if x86 else 219,
                     'perf_event_open': 298 if x86 else 241}.items():
    print(name, call(number, 0, 0, 0, 0, 0))
print('clone3', call(435, 0, 0))
print('unknown', call(100000, 0))
print('unshare', call(272 if x86 else 97, 0x10000000))
print('unshare files', call(272 if x86 else 97, 0x400))
for family in (socket.AF_VSOCK, socket.AF_PACKET, 38):
    try: socket.socket(family, socket.SOCK_STREAM); print(family, 'allowed')
    except OSError as e: print(int(family), errno.errorcode[e.errno])
import fcntl, pty
try: fcntl.ioctl(pty.openpty()[1], 0x5412, b'x')
except OSError as e: print('TIOCSTI', errno.errorcode[e.errno])
"""


def test_what_the_filter_denies():
    said = dict(line.rsplit(" ", 1) for line in machines.script(DENIED).stdout.splitlines())
    assert {name for name, answer in said.items() if answer == "EPERM"} == {
        "open_tree", "fsopen", "io_uring_setup", "bpf", "setns", "userfaultfd", "keyctl", "perf_event_open", "unshare",
        "TIOCSTI",
    }  # fmt: skip
    assert said["clone3"] == said["unknown"] == "ENOSYS"
    assert {said[family] for family in ("40", "17", "38")} == {"EAFNOSUPPORT"}
    assert said["unshare files"] == "allowed"


def test_threads_debuggers_and_ordinary_programs_are_not_in_its_way():
    program = (
        "import threading, subprocess, multiprocessing, os, ctypes, sqlite3, tempfile, select, mmap\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "print(subprocess.run(['sh', '-c', 'echo sub'], capture_output=True, text=True).stdout, end='')\n"
        "child = os.fork()\n"
        "if child == 0:\n    ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.execv('/bin/true', ['true'])\n"
        "print('traced', os.WIFSTOPPED(os.waitpid(child, 0)[1]))\n"
        "import signal; os.kill(child, signal.SIGKILL); os.waitpid(child, 0)\n"
        "db = sqlite3.connect('/work/a.db'); db.execute('create table t (x)'); db.commit(); print('sqlite')\n"
        "import shutil; shutil.move('/work/a.db', '/tmp/b.db'); os.mkdir('/tmp/d'); os.rename('/tmp/b.db', '/tmp/d/c')\n"
        "print(os.path.exists('/tmp/d/c'))\n"
    )
    said = machines.script(program, timeout_s=30)
    assert (said.stdout, said.stderr) == ("thread\nsub\ntraced True\nsqlite\nTrue\n", "")


def test_its_status_says_what_was_given_up():
    words = ("CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Groups")
    said = machines.command("grep", "-E", f"^({'|'.join(words)}):", "/proc/self/status").stdout
    status = {line.split(":")[0]: line.split(":")[1].strip() for line in said.splitlines()}
    none = dict.fromkeys(("CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)
    assert status == none | {"NoNewPrivs": "1", "Seccomp": "2", "Groups": status["Groups"]}


def test_every_namespace_is_its_own_and_what_it_shows_is_no_other_machines():
    async def body(first):
        second = machines.make()
        await second.start()
        try:
            kinds = ("mnt", "pid", "net", "ipc", "uts", "cgroup", "user")
            spaces = [[os.readlink(f"/proc/{pid}/ns/{kind}") for kind in kinds] for pid in pids(first, second)]
            assert all(len({space[i] for space in spaces}) == 3 for i in range(len(kinds)))
            assert (await first.exec(["cat", "/proc/self/cgroup"], timeout_s=5)).stdout.count(":/\n") >= 1
            assert "twinmill" not in (await first.exec(["cat", "/proc/self/cgroup"], timeout_s=5)).stdout
        finally:
            await second.close()

    def pids(first, second):
        return os.getpid(), first._cell.pid, second._cell.pid

    machines.play(body)


def test_the_layers_are_out_of_sight():
    look = "ls -A /mnt; touch /mnt/x; ls /mnt/upper; umount /mnt; cd /proc/1/root; mount -t tmpfs x /mnt; echo end"
    said = machines.command("sh", "-c", look)
    assert said.stdout == "end\n"
    for refusal in ("Read-only file system", "No such file", "umount: ", "can't cd to /proc/1/root", "mount: /mnt"):
        assert refusal in said.stderr


NETS = "import os; print(os.readlink('/proc/self/ns/net'))"


def net_after(machine_does):
    """The network namespaces of two machines, one after the other, of which the first does something."""

    async def body():
        seen = []
        for program in (machine_does, "pass"):
            machine = machines.make()
            await machine.start()
            seen.append((await machine.exec(["python3", "-c", NETS], timeout_s=10)).stdout)
            await machine.exec(["python3", "-c", program], timeout_s=10)
            await machine.close()
            for nest in cells._sources.nests.values():
                await nest.fate(nest.made)  # its end has reached the forge
        return seen

    return asyncio.run(body())


def test_an_untouched_network_namespace_is_used_again_and_no_other():
    first, second = net_after("pass")
    assert first == second
    touches = {
        "bound": "import socket as s; l = s.create_server(('127.0.0.1', 8000)); s.create_connection(l.getsockname())",
        "refused": "import socket\ntry: socket.create_connection(('127.0.0.1', 9))\nexcept OSError: pass",
        "unreachable": "import socket\ntry: socket.create_connection(('10.1.1.1', 9))\nexcept OSError: pass",
        "datagram": "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    }
    for what, program in touches.items():
        first, second = net_after(program)
        assert first != second, f"a namespace in which something was {what} came back"


def test_a_machine_costs_at_most_four_descriptors():
    async def body():
        many, ours, forges = [], [], []
        for count in (1, 20):
            while len(many) < count:
                many.append(machines.make())
                await many[-1].start()
            await asyncio.sleep(0.5)  # the forge fills its pool
            ours.append(len(os.listdir("/proc/self/fd")))
            forge = cells._sources.nests["native"].process.pid
            forges.append(len(os.listdir(f"/proc/{forge}/fd")))
        for machine in many:
            await machine.close()
        return ours[1] - ours[0] + forges[1] - forges[0]

    assert asyncio.run(body()) <= 4 * 19


def test_a_bare_machine_holds_little_memory():
    """Beside what it shares with the forge: bytes of its own."""

    async def body(machine):
        rollup = Path(f"/proc/{machine._cell.pid}/smaps_rollup").read_text()
        return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_Dirty"))

    assert machines.play(body) < 1500  # KiB


def test_where_the_native_launcher_cannot_bubblewrap_serves_and_says_why(monkeypatch):
    monkeypatch.setattr(native, "supported", lambda: "it was not compiled")
    said = Machines("namespace").play(limits)
    assert said["made by"].startswith("bubblewrap")
    with pytest.raises(MachineStartError, match="native: it was not compiled"):
        machines.play(limits)
    assert cells.reasons() == {"native": "it was not compiled"}
    with pytest.raises(MachineRefused, match="native: it was not compiled"):
        Machines("namespace").play(limits, needs=("background",))


async def limits(machine):
    return machine.limits_in_force


def test_a_kernel_that_refuses_is_named_and_passed_over(monkeypatch):
    """The guest asks for a mount that does not exist, and is refused as by a host that forbids it."""
    text = Path.read_text
    wrong = lambda path, *a, **k: text(path, *a, **k).replace('"/mnt", "tmpfs"', '"/mnt", "no such thing"')  # noqa: E731
    monkeypatch.setattr(Path, "read_text", wrong)
    with pytest.raises(MachineStartError, match=r"native: .*mount no such thing: No such device"):
        machines.play(limits)
    cells.close_all()
    said = Machines("namespace").play(limits)
    assert said["made by"].startswith("bubblewrap")


def test_where_nothing_works_every_reason_is_given(monkeypatch):
    monkeypatch.setattr(native, "supported", lambda: "not here")
    monkeypatch.setitem(cells.LAUNCHERS, "nested", lambda fd: (_ for _ in ()).throw(OSError("no bubblewrap")))
    with pytest.raises(MachineStartError, match="no bubblewrap"):
        asyncio.run(make_machine("namespace", MachineSpec()).start())


def test_a_forge_that_runs_out_of_descriptors_refuses_and_goes_on(tmp_path):
    """In a process of its own, whose forge may have few."""
    program = (
        "import asyncio, resource, sys\n"
        "from twinmill.env.machine import make_machine\nfrom twinmill.env.machine.base import MachineStartError\n"
        "from twinmill.records.tasks import MachineSpec\n"
        "async def main():\n"
        "    first = make_machine('native', MachineSpec()); await first.start()\n"
        "    from twinmill.env.machine import cells\n"
        "    forge = cells._sources.nests['native'].process.pid\n"
        "    resource.prlimit(forge, resource.RLIMIT_NOFILE, (128, 128))\n"
        "    made, refused = [first], 0\n"
        "    for _ in range(80):\n"
        "        machine = make_machine('native', MachineSpec())\n"
        "        try: await machine.start(); made.append(machine)\n"
        "        except MachineStartError: refused += 1\n"
        "    print(refused > 0, (await first.exec(['echo', 'here'], timeout_s=5)).stdout.strip())\n"
        "    for machine in made: await machine.close()\n"
        "    last = make_machine('native', MachineSpec()); await last.start(); await last.close(); print('again')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True here\nagain\n", done.stderr


def test_nothing_of_an_earlier_commands_input_is_in_a_later_commands_memory():
    """A grader's secret goes to one command; the next is a fork of the same process 1."""
    secret = b"grader-secret-" + b"31415926"
    search = (
        "import re\nfound = 0\n"
        "with open('/proc/self/mem', 'rb') as memory:\n"
        "    for line in open('/proc/self/maps'):\n"
        "        ends = re.match(r'(\\w+)-(\\w+) r', line)\n"
        "        if not ends or 'vvar' in line or 'vsyscall' in line: continue\n"
        "        start, end = (int(x, 16) for x in ends.groups())\n"
        "        try: memory.seek(start); data = memory.read(end - start)\n"
        "        except (OSError, ValueError): continue\n"
        "        found += data[::-1].count(b'62951413-terces-redarg')\n"  # backwards: it must not find itself
        "print(found)\n"
    )

    async def body(machine):
        await machine.put({"main.py": search.encode()})
        for stdin in (secret, secret * 5000):
            told = await machine.exec(["wc", "-c"], timeout_s=10, stdin=stdin)
            assert told.stdout.strip() == str(len(stdin))
        return (await machine.exec(["python3", "main.py"], timeout_s=30)).stdout

    assert machines.play(body) == "0\n"
