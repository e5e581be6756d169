"""Task: what an episode attempts. Made by data (curated) and online, used by rollout."""

from enum import Enum
from typing import Any

from .base import Record, Ref


class ToolCall(Record):
    """One call of one tool, as parsed from sampled ids. `arguments` are already typed by the tool's schema."""

    name: str
    arguments: dict[str, Any] = {}


class Message(Record):
    """One chat message. Example: Message(role="user", content="Fix main.py.")."""

    role: str
    """system, user, assistant or tool"""
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


class ToolSpec(Record):
    """A tool as the model sees it. `parameters` maps name -> "string" | "integer" | "json" (any other value, written as
    JSON), in call order."""

    name: str
    description: str
    parameters: dict[str, str] = {}
    schema: dict[str, Any] | None = None
    """a foreign harness's own JSON schema of the arguments, shown to the model as it is; that harness also judges the
    arguments. None = `parameters` says all"""


class Service(Record):
    """What is up inside the machine before the first turn; where it does not come up, there is no first turn, and that is
    infrastructure's failure.

    Example: Service(kind="postgresql", script="create table people (id integer primary key);")
    """

    kind: str
    """name of env.machine.services.KINDS: sqlite, postgresql, command"""
    script: str = ""
    """SQL that fills a database as soon as it answers; "" = it stays empty"""
    command: tuple[str, ...] = ()
    """kind command only: what runs in the background, in the workspace"""
    health: tuple[str, ...] = ()
    """kind command only: it is up when this ends with status 0"""
    deadline_s: float = 20.0
    """from the start of the service to its first answer, script included"""


class MachineSpec(Record):
    """What machine a task needs. Nothing here is silently downgraded: a backend that cannot give it refuses."""

    files: dict[str, str] = {}
    """workspace-relative path -> text, laid out before the first turn"""
    snapshot: Ref | None = None
    """a tar.zst unpacked below `files`; None = the workspace starts empty"""
    memory_bytes: int = 512 * 2**20
    disk_bytes: int = 64 * 2**20
    processes: int = 64
    network: bool = False
    services: tuple[Service, ...] = ()
    """in the order in which they come up; where the machine is forked or made afresh for grading, it has its own"""
    needs: tuple[str, ...] = ()
    """what else the machine must be able to do: names of env.machine.base.Capability ("fork", "pause", "seccomp", ...)"""


class Budget(Record):
    """What one attempt may use. An attempt that exhausts it is a valid, graded attempt."""

    turns: int = 8
    sampled_tokens: int = 256
    context_tokens: int = 1024
    """largest context the harness will send to the engine, prompt included"""
    wall_s: float = 60.0
    """0 = no deadline (deterministic runs)"""


class ToolWait(Record):
    """How long each call of a task's tools waits beside its work: lognormal, and a pure function of the attempt's seed
    and the number of the call. `finish` ends the attempt and does not wait.

    Example: ToolWait(median_s=0.2, p99_over_p50=20.0): half of the calls wait below 0.2 s, one in a hundred above 4 s.
    """

    median_s: float
    p99_over_p50: float

    def __post_init__(self) -> None:
        if not (self.median_s > 0 and self.p99_over_p50 >= 1):
            raise ValueError(
                f"median_s must be above 0 and p99_over_p50 at least 1; got {self.median_s}, {self.p99_over_p50}"
            )


class GraderKind(Enum):
    CASES = "cases"
    """calls and expected values, compared outside the candidate's process"""
    SCRIPT = "script"
    """a Python test program: per-test records and a closing sentinel over a private channel"""
    COMMAND = "command"
    """Harbor style: a command whose verdict is read from a channel made after the agent is gone"""
    MIGRATION = "migration"
    """SQL of the agent's is run on the live database of a fresh machine, and what queries answer is compared outside"""


class Case(Record):
    """One graded call. Example: Case(id="t0", module="main", call="add(2, 3)", expect="5").

    Of a migration: Case(id="c0", module="postgresql", call="select count(*) from people", expect="[[3]]")."""

    id: str
    module: str
    """a migration's: kind of the service that is asked"""
    call: str
    """a Python expression evaluated in the module's namespace; a migration's: one SQL statement"""
    expect: str
    """repr() of the right value"""


class Grader(Record):
    """How an episode's final state is scored, in a fresh machine. The agent never sees this record."""

    kind: GraderKind
    cases: tuple[Case, ...] = ()
    files: dict[str, str] = {}
    """hidden test files laid over the candidate's workspace; a migration's one file is SQL that is run before it"""
    command: tuple[str, ...] = ()
    """a migration's: path of the agent's SQL"""
    allow: tuple[str, ...] = ("**/*.py",)
    """globs of the paths that are carried over from the agent's machine; everything else comes from the pristine task"""
    deny: tuple[str, ...] = ("test_*.py", "**/test_*.py", "conftest.py", "**/conftest.py")
    timeout_s: float = 10.0


class Origin(Enum):
    CURATED = "curated"
    ONLINE = "online"


class Task(Record):
    """What one group attempts. `id` is stable across machines and processes: a pure function of task set and seed.

    Example: Task(id="tinyrepo/0/train/17", taskset="tinyrepo", messages=(Message(role="user", content="Fix main.py..."),), ...)
    """

    id: str
    taskset: str
    messages: tuple[Message, ...]
    machine: MachineSpec
    tools: tuple[str, ...]
    budget: Budget
    grader: Grader
    public_cases: tuple[Case, ...] = ()
    """what the agent's own `test` tool runs; empty = the tool runs the workspace's own tests"""
    tool_wait: ToolWait | None = None
    """None = a tool takes as long as its work does"""
    origin: Origin = Origin.CURATED
    tags: tuple[str, ...] = ()
    honeypots: dict[str, str] = {}
    """path -> canary: files among machine.files that no honest attempt needs, each holding a text that is nowhere else"""
