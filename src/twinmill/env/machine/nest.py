"""A nest: one process (the forge) that clones machines, with the host's end of its order socket. See cells.py.

This process holds the only other end of the forge's order socket. When it dies, by whatever signal, the forge reads end
of file and ends (the death pipe), and the kernel kills it besides when its parent dies. That second tie is to the
*thread* that started it: start the first machine from a thread that lives long.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .bwrap import Python, Sandbox
from .cgroups import PREFIX
from .frames import readable

Process = subprocess.Popen[bytes]
Launcher = Callable[[int], tuple[Process, int]]
_BOOT = """
import sys
bare = frozenset(sys.modules)
import os, json, types
sys.path.pop(0)
_, mark, source, module, fd, *more = sys.argv
with os.fdopen(int(source), "rb") as file:
    sources = json.load(file)
for name, text in sources.items():
    made = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec"), made.__dict__)
sys.modules["python_guest"].BARE_MODULES = bare
sys.modules[module].main(int(fd), *more)
"""
REMEMBERED = 4096
"""deaths kept for those who ask late"""


def mark(pid: int) -> str:
    """What every process of ours carries in its command line, by the pid of the process that owns it."""
    return f"{PREFIX}{pid}"


def memory_file(content: bytes, name: str) -> int:
    """A descriptor from which `content` can be read, to be inherited."""
    fd = os.memfd_create(name, 0)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def sources(module: str) -> int:
    """A descriptor of the source texts that the guest `module` is made of."""
    here = Path(__file__).parent
    guests = dict.fromkeys(("python_guest", "init_guest", module))
    return memory_file(json.dumps({name: (here / f"{name}.py").read_text() for name in guests}).encode(), "source")


def boot(python: Python, source: int, module: str, fd: int) -> list[str]:
    """The command line that runs the guest `module`.main(fd, *further words) from the descriptor `source`."""
    return [str(python.executable), "-c", _BOOT, mark(os.getpid()), str(source), module, str(fd)]


def spawn(argv: list[str], descriptors: list[int], environment: dict[str, str] | None = None) -> tuple[Process, int]:
    """Start a forge with `descriptors`. Returns the process, and a descriptor that holds what it says on stderr."""
    complaints = os.memfd_create("complaints")
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            pass_fds=descriptors,
            env=environment,
            start_new_session=True,  # an interrupt from the terminal is ours to handle, not the forge's
        )
    except BaseException:
        os.close(complaints)
        raise
    return process, complaints


def launch(module: str, fd: int, extra: tuple[str, ...] = ()) -> tuple[Process, int]:
    """Start a bubblewrap that runs the guest `module`.main(fd). Returns what `spawn` does. Raises MachineStartError,
    OSError."""
    box = Sandbox()
    try:
        source = sources(module)
        box.files.append(source)
        argv = box.argv(boot(box.python, source, module, fd), extra=extra)
        return spawn(argv, [*box.files, fd])
    finally:
        box.close()


def said(complaints: int) -> str:
    """The end of what a sandbox wrote on stderr."""
    return os.pread(complaints, 2000, max(0, os.fstat(complaints).st_size - 2000)).decode(errors="replace").strip()


def end(process: Process, patience_s: float = 0.5) -> int:
    """Collect a sandbox whose end is near; kill it if that does not come by itself (a stopped one). Its status."""
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(10)


@dataclass
class Nest:
    """One forge."""

    process: Process
    orders: socket.socket
    complaints: int
    fates: dict[int, int] = field(default_factory=dict)
    """id -> wait status of machines that ended"""
    cpu_s: float = 0.0
    """CPU seconds of the machines that ended, with everything that ran in them"""
    alive: int = 0
    made: int = 0
    served: bool = False
    """at least one machine came to life"""
    last_words: str = ""
    """what it had said on stderr when it was closed"""
    retired: bool = False
    """makes no new machines and ends with its last one"""

    @classmethod
    def start(cls, launcher: Launcher) -> "Nest":
        """`launcher` starts a forge that takes orders from a descriptor."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process, complaints = launcher(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return cls(process, ours, complaints)

    def next_id(self) -> int:
        self.made += 1
        self.fates.pop(self.made - REMEMBERED, None)
        return self.made

    def order(self, order: bytes, fds: list[int]) -> None:
        """Raises OSError when the forge is gone."""
        self.listen()
        socket.send_fds(self.orders, [order], fds)

    async def ask(self, order: bytes, deadline_s: float) -> int | None:
        """An order with a reply: the descriptor that came with it, if one did. Raises OSError that says what the forge
        said, EOFError when it is gone, TimeoutError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.setblocking(False)
            with theirs:
                self.order(order, [theirs.fileno()])
            async with asyncio.timeout(deadline_s):
                await readable(ours.fileno())
            words, fds, _, _ = socket.recv_fds(ours, 1024, 1)
        if not words:
            raise EOFError
        if words != b"\0":
            raise OSError(words.decode(errors="replace"))
        return fds[0] if fds else None

    def listen(self) -> bool:
        """Take in the reports of deaths. False = the forge is gone."""
        with contextlib.suppress(BlockingIOError):
            while self.orders.fileno() >= 0:
                try:
                    data = self.orders.recv(4096)
                except ConnectionError:
                    data = b""
                if not data:
                    return False
                report = json.loads(data)
                self.cpu_s += report["cpu_s"]
                self.fates[report["gone"]] = report["status"]
            return False
        return True

    async def fate(self, id: int, within_s: float = 2.0) -> int | None:
        """The wait status with which machine `id` ended; None = the forge is gone, or does not know of a death."""
        for _ in range(int(within_s / 0.005)):
            if not self.listen() or id in self.fates:
                break
            await asyncio.sleep(0.005)
        return self.fates.get(id)

    def release(self) -> None:
        """One machine less."""
        self.alive -= 1
        self.listen()  # reports of deaths must not fill the socket
        if self.retired and self.alive <= 0:
            self.close()

    def retire(self) -> None:
        self.retired = True
        if self.alive <= 0:
            self.close()

    def close(self) -> None:
        """End the forge and every machine that is left. Idempotent."""
        if self.orders.fileno() >= 0:
            self.retired = True
            self.orders.close()
            end(self.process)
            self.last_words = said(self.complaints)
            os.close(self.complaints)

    def said(self) -> str:
        """The end of what it has written on stderr, also after its end (when the descriptor's number is another's)."""
        return said(self.complaints) if self.orders.fileno() >= 0 else self.last_words
