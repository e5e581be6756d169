"""What is said to an engine and what it answers. Made by env.harness, used by engine, and back."""

from enum import Enum

from .base import Record
from .episodes import Finish, VersionRun


class Sampling(Record):
    """Explicit and echoed back. Sampling is a pure function of (weights, prefix, seed, position)."""

    temperature: float = 1.0
    """0 = greedy"""
    top_p: float = 1.0
    max_tokens: int = 128
    stop_ids: tuple[int, ...] = ()
    seed: int = 0


class GenerateRequest(Record):
    """Token ids in. `token_ids` is the whole context; the engine finds what it already holds of it by `session_id`.

    Example: GenerateRequest(session_id="12-3-0", token_ids=[1, 40, 5], sampling=Sampling(seed=7), experts_from=0)
    """

    session_id: str
    token_ids: list[int]
    sampling: Sampling
    group_id: str = ""
    """attempts that share a prompt share its KV; "" = none"""
    want_experts: bool = False
    experts_from: int = 0
    """return the expert choice of positions [experts_from, len(token_ids) + len(sampled_ids) - 1)"""
    last: bool = False
    """free the session's KV afterwards"""


class Generation(Record):
    """Token ids out. Axis T = len(sampled_ids)."""

    sampled_ids: list[int]
    logprobs: list[float]
    version_runs: tuple[VersionRun, ...]
    finish: Finish
    sampling: Sampling
    """echo of what was used"""
    experts: bytes | None = None
    """little-endian uint16 [positions, layers, top_k], C order; None = dense model or not asked"""
    experts_shape: tuple[int, int, int] | None = None
    cached_tokens: int = 0
    """context tokens that needed no forward"""
    stale_kv_tokens: int = 0
    """context tokens whose KV was built under an older version (policy keep)"""
    kv_runs: tuple[VersionRun, ...] = ()
    """versions that computed the KV of positions [0, len(token_ids) + len(sampled_ids) - 1), as it was at the end; () = the
    engine does not say"""


class ScoreRequest(Record):
    token_ids: list[int]


class Scores(Record):
    """logprobs[i] is of token_ids[i + 1] given the ids before it, at temperature 1; length N - 1."""

    logprobs: list[float]
    version: int


class KvPolicy(Enum):
    """What happens to KV that was built under the old version when a new one is flipped in."""

    KEEP = "keep"
    RECOMPUTE = "recompute"


class Phase(Enum):
    LOADING = "loading"
    READY = "ready"
    SWAPPING = "swapping"
    DRAINING = "draining"
    LOST = "lost"


class EngineState(Record):
    """Made by engine, read by router, pool and board."""

    engine_id: str
    cluster: str
    serving: int
    """version; -1 = none yet"""
    target: int
    phase: Phase
    in_flight: int
    beat: float
    busy_s: float = 0.0
    """seconds spent in forwards since start"""
    sampled_tokens: int = 0
    pause_s: float = 0.0
    """length of the last pause: time in which generation stood still"""
    swap_s: float = 0.0
    """length of the last swap: from PREPARED to serving"""
    repairs: int = 0
    """versions that were repaired from a full one after a mismatch"""
