"""Cells: the namespaces of one machine with its process 1, opened in one of two ways.

    nested   a clone of the forge (nest.py), in namespaces inside those of one bubblewrap: about 4 ms of CPU
    alone    a bubblewrap of its own, with a Python of its own: about 20 ms of CPU

The second serves where no user namespace may be made inside another one (rules of AppArmor, of containers); which of
the two a host needs is found by trying. To its user a cell is the same thing either way: a socket to init_guest.

Nothing is mounted on the host: every mount lies in a mount namespace that ends with its last process.
"""

import asyncio
import atexit
import contextlib
import os
import signal
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from .base import MachineLostError, MachineStartError
from .bwrap import find_bwrap
from .cgroups import PREFIX, Group, Groups, strays
from .frames import Refused, frame, greeting, pair, readable
from .limits import Limits, guest_limits
from .nest import Nest, Process, end, launch, said

START_S = 20.0
"""deadline of a machine's start; the first one starts the forge, too"""
END_S = 10.0
"""deadline of a machine's end"""


@dataclass(eq=False)
class Cell:
    """A machine's process 1, as the host sees it."""

    sock: socket.socket
    pid: int
    pidfd: int
    group: Group
    nest: Nest | None = None
    """None = alone"""
    id: int = -1
    """in its nest"""
    process: Process | None = None
    """its own bubblewrap, when alone"""

    def stopped(self) -> bool:
        """Whether process 1 is stopped. From inside nobody can."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
        return False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def fate(self) -> int | None:
        """The exit code of process 1, negative for a signal; None = the sandbox around it went, and it with it."""
        if self.nest is not None:
            status = await self.nest.fate(self.id)
            return None if status is None else os.waitstatus_to_exitcode(status)
        code = await asyncio.to_thread(end, self.process) if self.process is not None else 0
        return 128 - code if code > 128 else code  # bubblewrap reports signal n as 128 + n


class _Sources:
    """What this process has: its nest, its control groups, and whether machines nest on this host."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Start with nothing. In a forked child: what the parent has is not ours, and the forge must see its death."""
        if nest := getattr(self, "nest", None):
            nest.orders.close()
        self.lock = threading.Lock()
        self.nest: Nest | None = None
        self.groups = Groups()
        self.cells: set[Cell] = set()
        self.nests = True
        self.registered = False

    def close_at_exit(self) -> None:
        if not self.registered:
            atexit.register(close_all)
            self.registered = True

    def current(self) -> Nest:
        with self.lock:
            if self.nest is not None and (self.nest.retired or not self.nest.listen()):
                self.nest.retire()
                self.nest = None
            if self.nest is None:
                self.nest = Nest.start()
            return self.nest


_sources = _Sources()


async def open_cell(limits: Limits) -> Cell:
    """A new machine's process 1, in its control group and ready to serve. Raises MachineStartError."""
    _sources.close_at_exit()
    try:
        group = _sources.groups.take(limits.memory_bytes, limits.processes)
    except OSError as error:
        raise MachineStartError(f"a control group could not be made: {error}") from error
    try:
        async with asyncio.timeout(START_S):
            cell = await _open(limits, group)
    except TimeoutError:
        _sources.groups.give(group)
        if _sources.nest is not None:
            _sources.nest.retire()  # the next machine comes from a new one
        raise MachineStartError(f"no machine within {START_S:g} s: its forge does not answer") from None
    except BaseException as error:
        _sources.groups.give(group)
        if isinstance(error, OSError | Refused):
            raise MachineStartError(f"a machine could not be started: {error}") from error
        raise
    _sources.cells.add(cell)
    try:
        group.attach(cell.pid)
    except ProcessLookupError as error:
        await close_cell(cell)
        raise MachineStartError(
            "the machine's process 1 died at its start, before it was in its control group"
        ) from error
    except OSError as error:
        await close_cell(cell)
        raise MachineStartError(f"a machine could not be put into its control group: {error}") from error
    return cell


