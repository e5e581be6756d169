"""Cells: the namespaces of one machine with its process 1, opened in one of three ways.

    native   a clone of the native forge (native.py): all isolation, forks, background jobs
    nested   a clone of a Python forge (forge_guest.py) inside a bubblewrap, in namespaces inside of its
    alone    a bubblewrap of its own, with a Python of its own: the dearest

The next way is taken only where the one before it does not work on this host at all, which is found by trying; why it
does not is kept (`reasons`), shown by `twinmill doctor` and by the machine's limits_in_force. A way that lacks what the
machine needs is passed over by name. To its user a cell is the same thing whatever the way: a socket to process 1.

Nothing is mounted on the host: every mount lies in a mount namespace that ends with its last process.
"""

import asyncio
import atexit
import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import native
from .base import Capability, MachineLostError, MachineRefused, MachineStartError
from .bwrap import find_bwrap
from .cgroups import Group, Groups
from .frames import Refused, greeting, pack, pair, readable
from .limits import Limits, guest_limits, native_limits
from .nest import Nest, Process, end, launch, said

START_S = 20.0
"""deadline of a machine's start; the first one starts the forge, too"""
END_S = 10.0
"""deadline of a machine's end"""
EVERYWHERE = {Capability.FORK, Capability.SNAPSHOT, Capability.ACCESS_TIMES}
FENCES = {Capability.SECCOMP, Capability.LANDLOCK}
CAPABILITIES = {
    "native": EVERYWHERE | FENCES | {Capability.BACKGROUND, Capability.EXPOSE, Capability.SERVICES},
    "nested": EVERYWHERE,
    "alone": EVERYWHERE,
}
"""way -> what it can give; what control groups give comes on top, see group_capabilities"""
LAUNCHERS = {"native": native.launch, "nested": partial(launch, "forge_guest")}
"""ways that have a forge -> what starts it"""


def group_capabilities(controllers: Collection[str]) -> set[Capability]:
    given = {"freezer": Capability.PAUSE, "memory": Capability.MEMORY_GROUP}
    return {capability for controller, capability in given.items() if controller in controllers}


class NotHere(Exception):
    """This way does not work on this host."""


@dataclass(eq=False)
class Cell:
    """A machine's process 1, as the host sees it."""

    way: str
    sock: socket.socket
    pid: int
    pidfd: int
    group: Group
    notes: tuple[str, ...] = ()
    """what process 1 put on itself"""
    nest: Nest | None = None
    """None = alone"""
    id: int = -1
    """in its nest"""
    process: Process | None = None
    """its own bubblewrap, when alone"""
    frozen: bool = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        have = CAPABILITIES[self.way] | group_capabilities(self.group.controllers)
        if Capability.LANDLOCK not in self.notes:
            have = have - {Capability.LANDLOCK}
        return frozenset(have)

    def stopped(self) -> bool:
        """Whether process 1 is stopped. From inside nobody can."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
        return False

    def freeze(self, frozen: bool) -> None:
        self.group.freeze(frozen)
        self.frozen = frozen

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        if self.frozen:
            with contextlib.suppress(OSError):
                self.freeze(False)  # a v1 freezer holds back even this signal

    async def fate(self) -> int | None:
        """The exit code of process 1, negative for a signal; None = the sandbox around it went, and it with it."""
        if self.nest is not None:
            status = await self.nest.fate(self.id)
            return None if status is None else os.waitstatus_to_exitcode(status)
        code = await asyncio.to_thread(end, self.process) if self.process is not None else 0
        return 128 - code if code > 128 else code  # bubblewrap reports signal n as 128 + n


class _Sources:
    """What this process has: its nests by way, its control groups, its machines, and why ways do not work here."""

    def __init__(self) -> None:
        self.nests: dict[str, Nest] = {}
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Start with nothing. In a forked child: what the parent has is not ours, and the forge must see its death."""
        for nest in self.nests.values():
            nest.orders.close()
        self.lock = threading.Lock()
        self.nests = {}
        self.groups = Groups()
        self.cells: set[Cell] = set()
        self.reasons: dict[str, str] = {}
        self.registered = False

    def close_at_exit(self) -> None:
        if not self.registered:
            atexit.register(close_all)
            self.registered = True

    def current(self, way: str) -> Nest:
        with self.lock:
            nest = self.nests.get(way)
            if nest is not None and (nest.retired or not nest.listen()):
                nest.retire()
                nest = None
            if nest is None:
                nest = self.nests[way] = Nest.start(LAUNCHERS[way])
            return nest


