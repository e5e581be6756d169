"""The `namespace` backend: a machine is a set of Linux namespaces with a size-capped file system in memory.

How it is isolated: launcher/ (native), bwrap.py; which of the two: cells.py. What binds it: limits.py. What is said over
its socket: frames.py.

Who is to blame when a machine ends, as the host can tell it:
- Process 1 cannot be signalled from inside. Its own exit (it ran out of something that commands used up), or a kill
  while the kernel counts one for want of memory in its control group: `MachineDestroyed`, the agent's own failure.
- Any other kill, the end of the sandbox around it, a stopped process 1, or silence beyond deadline + GRACE_S:
  `MachineLostError`. Without a memory control group a kill by the host's own memory shortage counts as this, too.

Services come up in start(), see services/. A machine in which one runs in the background is not forked.

Not covered: network, a snapshot as the starting point (such a spec is refused); a command that looks for the addresses
of objects or for process numbers does not find the same ones twice.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Self

from twinmill.records.tasks import MachineSpec

from . import services
from .base import (
    Capability,
    ExecResult,
    InfrastructureError,
    Machine,
    MachineDestroyed,
    MachineLostError,
    MachineRefused,
    MachineStartError,
)
from .cells import Cell, close_cell, connect_inside, freeze_files, open_cell
from .expose import Listener
from .frames import Field, pack, read_message
from .limits import Limits, limits_in_force
from .paths import check_path, matches
from .services.template import template

GRACE_S = 5.0
"""how long beyond its deadline an answer may be late before the machine counts as lost"""
LEAST_MEMORY_BYTES = 64 << 20
"""a Python needs this much"""
FILES_S = 20.0
"""deadline of put and get"""
GET_FILE_BYTES = 1 << 20
"""get() leaves out larger files"""
GET_TOTAL_BYTES = 16 << 20
"""get() leaves out what exceeds this, in the order of paths"""
SNAPSHOT_S = 60.0
"""deadline of snapshot and restore"""
_TAR = (
    "tar",
    "--sort=name",
    "--mtime=@0",
    "--numeric-owner",
    "--ignore-failed-read",
    "--atime-preserve=system",
    "-cf",
    "-",
)
_UNTAR = "cd / && find work tmp dev/shm -mindepth 1 -delete; exec tar -xf - --no-same-owner"
_KEPT = ("/work", "/tmp", "/dev/shm")
"""tar leaves the first slash out; -C / would open the root, which O_NOATIME allows to its owner only"""


class NamespaceMachine:
    """See machine.base. One request at a time; a cancelled one leaves the machine unusable."""

    ways: tuple[str, ...] = ("nested", "alone", "native")

    def __init__(self, spec: MachineSpec, *, grace_s: float = GRACE_S) -> None:
        self.spec, self.grace_s = spec, grace_s
        self._limits = Limits(spec.memory_bytes, spec.disk_bytes, spec.processes)
        self._cell: Cell | None = None
        self._end: Exception | None = None
        self._turn = asyncio.Lock()
        self._listeners: list[Listener] = []

    async def start(self) -> None:
        spec = self.spec
        asked = {"network": spec.network or Capability.NETWORK in spec.needs, "snapshot": spec.snapshot}
        for name, wanted in asked.items():
            if wanted:
                raise MachineRefused(f"the namespace backend has no {name} yet; the task asks for it")
        if spec.memory_bytes < LEAST_MEMORY_BYTES:
            raise MachineStartError(f"memory_bytes is {spec.memory_bytes}; a machine needs {LEAST_MEMORY_BYTES}")
        if self._cell is not None or self._end is not None:
            raise MachineStartError("a machine is started once")
        self._cell = await self._opened()
        if spec.files:
            try:
                await self.put({path: text.encode() for path, text in spec.files.items()})
            except OSError as error:
                raise MachineStartError(f"the files of the task cannot be laid out: {error}") from error
        await services.bring_up(self, spec.services)

    async def _opened(self) -> Cell:
        """Empty, or a fork of the image that its services start from."""
        needs = {*self.spec.needs, *services.needs(self.spec.services)}
        image = services.image_of(self.spec.services)
        if image is None:
            return await open_cell(self._limits, self.ways, needs)
        if "native" not in self.ways:
            raise MachineRefused(f"{image.name} needs a native machine; this backend makes only {', '.join(self.ways)}")
        return await open_cell(self._limits, ("native",), needs, await template(image, NativeMachine))

    async def as_template(self) -> Cell:
        """Freeze the files of a machine that will run nothing more, and whose forks are all that is wanted of it."""
        async with self._turn:
            await freeze_files(self._there(), self._limits.disk_bytes)
        return self._there()

    @property
    def limits_in_force(self) -> dict[str, str]:
        """What really binds this machine on this host, by resource."""
        cell = self._there()
        return limits_in_force(self._limits, cell.group, way=cell.way, notes=cell.notes)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Of this started machine."""
        return self._there().capabilities

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", output_bytes: int = 65536
    ) -> ExecResult:
        """Runs in the workspace. return_code is negative for a signal, 127 for a command that is not there;
        `output_bytes` caps each of the two streams. `python3 FILE` and `python3 -c` run in a fork of a warm
        interpreter."""
        if not argv or timeout_s <= 0:
            raise ValueError(f"exec needs a command and a deadline above 0, not {list(argv)!r} and {timeout_s}")
        started = asyncio.get_running_loop().time()
        code, timed_out, truncated, out, err = await self._exec(argv, timeout_s, stdin, output_bytes)
        return ExecResult(
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            return_code=int(code),
            timed_out=timed_out == b"1",
            truncated=truncated == b"1",
            duration_s=asyncio.get_running_loop().time() - started,
        )

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Folders are made; a link in a file's place is replaced. A file that starts with `#!` is executable. Raises
        OSError with the machine's own errno (no space left, a folder in its place)."""
        fields: list[Field] = []
        for path, data in files.items():
            fields += [check_path(path), 0o755 if data[:2] == b"#!" else 0o644, data]
        _raise_errno(await self._request(pack("put", *fields), FILES_S))

    async def get(self, patterns: Sequence[str]) -> dict[str, bytes]:
        """Sorted by path. Left out: links, unreadable files, names that are not UTF-8, what exceeds the caps above."""
        matches("", patterns)  # a pattern that leaves the workspace is refused before anything is asked
        _, *rows = await self._request(pack("list"), FILES_S)
        wanted, total = list[str](), 0
        for name, size in sorted(zip(rows[::2], map(int, rows[1::2]), strict=True)):
            path = name.decode(errors="replace")
            if path.encode() != name or not matches(path, patterns):
                continue
            if size <= GET_FILE_BYTES and total + size <= GET_TOTAL_BYTES:
                total += size
                wanted.append(check_path(path))
        if not wanted:
            return {}
        _, *found = await self._request(pack("read", GET_FILE_BYTES, *wanted), FILES_S)
        return {name.decode(): data for name, data in zip(found[::2], found[1::2], strict=True)}

    async def close(self) -> None:
        cell, self._cell = self._cell, None
        self._end = self._end or MachineLostError("the machine was closed")
        for listener in self._listeners:
            await listener.close()
        if cell is not None:
            cell.kill()
            async with self._turn:  # a request in flight sees the end of file and gives up
                await close_cell(cell)

    # ---- capabilities ----

    async def fork(self, count: int) -> list[Machine | InfrastructureError]:
        """Native machines share the parent's files as a frozen layer and copy nothing; others copy a snapshot, and so
        do those that need access times, which stand still in a layer."""
        if count < 1:
            raise ValueError(f"fork needs a count of at least 1, not {count}")
        if Capability.BACKGROUND in self.capabilities and any(code is None for code in (await self.jobs()).values()):
            raise ValueError("a machine with background jobs cannot be forked: stop them first")
        cell = self._there()
        if cell.way != "native" or Capability.ACCESS_TIMES in self.spec.needs:
            snapshot = await self.snapshot()
            return await _outcomes([self._child_of_snapshot(snapshot) for _ in range(count)])
        async with self._turn:
            await freeze_files(cell, self._limits.disk_bytes)
            await self._ask(pack("refresh"), FILES_S)
            return await _outcomes([self._child_of(cell) for _ in range(count)])

    async def _child_of(self, parent: Cell) -> Machine:
        child = self._sibling()
        child._cell = await open_cell(self._limits, ("native",), self.spec.needs, parent)
        return child

    async def _child_of_snapshot(self, snapshot: bytes) -> Machine:
        child = self._sibling()
        child._cell = await open_cell(self._limits, self.ways, self.spec.needs)
        try:
            await child.restore(snapshot)
        except BaseException:
            await child.close()
            raise
        return child

    def _sibling(self) -> Self:
        return type(self)(self.spec, grace_s=self.grace_s)

    async def snapshot(self) -> bytes:
        code, late, cut, tar, err = await self._exec((*_TAR, *_KEPT), SNAPSHOT_S, b"", 2 * self._limits.disk_bytes)
        if code != b"0" or late == b"1" or cut == b"1":
            raise MachineLostError(f"no snapshot: tar ended with {code.decode()} {err.decode(errors='replace')}")
        return tar

    async def restore(self, snapshot: bytes) -> None:
        code, *_, err = await self._exec(("sh", "-c", _UNTAR), SNAPSHOT_S, snapshot, 4096)
        if code != b"0":
            raise ValueError(f"not a snapshot that fits into this machine: {err.decode(errors='replace').strip()}")

    async def pause(self) -> None:
        cell = self._with(Capability.PAUSE)
        async with self._turn:
            cell.freeze(True)

    async def resume(self) -> None:
        self._with(Capability.PAUSE).freeze(False)

    async def run_background(self, argv: Sequence[str], *, log: str = "") -> int:
        self._with(Capability.BACKGROUND)
        if not argv:
            raise ValueError("a background job needs a command")
        _, number = _raise_errno(await self._request(pack("background", log and check_path(log), *argv), FILES_S))[:2]
        return int(number)

    async def jobs(self) -> dict[int, int | None]:
        self._with(Capability.BACKGROUND)
        _, *rows = await self._request(pack("jobs"), FILES_S)
        return {int(number): int(code) if code else None for number, code in zip(rows[::2], rows[1::2], strict=True)}

    async def stop(self, job: int) -> None:
        self._with(Capability.BACKGROUND)
        await self._request(pack("stop", job), FILES_S)

    async def expose(self, port: int) -> tuple[str, int]:
        cell = self._with(Capability.EXPOSE)
        listener = Listener(lambda: connect_inside(cell, port))
        self._listeners.append(listener)
        return await listener.start()

    # ---- process 1 ----

    def _there(self) -> Cell:
        if self._end is not None:
            raise self._end
        if self._cell is None:
            raise MachineStartError("the machine was not started")
        return self._cell

    def _with(self, capability: Capability) -> Cell:
        cell = self._there()
        if capability not in cell.capabilities:
            raise MachineRefused(f"this machine ({cell.way}) has no {capability}; ask for it in the spec's `needs`")
        return cell

    async def _exec(
        self, argv: Sequence[str], timeout_s: float, stdin: bytes, output_bytes: int
    ) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Code, timed out, truncated, stdout, stderr."""
        ask = pack("exec", max(1, round(timeout_s * 1000)), output_bytes, len(argv), *argv, stdin)
        _, code, timed_out, truncated, out, err = await self._request(ask, timeout_s)
        return code, timed_out, truncated, out, err

    async def _request(self, ask: bytes, deadline_s: float) -> list[bytes]:
        async with self._turn:
            return await self._ask(ask, deadline_s)

    async def _ask(self, ask: bytes, deadline_s: float) -> list[bytes]:
        """By whoever has the turn."""
        cell = self._there()
        if cell.frozen:
            raise ValueError("the machine is paused: resume it first")
        try:
            async with asyncio.timeout(deadline_s + self.grace_s):
                await asyncio.get_running_loop().sock_sendall(cell.sock, ask)
                return await read_message(cell.sock)
        except TimeoutError:
            late = f"no answer to {_name(ask)} within {deadline_s:g} + {self.grace_s:g} s"
            how = "was stopped from outside" if cell.stopped() else "is silent"
            self._end = MachineLostError(f"{late}: process 1 ({cell.pid}) {how}")
        except (EOFError, ConnectionError):
            self._end = self._end or await _blame(cell)
        except asyncio.CancelledError:
            self._end = MachineLostError(f"a request ({_name(ask)}) was cancelled half-way")
            raise
        raise self._end


class NativeMachine(NamespaceMachine):
    """Made by the native launcher or not at all."""

    ways = ("native",)


class BubblewrapMachine(NamespaceMachine):
    """Made by bubblewrap or not at all: what the native launcher is compared with."""

    ways = ("nested", "alone")


def _name(ask: bytes) -> str:
    return ask[12 : 12 + ask[8]].decode()


def _raise_errno(answer: list[bytes]) -> list[bytes]:
    if answer[0] == b"error":
        number = int(answer[1])
        raise OSError(number, os.strerror(number), answer[2].decode(errors="replace"))
    return answer


async def _outcomes(children: "list[asyncio.Future[Machine]]") -> list[Machine | InfrastructureError]:
    """One outcome per child. What is no infrastructure failure is raised, when all have ended."""
    outcomes = await asyncio.gather(*children, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, InfrastructureError):
            raise outcome
    return list(outcomes)


async def _blame(cell: Cell) -> Exception:
    """What the end of process 1 means. See the top of this file."""
    code = await cell.fate()
    if code is None:
        return MachineLostError("the sandbox around the machine ended: its bubblewrap or forge was killed")
    if code >= 0:
        return MachineDestroyed(f"its process 1 gave up with status {code}: commands had used up what it needs")
    if cell.group.killed_for_memory():
        return MachineDestroyed("its memory was filled until its process 1 was killed")
    return MachineLostError(f"process 1 was killed by signal {-code} from outside")
