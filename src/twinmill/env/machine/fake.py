"""A machine in memory, for tests of what uses machines: files in a dict, commands answered by a function.

    def run(argv, stdin, files): return ExecResult(stdout="ok 3", stderr="", return_code=0)
    machine = FakeMachine(spec, run=run, fail={"exec": MachineLostError("gone")})

It isolates nothing and executes nothing: without `run`, every command is "not found".
"""

import io
import tarfile
from collections.abc import Callable, Mapping, Sequence

from twinmill.records.tasks import MachineSpec

from .base import (
    Capability,
    ExecResult,
    InfrastructureError,
    Machine,
    MachineLostError,
    MachineRefused,
    MachineStartError,
)
from .paths import check_path, matches

Run = Callable[[list[str], bytes, dict[str, bytes]], ExecResult]
"""(argv, stdin, files) -> what the command did; it may change `files`, or raise what the machine shall raise"""


def nothing_there(argv: list[str], stdin: bytes, files: dict[str, bytes]) -> ExecResult:
    """The machine has no programs."""
    return ExecResult(stdout="", stderr=f"{argv[0]}: No such file or directory\n", return_code=127)


class FakeMachine:
    """See machine.base. `files` and `calls` may be looked at by tests."""

    capabilities = frozenset({Capability.FORK, Capability.SNAPSHOT, Capability.PAUSE, Capability.ACCESS_TIMES})

    def __init__(
        self, spec: MachineSpec, *, run: Run = nothing_there, fail: Mapping[str, Exception] | None = None
    ) -> None:
        """`fail`: method name -> the exception that it raises, always."""
        self.spec, self.run, self.fail = spec, run, dict(fail or {})
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[str, ...]] = []
        """("exec", argv...), ("put", paths...), ("get", patterns...), ("start",), ("close",)"""
        self.state = "new"
        """new, started, paused or closed"""

    async def start(self) -> None:
        self._call("start")
        if self.state != "new":
            raise MachineStartError("a machine is started once")
        if missing := set(self.spec.needs) - self.capabilities:
            raise MachineRefused(f"the fake machine has no {', '.join(sorted(missing))}")
        self.state = "started"
        self.files = {check_path(path): text.encode() for path, text in self.spec.files.items()}

    async def exec(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", output_bytes: int = 65536
    ) -> ExecResult:
        if not argv or timeout_s <= 0:
            raise ValueError(f"exec needs a command and a deadline above 0, not {list(argv)!r} and {timeout_s}")
        self._use("exec", *argv)
        return self.run(list(argv), stdin, self.files)

    async def put(self, files: Mapping[str, bytes]) -> None:
        self._use("put", *files)
        self.files.update({check_path(path): bytes(data) for path, data in files.items()})

    async def get(self, patterns: Sequence[str]) -> dict[str, bytes]:
        matches("", patterns)  # a pattern that leaves the workspace is refused first
        self._use("get", *patterns)
        return {path: data for path, data in sorted(self.files.items()) if matches(path, patterns)}

    async def close(self) -> None:
        self.calls.append(("close",))
        self.state = "closed"

    async def fork(self, count: int) -> list[Machine | InfrastructureError]:
        if count < 1:
            raise ValueError(f"fork needs a count of at least 1, not {count}")
        self._use("fork", str(count))
        children = list[Machine | InfrastructureError]()
        for _ in range(count):
            child = FakeMachine(self.spec, run=self.run, fail=self.fail)
            child.files, child.state = dict(self.files), "started"
            children.append(child)
        return children

    async def snapshot(self) -> bytes:
        """The same form as a real machine's: a tar of work/."""
        self._use("snapshot")
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            for path, data in sorted(self.files.items()):
                info = tarfile.TarInfo(f"work/{path}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return made.getvalue()

    async def restore(self, snapshot: bytes) -> None:
        self._use("restore")
        try:
            with tarfile.open(fileobj=io.BytesIO(snapshot)) as tar:
                found = {m.name.removeprefix("work/"): tar.extractfile(m) for m in tar if m.isfile()}
                self.files = {check_path(path): file.read() for path, file in found.items() if file is not None}
        except tarfile.TarError as error:
            raise ValueError(f"not a snapshot: {error}") from error

    async def pause(self) -> None:
        self._use("pause")
        self.state = "paused"

    async def resume(self) -> None:
        if self.state == "paused":
            self.state = "started"

    def _call(self, name: str, *what: str) -> None:
        self.calls.append((name, *what))
        if name in self.fail:
            raise self.fail[name]

    def _use(self, name: str, *what: str) -> None:
        if self.state == "closed":
            raise MachineLostError("the machine was closed")
        if self.state == "new":
            raise MachineStartError("the machine was not started")
        if self.state == "paused":
            raise ValueError("the machine is paused: resume it first")
        self._call(name, *what)
