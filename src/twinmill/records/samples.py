"""Sample, Microbatch, StepReport: what the training mill passes along. Arrays are numpy: no torch is needed here."""

import numpy as np
import numpy.typing as npt

from .base import Record
from .episodes import VersionRun

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


class Sample(Record):
    """One trainable token sequence of N ids. Made by batch, used by batch.pack. All per-token arrays have length N.

    Position i speaks of token i: mask[i] says that token i was sampled by the model, logprobs[i] is the engine's
    log-probability of token i given tokens < i (0 where mask is off).
    Example: token_ids [1, 2, 9, 3], mask [F, F, T, T], logprobs [0, 0, -.1, -.7], advantages [0, 0, .5, .5].
    """

    episode_id: str
    segment: int
    token_ids: I64
    mask: Bool
    logprobs: F32
    advantages: F32
    versions: I64
    """weight version that sampled token i; -1 where mask is off"""
    ref_logprobs: F32 | None = None
    """None = no KL to a reference"""
    weights: F32 | None = None
    """None = 1 everywhere"""
    experts: npt.NDArray[np.uint16] | None = None
    """[N - 1, layers, top_k]; None = no router replay"""
    version_runs: tuple[VersionRun, ...] = ()


class Microbatch(Record):
    """Packed samples, one row of T tokens cut into segments. Made by batch.pack, used by train.step.

    Example: two samples of 4 and 3 ids: segment_lens (4, 3), parents (-1, -1), positions [0,1,2,3,0,1,2], T = 7.

    Samples that begin alike share their beginning: it is a segment of its own, which theirs continue. Example: samples
    [1, 2, 5, 9] and [1, 2, 5, 7, 8], of which 9, 7 and 8 carry loss. 5 predicts 9 in one and 7 in the other, so it
    stays with each, and [1, 2] is shared: segment_lens (2, 2, 3), parents (-1, 0, 0), token_ids [1,2, 5,9, 5,7,8],
    positions [0,1, 2,3, 2,3,4], T = 7.
    """

    token_ids: I64
    positions: I64
    """of each token in its sample"""
    segment_lens: tuple[int, ...]
    parents: tuple[int, ...]
    """parents[i] = the segment that segment i continues, -1 = none; what others continue continues nothing itself. No
    loss lies on it, nor on the first token of what continues it: a token's predictor is always the row before it"""
    mask: Bool
    logprobs: F32
    advantages: F32
    weights: F32
    versions: I64
    sample_ids: tuple[str, ...]
    """one per sample: of the segments that no other continues, in order"""
    denominator: float
    """what the summed loss of the whole step is divided by; the same in every microbatch of a step"""
    experts: npt.NDArray[np.int32] | None = None
    """[T, layers, top_k]; -1 = choose freely (last position of a sample)"""


class Mismatch(Record):
    """Trainer against engine log-probabilities over a set of sampled tokens; d = trainer - engine."""

    tokens: int = 0
    k1: float = 0.0
    """mean of -d: estimates KL(engine || trainer)"""
    k3: float = 0.0
    """mean of exp(d) - 1 - d"""
    max_ratio: float = 1.0
    max_abs: float = 0.0
    ess: float = 1.0
    """effective sample size of the ratios as a fraction"""


class StepReport(Record):
    """Made by train, read by metrics, board and gate."""

    step: int
    version: int
    source: str
    samples: int
    tokens: int
    """tokens that carried loss"""
    loss: dict[str, float]
    grad_norm: float
    lr: float
    seconds: dict[str, float]
    """phase -> seconds; "wait" = the trainer had nothing to train on"""
    computed: int = 0
    """tokens that went through the model; a beginning that samples share counts once"""
    reward: float | None = None
    groups: int = 0
    varied_frac: float = 0.0
    """share of groups whose rewards were not all equal"""
    fresh: Mismatch = Mismatch()
    """tokens sampled at this very version: numerics only"""
    stale: Mismatch = Mismatch()
    """older tokens: numerics and staleness"""
    clipped_frac: float = 0.0
    replayed_frac: float = 0.0
    """share of (position, layer) whose recorded experts were used; a position that samples share is routed once and
    counts once. Where tokens is 0 nothing was computed, and this 0 says nothing"""
    refused_frac: float = 0.0
    """share that the plausibility filter replaced"""
    staleness: dict[int, int] = {}
    """age in versions -> sampled tokens"""
    dropped: dict[str, int] = {}
    attempts: int = 0
    """audited attempts of the step's groups; 0 = nobody audits"""
    hacked: dict[str, int] = {}
    """rule of the audit -> attempts of the step that it flagged"""
    hacked_frac: float = 0.0
    """flagged share of the step's audited attempts"""
    slots: tuple[int, ...] = ()
