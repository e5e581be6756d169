"""Metric lines as typed points: what a run's processes write to metrics/<process>.jsonl, one struct per kind.

Fields that a newer writer adds are ignored, so that a board never stops a run; a line that lacks a needed
field, or has it in the wrong type, is counted by `state.fold` and left out. Times are seconds since the
epoch.
"""

from typing import Literal

from msgspec import Struct

from twinmill.records.samples import StepReport


class Point(Struct, frozen=True, kw_only=True):
    t: float
    process: str = ""
    """the file it came from"""


class PhaseMark(Point, frozen=True, kw_only=True):
    """Kind "phase". `steps` or `seconds`, where the start knows them, are what the progress bar is measured
    against."""

    name: str
    state: Literal["start", "end"]
    steps: int | None = None
    seconds: float | None = None


class Experts(Point, frozen=True, kw_only=True):
    """Kind "experts": how many of the transcripts that SFT waits for have been played."""

    done: int
    of: int


class Cpu(Point, frozen=True, kw_only=True):
    """Kind "cpu": processor and wall time of a process since its start."""

    lane: str
    cpu_s: float
    wall_s: float


class AttemptEnd(Point, frozen=True, kw_only=True):
    """Kind "attempt": an attempt has ended. `failure` = it was lost to infrastructure; `finished` False = it is run
    again, or its slot is dropped."""

    cluster: str
    slot: int
    attempt: int
    start: float
    end: float
    reward: float | None = None
    stop: str = ""
    turns: int = 0
    sampled: int = 0
    engine_s: float = 0.0
    machine_s: float = 0.0
    finished: bool = True
    failure: str | None = None
    hacks: tuple[str, ...] = ()
    """rules of the audit that flagged it"""


class PairedGain(Point, frozen=True, kw_only=True):
    """Kind "gain": pass@1 of `version` less that of version 0 on the same tasks, in percentage points."""

    version: int
    points: float
    ci_low: float
    ci_high: float


class Step(Point, frozen=True, kw_only=True):
    """Kind "train"."""

    report: StepReport

    @property
    def loss(self) -> float | None:
        """The loss that is worth a curve: its total, or its main part, or its only one; None = none of these."""
        parts = self.report.loss
        for name in ("total", "loss", "cross_entropy", "policy"):
            if name in parts:
                return parts[name]
        return next(iter(parts.values())) if len(parts) == 1 else None


class Eval(Point, frozen=True, kw_only=True):
    """Kind "eval". The interval is whatever the evaluator computed; 95 % in every recipe shipped."""

    name: str
    version: int
    step: int = 0
    pass_at_1: float
    ci_low: float
    ci_high: float
    tasks: int
    temperature: float
    split: str = "heldout"
    pass_at_8: float | None = None


class Heldout(Point, frozen=True, kw_only=True):
    """Kind "heldout": loss per token on held-out text, in nats."""

    stage: str
    loss: float
    step: int | None = None


class Publish(Point, frozen=True, kw_only=True):
    """Kind "publish"."""

    version: int
    delta_bytes: int
    full_bytes: int
    seconds: float = 0.0
    changed_frac: float | None = None


class Swap(Point, frozen=True, kw_only=True):
    """Kind "swap": an engine took a version. `pause_s`: generation stood still; `swap_s`: from prepared to
    serving."""

    cluster: str
    engine: str
    version: int
    pause_s: float
    swap_s: float = 0.0
    fetch_s: float = 0.0
    bytes: int = 0
    repaired: bool = False


class EngineNow(Point, frozen=True, kw_only=True):
    """Kind "engine". `sampled_tokens` counts from the process's start."""

    cluster: str
    engine: str
    serving: int
    busy_frac: float = 0.0
    in_flight: int = 0
    sampled_tokens: int = 0
    tokens_per_s: float = 0.0


class RolloutNow(Point, frozen=True, kw_only=True):
    """Kind "rollout". `episodes`, `infra_failures`, `lost`, `hacks`, `machine_s` and `engine_wait_s` count from the
    process's start."""

    cluster: str
    in_flight: int = 0
    open_slots: int = 0
    episodes: int = 0
    reward_mean: float | None = None
    infra_failures: int = 0
    lost: int = 0
    hacks: int = 0
    machine_s: float = 0.0
    engine_wait_s: float = 0.0


class Span(Point, frozen=True, kw_only=True):
    """Kind "busy": from `start` to `end`, `lane` was doing `what`. The what "wait" is idle time that has a
    cause."""

    lane: str
    start: float
    end: float
    what: str


class SlotMark(Point, frozen=True, kw_only=True):
    """Kind "slot"."""

    slot: int
    event: Literal["admit", "close", "drop", "train"]
    cluster: str = ""
    version: int = -1


class Event(Point, frozen=True, kw_only=True):
    """Kind "event": a repair, a restart, an alarm."""

    level: str = "info"
    what: str = ""
    text: str = ""
