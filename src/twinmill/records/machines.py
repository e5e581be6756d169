"""What a server of machines and its clients say to each other, and what it keeps on disk (env/machine/remote/).

    client ─CreateMachine─► server ─Answer(MachineMade | Failed)─► client
    client ─Call(number, Exec)─► server ─Answer(ExecResult | Failed)─► client
    client ─Beat(keys)─► server ─Answer(Beaten(gone))─► client
    server ─JournalLine─► its folder ─► the next server there

A machine is known by its key, which its client chooses: whoever asks again with the same key gets the same machine.
"""

from enum import Enum

from .base import Record
from .tasks import MachineSpec


class ExecResult(Record):
    """What a command did. Producer: a machine; consumer: tools, graders. Example: ExecResult(stdout="4\\n", stderr="",
    return_code=0)"""

    stdout: str
    stderr: str
    return_code: int
    timed_out: bool = False
    truncated: bool = False
    """output beyond the cap was discarded"""
    duration_s: float = 0.0


# ---- what clients ask


class CreateMachine(Record):
    spec: MachineSpec
    lease_s: float
    """how long the machine lives without a sign of life from its client; the server may give less"""


class Exec(Record):
    argv: tuple[str, ...]
    timeout_s: float
    stdin: bytes = b""
    output_bytes: int = 65536


class Put(Record):
    files: dict[str, bytes]


class Get(Record):
    patterns: tuple[str, ...]


class Fork(Record):
    keys: tuple[str, ...]
    """of the children, one each"""


class Snapshot(Record): ...


class Restore(Record):
    tar: bytes


class Pause(Record): ...


class Resume(Record): ...


class RunBackground(Record):
    argv: tuple[str, ...]
    log: str = ""


class Jobs(Record): ...


class StopJob(Record):
    job: int


class Call(Record):
    """One request to one machine. Example: Call(number=3, ask=Get(patterns=("**/*.py",)))"""

    number: int
    """0, 1, 2, ... of this machine: one that is asked again after a lost answer is answered again, not done again"""
    ask: Exec | Put | Get | Fork | Snapshot | Restore | Pause | Resume | RunBackground | Jobs | StopJob


class Beat(Record):
    """A client's sign of life, for all its machines on this server."""

    keys: tuple[str, ...]


# ---- what the server answers


class MachineMade(Record):
    key: str
    lease_s: float
    capabilities: tuple[str, ...]
    limits_in_force: dict[str, str]
    """what binds this machine, in words, by resource"""


class Failed(Record):
    """Whose failure it is, is in the kind, and the client raises just that. Example: Failed(kind="MachineBusyError",
    message="tenant acme has 8 machines, its most", retry_after_s=1.0)"""

    kind: str
    """name of an exception of env.machine.base, or ValueError, or OSError"""
    message: str
    retry_after_s: float = 0.0
    errno: int = 0
    """of an OSError: the machine's own"""


class Done(Record): ...


class Files(Record):
    files: dict[str, bytes]


class Forked(Record):
    children: tuple[MachineMade | Failed, ...]
    """one outcome for each key, in their order"""


class SnapshotTaken(Record):
    tar: bytes


class JobNumber(Record):
    job: int


class JobStates(Record):
    jobs: tuple[tuple[int, int | None], ...]
    """(number, exit code); None = alive"""


class Beaten(Record):
    gone: dict[str, str]
    """key -> why there is no such machine; empty = all of them live"""


class TenantRow(Record):
    name: str
    alive: int
    machines: int
    """its most at once"""
    creates_last_minute: int
    creates_per_minute: int
    created: int
    """since the server's start"""
    ended: dict[str, int]
    """reason -> leases that ended so"""


class LeaseRow(Record):
    lease: str
    tenant: str
    key: str
    state: str
    """starting | ready | working | ending"""
    age_s: float
    left_s: float
    """until it runs out, without a sign of life"""
    calls: int


class MachinesStatus(Record):
    """Of one server, as one tenant may see it: an operator sees all tenants, others themselves."""

    backend: str
    started_at: float
    alive: int
    machines: int
    """most at once"""
    draining: bool
    tenants: tuple[TenantRow, ...]
    leases: tuple[LeaseRow, ...]


class Answer(Record):
    """Before it come zero bytes, one every few seconds while the work goes on: no packed record begins with one."""

    value: (
        MachineMade
        | Failed
        | Done
        | ExecResult
        | Files
        | Forked
        | SnapshotTaken
        | JobNumber
        | JobStates
        | Beaten
        | MachinesStatus
    )  # fmt: skip


# ---- what the server keeps


class LeaseEnd(Enum):
    """Why a lease ended. Each ends exactly once, over any sequence of kills."""

    CLOSED = "closed"
    """by its client"""
    EXPIRED = "expired"
    """no sign of life from its client"""
    FAILED = "failed"
    """its machine could not be made"""
    DRAINED = "drained"
    """the server was told to end"""
    KILLED = "killed"
    """the server was killed; the next one found and ended what was left"""


class LifeBegan(Record):
    pid: int


class LeaseOpened(Record):
    """On disk before the machine is made."""

    lease: str
    tenant: str
    key: str


class LeaseEnded(Record):
    """On disk when nothing of the machine is left."""

    lease: str
    reason: LeaseEnd
    note: str = ""


class LifeEnded(Record):
    """Nothing of this server's life is left."""


class JournalLine(Record):
    at: float
    what: LifeBegan | LeaseOpened | LeaseEnded | LifeEnded