_sources = _Sources()


def reasons() -> dict[str, str]:
    """way -> why it does not work on this host, as far as it was tried."""
    return dict(_sources.reasons)


async def open_cell(
    limits: Limits, ways: Collection[str], needs: Collection[str] = (), parent: Cell | None = None
) -> Cell:
    """A new machine's process 1, in its control group and ready to serve. `ways`: in the order of preference; `parent`:
    the just frozen cell that it is a fork of. Raises MachineStartError."""
    _sources.close_at_exit()
    try:
        group = _sources.groups.take(limits.memory_bytes, limits.processes)
    except OSError as error:
        raise MachineStartError(f"a control group could not be made: {error}") from error
    try:
        async with asyncio.timeout(START_S):
            cell = await _open(limits, group, ways, needs, parent)
    except TimeoutError:
        _sources.groups.give(group)
        for nest in _sources.nests.values():
            nest.retire()  # the next machine comes from a new one
        raise MachineStartError(f"no machine within {START_S:g} s: its forge does not answer") from None
    except BaseException as error:
        _sources.groups.give(group)
        if isinstance(error, OSError | Refused):
            raise MachineStartError(f"a machine could not be started: {error}") from error
        raise
    _sources.cells.add(cell)
    if missing := set(needs) - cell.capabilities:
        await close_cell(cell)
        raise MachineRefused(f"the task needs {', '.join(sorted(missing))}; this host's kernel cannot give it")
    return cell


async def _open(
    limits: Limits, group: Group, ways: Collection[str], needs: Collection[str], parent: Cell | None
) -> Cell:
    passed_over, lacks = [], False
    for way in ways:
        if missing := set(needs) - CAPABILITIES[way] - group_capabilities(group.controllers):
            passed_over.append(f"{way} has no {', '.join(sorted(missing))}")
            lacks = True
            continue
        try:
            if way not in _sources.reasons:
                return await OPENERS[way](limits, group, parent)
        except NotHere as error:
            _sources.reasons[way] = str(error)
        passed_over.append(f"{way}: {_sources.reasons[way]}")
    what = f"a machine with {', '.join(sorted(needs))}" if needs else "a machine"
    raise (MachineRefused if lacks else MachineStartError)(f"no way to {what}: {'; '.join(passed_over)}")


async def _greeted(way: str, nest: Nest, id: int, ours: socket.socket, group: Group) -> Cell:
    """The cell of a machine that was just ordered. Raises NotHere when its nest never made one."""
    try:
        pid, notes = await greeting(ours)
        cell = Cell(way, ours, pid, os.pidfd_open(pid), group, notes, nest=nest, id=id)
    except Refused as error:
        ours.close()
        if nest.served:
            raise
        nest.retire()
        raise NotHere(str(error)) from error
    except (EOFError, ConnectionError, ProcessLookupError):
        ours.close()
        there, why = nest.listen(), nest.said()
        if not there:
            nest.retire()
            if not nest.served and nest.process.returncode is not None and nest.process.returncode >= 0:
                raise NotHere(why or f"its forge gave up with status {nest.process.returncode}") from None
        raise MachineStartError(f"the machine's process 1 died at its start. {why}") from None
    except BaseException:
        ours.close()
        raise
    nest.alive += 1
    nest.served = True
    return cell


async def _open_native(limits: Limits, group: Group, parent: Cell | None) -> Cell:
    if why := native.supported():
        raise NotHere(why)
    nest = _sources.current("native") if parent is None or parent.nest is None else parent.nest
    ours, theirs = pair()
    try:
        entrances = group.entrances()
        try:
            id = nest.next_id()
            order = pack(
                "start", id, "" if parent is None else parent.id, *native_limits(limits, group), len(entrances)
            )
            nest.order(order, [theirs.fileno(), *entrances])
        finally:
            for fd in (theirs.detach(), *entrances):
                os.close(fd)
    except ConnectionError:
        pass  # the forge is gone: the greeting finds that out
    except BaseException:
        ours.close()
        raise
    return await _greeted("native", nest, id, ours, group)


