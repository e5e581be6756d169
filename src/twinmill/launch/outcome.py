"""What the supervisor says: notices while it runs, one outcome at the end."""

from enum import Enum

from msgspec import Struct


class Ending(Enum):
    DONE = "done"
    """the main process exited 0"""
    FAILED = "failed"
    """a critical process failed beyond its budget"""
    INTERRUPTED = "interrupted"
    """a signal, or request_stop"""


class What(Enum):
    """What a Notice says."""

    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    HUNG = "hung"
    RESTARTING = "restarting"
    GAVE_UP = "gave up"
    STOPPING = "stopping"
    KILLED = "killed"
    LEFT = "left"


class Notice(Struct, frozen=True, kw_only=True):
    """Something the supervisor did or saw. `name` is "" where it concerns all."""

    at: float
    """seconds since the epoch"""
    level: str
    """info, warning or error"""
    what: What
    name: str
    text: str


class Outcome(Struct, frozen=True, kw_only=True):
    ending: Ending
    code: int
    """what the supervisor's process should exit with: 0 done, 1 failed, 128 + signal interrupted"""
    reason: str
    """one line"""
    culprit: str = ""
    """the process that failed; "" = none"""
    tail: tuple[str, ...] = ()
    """the culprit's last lines"""
    restarts: dict[str, int] = {}
    """process -> how often it was started again"""
