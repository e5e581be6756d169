"""Episode and what surrounds it: the content of the episodes log. Made by env and rollout, used by batch."""

from collections.abc import Iterable
from enum import Enum

from .base import Record, Ref
from .tasks import ToolCall


class Finish(Enum):
    """Why one turn's sampling ended."""

    STOP = "stop"
    """a stop token was sampled (it is the last of sampled_ids); of a foreign harness also: its stop string was completed"""
    LENGTH = "length"
    """the turn's token budget ran out"""


class StopReason(Enum):
    """Why an episode ended."""

    FINISHED = "finished"
    """the model called finish, or answered without a tool call"""
    TURNS = "turns"
    TOKENS = "tokens"
    CONTEXT = "context"
    DEADLINE = "deadline"
    MACHINE = "machine"
    """the agent destroyed its own machine: its own failure, graded 0"""
    ERROR = "error"
    """lost to infrastructure: never graded, see Episode.error"""


class Boundary(Enum):
    """The boundary at which an infrastructure failure was seen."""

    ENGINE = "engine"
    MACHINE = "machine"
    GRADER = "grader"
    STORE = "store"


class Failure(Record):
    """An infrastructure failure. It is excluded from group statistics, counted and shown; never a reward."""

    boundary: Boundary
    type: str
    message: str


class VersionRun(Record):
    """`count` consecutive sampled tokens came from weight version `version`."""

    version: int
    count: int


def joined_runs(runs: Iterable[VersionRun]) -> tuple[VersionRun, ...]:
    """Neighbouring runs of one version as one run."""
    joined: list[VersionRun] = []
    for run in runs:
        before = joined.pop().count if joined and joined[-1].version == run.version else 0
        joined.append(VersionRun(version=run.version, count=before + run.count))
    return tuple(joined)


def runs_of(versions: Iterable[int]) -> tuple[VersionRun, ...]:
    """The version of each token, run-length encoded. Example: [0, 0, 3] -> 2 of version 0, 1 of version 3."""
    return joined_runs(VersionRun(version=version, count=1) for version in versions)


def versions_of(runs: Iterable[VersionRun]) -> list[int]:
    """The version of each token: the inverse of `runs_of`."""
    return [run.version for run in runs for _ in range(run.count)]


class Turn(Record):
    """One model call and what came back. Axis T = len(sampled_ids).

    Example: Turn(index=0, input_ids=[1, 2, 40, 5], sampled_ids=[9, 3], logprobs=[-0.1, -0.7],
                  version_runs=(VersionRun(version=3, count=2),), finish=Finish.STOP, observation="ok")
    """

    index: int
    input_ids: list[int]
    """all that was appended to the context since the last sampled token"""
    sampled_ids: list[int]
    logprobs: list[float]
    """T; of the engine, at the sampling temperature's own distribution (what was really sampled from)"""
    version_runs: tuple[VersionRun, ...]
    """counts add up to T; versions never decrease"""
    finish: Finish
    kv_runs: tuple[VersionRun, ...] = ()
    """versions that computed the keys and values of the context, from its first token to the one before the last, as they
    were at the end of the turn; () = the engine did not say, and the turn cannot be replayed"""
    tool_calls: tuple[ToolCall, ...] = ()
    observation: str | None = None
    """None = the episode ended with this turn"""
    started: float = 0.0
    """seconds since the epoch; 0 in deterministic runs"""
    seconds: float = 0.0


class OpenedBy(Enum):
    TASK = "task"
    SUMMARY = "summary"
    RESTORE = "restore"
    """an earlier point of this episode: its ids, exactly as they were, are the first turn's input_ids"""
    HISTORY = "history"
    """a foreign harness sent a history that nothing said before is the beginning of: another agent, or a rewritten one"""


class Segment(Record):
    """One uninterrupted context. Its token ids are the concatenation of every turn's input_ids + sampled_ids."""

    index: int
    opened_by: OpenedBy
    turns: tuple[Turn, ...]
    experts: Ref | None = None
    """recorded expert choice of positions [0, N-1) where N = number of ids in the segment, in every mixture layer, as sets
    (store/routes.py); None = dense model. One object per segment rather than per turn: fewer, larger objects (docs/LOG.md)."""


class Usage(Record):
    turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    tool_errors: int = 0
    """calls that were the model's own mistake (unknown tool, bad arguments)"""
    engine_s: float = 0.0
    machine_s: float = 0.0