async def _open(limits: Limits, group: Group) -> Cell:
    if _sources.nests:
        try:
            return await _open_nested(limits, group)
        except Refused:
            if _sources.nest is not None:
                if _sources.nest.served:
                    raise
                _sources.nest.retire()
            _sources.nests = False  # not on this host: not one was ever made
    return await _open_alone(limits, group)


async def _open_nested(limits: Limits, group: Group) -> Cell:
    nest = _sources.current()
    ours, theirs = pair()
    try:
        with theirs:
            id = nest.order(guest_limits(limits, group), theirs)
        pid = await greeting(ours)
        cell = Cell(ours, pid, os.pidfd_open(pid), group, nest=nest, id=id)
    except (EOFError, ConnectionError, ProcessLookupError):
        ours.close()
        there, why = nest.listen(), nest.said()
        if not there:
            nest.retire()
        raise MachineStartError(f"the machine's process 1 died at its start. {why}") from None
    except BaseException:
        ours.close()
        raise
    nest.alive += 1
    nest.served = True
    return cell


async def _open_alone(limits: Limits, group: Group) -> Cell:
    extra: list[str] = ["--disable-userns"]
    for mode, folder in (("0755", "/work"), ("1777", "/tmp"), ("1777", "/dev/shm")):
        extra += ["--perms", mode, "--size", str(limits.disk_bytes), "--tmpfs", folder]
    ours, theirs = pair()
    with theirs:
        process, complaints = launch("init_guest", theirs.fileno(), tuple(extra))
    try:
        await asyncio.get_running_loop().sock_sendall(ours, frame(guest_limits(limits, group)))
        pid = await greeting(ours)
        return Cell(ours, pid, os.pidfd_open(pid), group, process=process)
    except BaseException as error:
        ours.close()
        end(process)
        if isinstance(error, EOFError | ConnectionError):
            raise MachineStartError(f"bubblewrap ({find_bwrap().path}) made no machine. {said(complaints)}") from None
        raise
    finally:
        os.close(complaints)


async def close_cell(cell: Cell) -> None:
    """Kill process 1 and wait for its end, which the kernel grants when everything in its namespaces is dead.
    Raises MachineLostError when it does not end."""
    _sources.cells.discard(cell)
    cell.kill()
    cell.sock.close()
    try:
        async with asyncio.timeout(END_S):
            await readable(cell.pidfd)
            if cell.process is not None:
                await asyncio.to_thread(end, cell.process)
    except TimeoutError:
        raise MachineLostError(f"process {cell.pid} does not end within {END_S:g} s of SIGKILL") from None
    finally:
        os.close(cell.pidfd)
        if cell.nest is not None:
            cell.nest.release()
    _sources.groups.give(cell.group)


def close_all() -> None:
    """End every machine of this process and its forge, and remove its control groups. Runs at the interpreter's end,
    too; after a kill the kernel ends the processes, and the next process to start removes the groups, then empty."""
    with _sources.lock:
        for cell in _sources.cells:
            cell.kill()
        if _sources.nest is not None:
            _sources.nest.close()
            _sources.nest = None
        _sources.cells.clear()
        _sources.groups.remove()


def machine_cpu_s() -> float:
    """CPU seconds of the machines of this process that ended (nested ones; the host's own side is not in it)."""
    if _sources.nest is None:
        return 0.0
    _sources.nest.listen()
    return _sources.nest.cpu_s


def leftovers(owner: int | None = None) -> list[str]:
    """What is left of machines: processes and control groups of the process `owner`, or, for None, of all owners that
    are dead. For tests and supervisors; empty is what it should be."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            for word in words:
                pid = word.removeprefix(PREFIX)
                if word.startswith(PREFIX) and pid.isdigit() and alive and _wanted(int(pid), owner):
                    found.append(f"process {folder.name} of {word}")
    found += [f"control group {path}" for pid, path in strays() if _wanted(pid, owner)]
    return sorted(found)


def _wanted(pid: int, owner: int | None) -> bool:
    return pid == owner if owner is not None else not Path(f"/proc/{pid}").exists()
