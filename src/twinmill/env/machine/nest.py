"""The nest: one bubblewrap per process with a warm Python in it (the forge) that clones machines. See cells.py.

This process holds the only other end of the forge's order socket. When it dies, by whatever signal, the forge reads end
of file and ends (the death pipe), and bubblewrap dies with its parent besides. That second tie is to the *thread* that
started it: start the first machine from a thread that lives long.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bwrap import Sandbox
from .cgroups import PREFIX

Process = subprocess.Popen[bytes]
_BOOT = """
import sys
bare = frozenset(sys.modules)
import os, json, types
sys.path.pop(0)
_, mark, source, module, fd = sys.argv
with os.fdopen(int(source), "rb") as file:
    sources = json.load(file)
for name, text in sources.items():
    made = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec"), made.__dict__)
sys.modules["python_guest"].BARE_MODULES = bare
sys.modules[module].main(int(fd))
"""
REMEMBERED = 4096
"""deaths kept for those who ask late"""


def mark(pid: int) -> str:
    """What every process of ours carries in its command line, by the pid of the process that owns it."""
    return f"{PREFIX}{pid}"


def launch(module: str, fd: int, extra: tuple[str, ...] = ()) -> tuple[Process, int]:
    """Start a sandbox that runs the guest `module`.main(fd). Returns the process, and a descriptor that holds what it
    says on stderr. Raises MachineStartError, OSError."""
    box = Sandbox()
    complaints = os.memfd_create("complaints")
    try:
        here = Path(__file__).parent
        guests = dict.fromkeys(("python_guest", "init_guest", module))
        sources = {name: (here / f"{name}.py").read_text() for name in guests}
        source = box.data("source", json.dumps(sources).encode())
        command = [str(box.python.executable), "-c", _BOOT, mark(os.getpid()), str(source), module, str(fd)]
        argv = box.argv(command, extra=extra)
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            argv,
            stdin=null,
            stdout=null,
            stderr=complaints,
            pass_fds=[*box.files, fd],
            start_new_session=True,  # an interrupt from the terminal is ours to handle, not the sandbox's
        )
        return process, complaints
    except BaseException:
        os.close(complaints)
        raise
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
    """One bubblewrap with the forge inside."""

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
    def start(cls) -> "Nest":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process, complaints = launch("forge_guest", theirs.fileno())
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        return cls(process, ours, complaints)

    def order(self, limits: dict[str, Any], theirs: socket.socket) -> int:
        """Have a machine made that serves on `theirs`. Returns its id. Raises OSError when the forge is gone."""
        self.listen()
        self.made += 1
        self.fates.pop(self.made - REMEMBERED, None)
        order = json.dumps({"id": self.made, "limits": limits}).encode()
        socket.send_fds(self.orders, [order], [theirs.fileno()])
        return self.made

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