class Traces(Record):
    """What an attempt left in its machine beside what is graded. Made by the harness, read by env.audit."""

    written: dict[str, str] = {}
    """path -> start of the text of what is new or changed and is not carried over into grading"""
    deleted: tuple[str, ...] = ()
    """paths of the task's own files that are gone"""
    touched: tuple[str, ...] = ()
    """honeypots (Task.honeypots) that were read, changed or removed"""


class Episode(Record):
    """One attempt at a task."""

    id: str
    """f"{slot}-{attempt}-{try}" in training, free elsewhere"""
    task_id: str
    group_id: str
    attempt: int
    segments: tuple[Segment, ...]
    stop: StopReason
    versions: tuple[int, int]
    """first and last weight version that produced a token; (-1, -1) = none was sampled"""
    usage: Usage
    cluster: str
    seed: int
    machine_before: str = ""
    """digest of the workspace before the first turn"""
    machine_after: dict[str, str] | None = None
    """path -> text of what the agent changed, within the grader's allow-list; None = could not be read"""
    error: Failure | None = None
    traces: Traces | None = None
    """None = not looked for, or the machine was gone"""


class Score(Record):
    value: float
    weight: float = 1.0
    grader: str = ""
    evidence: str | None = None


class Verdict(Record):
    """Scores of one episode. reward None = could not be graded (never 0). Re-grading appends another one."""

    episode_id: str
    scores: dict[str, Score]
    reward: float | None
    graded_at: float = 0.0
    error: Failure | None = None
    """why it could not be graded"""


class FindingAction(Enum):
    """What a finding does to its attempt. None of these makes it an infrastructure failure: it is never run again."""

    KEEP = "keep"
    """noted and shown; the reward stays"""
    ZERO = "zero"
    """the reward is 0: the verdict gets a score "audit" that takes back what the graders gave"""
    MASK = "mask"
    """the reward counts in its group, the attempt's tokens carry no gradient"""
    DROP = "drop"
    """the attempt is outside its group's statistics, and its tokens carry no gradient"""
    QUARANTINE = "quarantine"
    """as DROP, and the task itself should be looked at by a person"""


class Finding(Record):
    """What an audit rule saw in an episode. Made by env.audit.

    Example: Finding(episode_id="4-0-0", rule="planted_verdict", severity=0.9,
                     evidence="turn 2, run: echo 1 > /logs/verifier/reward.txt", action=FindingAction.ZERO)
    """

    episode_id: str
    rule: str
    severity: float
    """0 to 1: how sure the rule is; from FLAGGED on the attempt counts as a hack"""
    evidence: str
    """where, and what was seen there, quoted"""
    action: FindingAction


FLAGGED = 0.5
"""severity from which on a finding flags its attempt: it counts in the hack rate"""


class LogPos(Record):
    """Where one entry lies in a log: lane and index in that lane."""

    lane: str
    index: int


class Admit(Record):
    """A cluster took slot `slot`. Put-if-absent on the slot: exactly one cluster owns a slot."""

    slot: int
    task_id: str
    seed: int
    cluster: str
    version: int
    """the weight version that the cluster's engine served at the start"""
    admitted_at: float = 0.0
    lane_from: int = 0
    """no attempt at this slot lies before this index of the cluster's lane; filled in by the log"""


class DropReason(Enum):
    INFRASTRUCTURE = "infrastructure"
    """an attempt was lost to infrastructure too often"""
    CLUSTER_LOST = "cluster_lost"
    UNGRADABLE = "ungradable"


class Close(Record):
    """Slot `slot` is over. Put-if-absent: nothing changes a closed slot. entries_G[i] holds attempt i's Episode and Verdict."""

    slot: int
    task_id: str
    entries_G: tuple[LogPos, ...]
    drop: DropReason | None = None
    """None = a complete group"""
    lost: int = 0
    """attempts that were lost to infrastructure and run again"""
    closed_at: float = 0.0


def segment_seed(seed: int, index: int) -> int:
    """Of what is sampled in an episode's segment `index`: said again in another segment, it is another try."""
    return (seed + index) % 2**63


class Attempt(Record):
    """One lane entry of the episodes log: written whole or not at all."""

    slot: int
    attempt: int
    episode: Episode
    verdict: Verdict
    findings: tuple[Finding, ...] = ()


class Group(Record):
    """The attempts at one task that are compared. Assembled by the trainer's reader from a Close; axis G = attempts."""

    slot: int
    task_id: str
    size: int
    episodes_G: tuple[Episode, ...]
    verdicts_G: tuple[Verdict, ...]
    drop: DropReason | None = None
    findings_G: tuple[tuple[Finding, ...], ...] = ()
    """of the audit at the time of play; () = nobody has audited"""