async def _open_nested(limits: Limits, group: Group, parent: Cell | None) -> Cell:
    nest = _sources.current("nested")
    ours, theirs = pair()
    id = nest.next_id()
    with theirs, contextlib.suppress(ConnectionError):
        nest.order(json.dumps({"id": id, "limits": guest_limits(limits, group)}).encode(), [theirs.fileno()])
    cell = await _greeted("nested", nest, id, ours, group)
    await _attach(cell)
    return cell


async def _open_alone(limits: Limits, group: Group, parent: Cell | None) -> Cell:
    extra: list[str] = ["--disable-userns"]
    for mode, folder in (("0755", "/work"), ("1777", "/tmp"), ("1777", "/dev/shm")):
        extra += ["--perms", mode, "--size", str(limits.disk_bytes), "--tmpfs", folder]
    ours, theirs = pair()
    with theirs:
        process, complaints = launch("init_guest", theirs.fileno(), tuple(extra))
    try:
        first = pack(json.dumps(guest_limits(limits, group)))
        await asyncio.get_running_loop().sock_sendall(ours, first)
        pid, notes = await greeting(ours)
        cell = Cell("alone", ours, pid, os.pidfd_open(pid), group, notes, process=process)
    except BaseException as error:
        ours.close()
        end(process)
        if isinstance(error, EOFError | ConnectionError):
            raise MachineStartError(f"bubblewrap ({find_bwrap().path}) made no machine. {said(complaints)}") from None
        raise
    finally:
        os.close(complaints)
    await _attach(cell)
    return cell


OPENERS = {"native": _open_native, "nested": _open_nested, "alone": _open_alone}


async def _attach(cell: Cell) -> None:
    """Put a machine that could not do it itself into its control group."""
    try:
        cell.group.attach(cell.pid)
    except OSError as error:
        await _end(cell)
        died = "its process 1 died at its start, before it was in its control group"
        why = died if isinstance(error, ProcessLookupError) else f"it could not be put into its control group: {error}"
        raise MachineStartError(f"no machine: {why}") from error


async def freeze_files(cell: Cell, disk_bytes: int) -> None:
    """What the machine wrote so far becomes a layer that nobody writes to; forks of it can be opened. Raises
    MachineLostError."""
    assert cell.nest is not None
    try:
        await cell.nest.ask(pack("freeze", cell.id, disk_bytes), END_S)
    except (OSError, EOFError, TimeoutError) as error:
        raise MachineLostError(f"the machine's files could not be frozen: {error!r}") from error


def serves(cell: Cell) -> bool:
    """Whether forks of a cell whose files are frozen can still be opened."""
    nest = cell.nest
    return (
        cell in _sources.cells and nest is not None and not nest.retired and nest.listen() and cell.id not in nest.fates
    )


async def connect_inside(cell: Cell, port: int) -> socket.socket:
    """A socket that is connected (or being connected) to the port inside. Raises OSError, MachineLostError."""
    assert cell.nest is not None
    try:
        fd = await cell.nest.ask(pack("connect", cell.id, port), END_S)
    except (EOFError, TimeoutError) as error:
        raise MachineLostError(f"the machine's forge does not answer: {error!r}") from error
    assert fd is not None
    return socket.socket(fileno=fd)


async def close_cell(cell: Cell) -> None:
    """Kill process 1 and wait for its end, which the kernel grants when everything in its namespaces is dead.
    Raises MachineLostError when it does not end."""
    await _end(cell)
    _sources.groups.give(cell.group)


async def _end(cell: Cell) -> None:
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


def close_all() -> None:
    """End every machine of this process and its forges, and remove its control groups. Runs at the interpreter's end,
    too; after a kill the kernel ends the processes, and the next process to start removes the groups, then empty."""
    with _sources.lock:
        for cell in _sources.cells:
            cell.kill()
        for nest in _sources.nests.values():
            nest.close()
        _sources.nests.clear()
        _sources.reasons.clear()
        _sources.cells.clear()
        _sources.groups.remove()


def machine_cpu_s() -> float:
    """CPU seconds of the machines of this process that ended (not those alone; the host's own side is not in it)."""
    total = 0.0
    for nest in _sources.nests.values():
        nest.listen()
        total += nest.cpu_s
    return total
