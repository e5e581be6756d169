"""A machine in memory, for tests of what uses machines: files in a dict, commands answered by a function.

    def run(argv, stdin, files): return ExecResult(stdout="ok 3", stderr="", return_code=0)
    machine = FakeMachine(spec, run=run, fail={"exec": MachineLostError("gone")})

It isolates nothing and executes nothing: without `run`, every command is "not found".
"""

from collections.abc import Callable, Mapping, Sequence

from twinmill.records.tasks import MachineSpec

from .base import ExecResult, MachineLostError, MachineStartError
from .paths import check_path, matches

Run = Callable[[list[str], bytes, dict[str, bytes]], ExecResult]
"""(argv, stdin, files) -> what the command did; it may change `files`, or raise what the machine shall raise"""


def nothing_there(argv: list[str], stdin: bytes, files: dict[str, bytes]) -> ExecResult:
    """The machine has no programs."""
    return ExecResult(stdout="", stderr=f"{argv[0]}: No such file or directory\n", return_code=127)


class FakeMachine:
    """See machine.base.Machine. `files` and `calls` may be looked at by tests."""

    def __init__(
        self, spec: MachineSpec, *, run: Run = nothing_there, fail: Mapping[str, Exception] | None = None
    ) -> None:
        """`fail`: method name -> the exception that it raises, always."""
        self.spec, self.run, self.fail = spec, run, dict(fail or {})
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[str, ...]] = []
        """("exec", argv...), ("put", paths...), ("get", patterns...), ("start",), ("close",)"""
        self.state = "new"
        """new, started or closed"""

    async def start(self) -> None:
        self._call("start")
        if self.state != "new":
            raise MachineStartError("a machine is started once")
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
        self._use("get", *patterns)
        return {path: data for path, data in sorted(self.files.items()) if matches(path, patterns)}

    async def close(self) -> None:
        self.calls.append(("close",))
        self.state = "closed"

    def _call(self, name: str, *what: str) -> None:
        self.calls.append((name, *what))
        if name in self.fail:
            raise self.fail[name]

    def _use(self, name: str, *what: str) -> None:
        if self.state == "closed":
            raise MachineLostError("the machine was closed")
        if self.state == "new":
            raise MachineStartError("the machine was not started")
        self._call(name, *what)
