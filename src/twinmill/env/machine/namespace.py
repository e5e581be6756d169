"""The `namespace` backend: a machine is a set of Linux namespaces with a size-capped file system in memory.

How it is isolated: bwrap.py and cells.py. What binds it: limits.py. What it says over its socket: init_guest.py.

Who is to blame when a machine ends, as the host can tell it:
- Process 1 cannot be signalled from inside. Its own exit (it ran out of something that commands used up), or a kill
  while the kernel counts one for want of memory in its control group: `MachineDestroyed`, the agent's own failure.
- Any other kill, the end of the sandbox around it, a stopped process 1, or silence beyond deadline + GRACE_S:
  `MachineLostError`. Without a memory control group a kill by the host's own memory shortage counts as this, too.

Not covered: snapshots, network, services (such a spec is refused); a command that looks for the addresses of objects or
for process numbers does not find the same ones twice.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence

from twinmill.records.tasks import MachineSpec

from .base import ExecResult, MachineDestroyed, MachineLostError, MachineStartError
from .cells import Cell, close_cell, open_cell
from .frames import Header, frame, read_frame
from .limits import Limits, limits_in_force
from .paths import check_path, glob_regex

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


class NamespaceMachine:
    """See machine.base.Machine. One request at a time; a cancelled one leaves the machine unusable."""

    def __init__(self, spec: MachineSpec, *, grace_s: float = GRACE_S) -> None:
        self.spec, self.grace_s = spec, grace_s
        self._limits = Limits(spec.memory_bytes, spec.disk_bytes, spec.processes)
        self._cell: Cell | None = None
        self._end: Exception | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        spec = self.spec
        for asked, name in ((spec.network, "network"), (spec.services, "services"), (spec.snapshot, "snapshot")):
            if asked:
                raise MachineStartError(f"the namespace backend has no {name} yet; the task asks for it")
        if spec.memory_bytes < LEAST_MEMORY_BYTES:
            raise MachineStartError(f"memory_bytes is {spec.memory_bytes}; a machine needs {LEAST_MEMORY_BYTES}")
        if self._cell is not None or self._end is not None:
            raise MachineStartError("a machine is started once")
        self._cell = await open_cell(self._limits)
        if spec.files:
            try:
                await self.put({path: text.encode() for path, text in spec.files.items()})
            except OSError as error:
                raise MachineStartError(f"the files of the task cannot be laid out: {error}") from error

    @property
    def limits_in_force(self) -> dict[str, str]:
        """What really binds this machine on this host, by resource."""
        cell = self._there()
        return limits_in_force(self._limits, cell.group, nested=cell.nest is not None)

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", output_bytes: int = 65536
    ) -> ExecResult:
        """Runs in the workspace. return_code is negative for a signal, 127 for a command that is not there;
        `output_bytes` caps each of the two streams. `python3 FILE` and `python3 -c` run in a fork of a warm
        interpreter."""
        if not argv or timeout_s <= 0:
            raise ValueError(f"exec needs a command and a deadline above 0, not {list(argv)!r} and {timeout_s}")
        started = asyncio.get_running_loop().time()
        ask = {"op": "exec", "argv": list(argv), "timeout": timeout_s, "cap": output_bytes}
        answer, body = await self._request(ask, stdin, timeout_s)
        return ExecResult(
            stdout=body[: answer["out"]].decode(errors="replace"),
            stderr=body[answer["out"] :].decode(errors="replace"),
            return_code=answer["code"],
            timed_out=answer["timed_out"],
            truncated=answer["truncated"],
            duration_s=asyncio.get_running_loop().time() - started,
        )

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Folders are made; a link in a file's place is replaced. A file that starts with `#!` is executable. Raises
        OSError with the machine's own errno (no space left, a folder in its place)."""
        modes = [[check_path(path), len(data), 0o755 if data[:2] == b"#!" else 0o644] for path, data in files.items()]
        answer, _ = await self._request({"op": "put", "files": modes}, b"".join(files.values()), FILES_S)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["path"])

    async def get(self, patterns: Sequence[str]) -> dict[str, bytes]:
        """Sorted by path. Left out: links, unreadable files, names that are not UTF-8, what exceeds the caps above."""
        ask: Header = {"op": "get", "patterns": [glob_regex(pattern) for pattern in patterns]}
        ask |= {"file_bytes": GET_FILE_BYTES, "total_bytes": GET_TOTAL_BYTES}
        answer, body = await self._request(ask, b"", FILES_S)
        files, offset = {}, 0
        for path, size in answer["files"]:
            files[check_path(path)] = body[offset : offset + size]
            offset += size
        return files

    async def close(self) -> None:
        cell, self._cell = self._cell, None
        self._end = self._end or MachineLostError("the machine was closed")
        if cell is not None:
            cell.kill()
            async with self._turn:  # a request in flight sees the end of file and gives up
                await close_cell(cell)

    def _there(self) -> Cell:
        if self._end is not None:
            raise self._end
        if self._cell is None:
            raise MachineStartError("the machine was not started")
        return self._cell

    async def _request(self, ask: Header, body: bytes, deadline_s: float) -> tuple[Header, bytes]:
        async with self._turn:
            cell = self._there()
            try:
                async with asyncio.timeout(deadline_s + self.grace_s):
                    await asyncio.get_running_loop().sock_sendall(cell.sock, frame(ask, body))
                    return await read_frame(cell.sock)
            except TimeoutError:
                late = f"no answer to {ask['op']} within {deadline_s:g} + {self.grace_s:g} s"
                how = "was stopped from outside" if cell.stopped() else "is silent"
                self._end = MachineLostError(f"{late}: process 1 ({cell.pid}) {how}")
            except (EOFError, ConnectionError):
                self._end = self._end or await _blame(cell)
            except asyncio.CancelledError:
                self._end = MachineLostError(f"a request ({ask['op']}) was cancelled half-way")
                raise
            raise self._end


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
