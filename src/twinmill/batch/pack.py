"""Samples -> microbatches: rows of at most T tokens, first-fit, largest first. Nothing is cut or padded.

A sample longer than T gets a row of its own. Samples that begin alike, as the attempts of a group do, stand in one row
where they fit, and what they share is computed once (batch/rows.py). Attention never crosses a segment but into what it
continues, so neither changes a result but the last bits of fp32 sums; `unpacked` gives every sample its own row, for
runs in which even these must match the engine.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from twinmill.records.samples import Microbatch, Sample

from .rows import Family, alone, families, first_fit

Scalar = TypeVar("Scalar", bound=np.generic)


class Packing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tokens: int = 2048
    """tokens that one microbatch computes; bounds the trainer's memory. A longer sample gets a microbatch of its own"""
    share: bool = True
    """samples that begin alike (a group's prompt) stand in one microbatch, and what they share is computed once"""
    unpacked: bool = False
    """every sample is its own microbatch and shares nothing: torch needs it to give an engine's bits, the core does not; slower"""
    keep_idle: bool = False
    """also compute samples whose advantages are all 0: no gradient comes of it, but mismatch is measured"""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens}; a microbatch holds at least 1")


class Packed(NamedTuple):
    microbatches: list[Microbatch]
    idle: int
    """samples that carried no gradient and were left out"""


def pack(samples: Sequence[Sample], packing: Packing, denominator: float, *, drop_idle: bool = True) -> Packed:
    """`denominator` divides the summed loss of the whole step, so it is the same in each microbatch.

    drop_idle=False is for losses without advantages (cross entropy): every sample with a mask is computed.
    Samples under whose mask nothing is left are always left out.
    """
    if denominator <= 0:
        raise ValueError(f"the loss denominator is {denominator}; it must be above 0")
    busy = [sample for sample in samples if _carries_loss(sample, drop_idle and not packing.keep_idle)]
    for sample in busy:
        _check(sample)
        _check_replay(sample, busy[0])
    return Packed([_microbatch(row, denominator) for row in _rows(busy, packing)], len(samples) - len(busy))


def by_sample(microbatch: Microbatch, values: npt.NDArray[Scalar]) -> dict[str, npt.NDArray[Scalar]]:
    """`values` [T, ...] by sample id, each [N, ...]: those of the segment that it continues, then its own."""
    parts = np.split(values, np.cumsum(microbatch.segment_lens)[:-1])
    shared = set(microbatch.parents)
    wholes = [
        part if parent < 0 else np.concatenate((parts[parent], part))
        for i, (part, parent) in enumerate(zip(parts, microbatch.parents, strict=True))
        if i not in shared
    ]
    return dict(zip(microbatch.sample_ids, wholes, strict=True))


def _carries_loss(sample: Sample, drop_idle: bool) -> bool:
    return bool((sample.mask & (sample.advantages != 0)).any() if drop_idle else sample.mask.any())


def _rows(samples: Sequence[Sample], packing: Packing) -> list[list[Family]]:
    if packing.unpacked:
        return [[family] for family in alone(samples)]
    units = families(samples, packing.tokens) if packing.share else alone(samples)
    return [[units[i] for i in row] for row in first_fit([unit.tokens for unit in units], packing.tokens)]


class _Piece(NamedTuple):
    """Tokens [first, stop) of a sample: one segment of a row, which continues piece `parent` of it (-1 = none)."""

    sample: Sample
    first: int
    stop: int
    parent: int = -1

    @property
    def last(self) -> bool:
        """Does the sample end here?"""
        return self.stop == len(self.sample.token_ids)

    def of(self, values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        return values[self.first : self.stop]


def _pieces(row: Sequence[Family]) -> Iterator[_Piece]:
    at = 0
    for samples, shared in row:
        parent = -1
        if shared:
            yield _Piece(samples[0], 0, shared)
            parent, at = at, at + 1
        for sample in samples:
            yield _Piece(sample, shared, len(sample.token_ids), parent)
            at += 1


def _microbatch(row: Sequence[Family], denominator: float) -> Microbatch:
    pieces = list(_pieces(row))
    return Microbatch(
        token_ids=np.concatenate([p.of(p.sample.token_ids) for p in pieces]),
        positions=np.concatenate([np.arange(p.first, p.stop, dtype=np.int64) for p in pieces]),
        segment_lens=tuple(p.stop - p.first for p in pieces),
        parents=tuple(p.parent for p in pieces),
        mask=np.concatenate([p.of(p.sample.mask) for p in pieces]),
        logprobs=np.concatenate([p.of(p.sample.logprobs) for p in pieces]),
        advantages=np.concatenate([p.of(p.sample.advantages) for p in pieces]),
        weights=np.concatenate([_weights(p) for p in pieces]),
        versions=np.concatenate([p.of(p.sample.versions) for p in pieces]),
        sample_ids=tuple(f"{p.sample.episode_id}/{p.sample.segment}" for p in pieces if p.last),
        denominator=denominator,
        experts=_packed_experts(pieces),
    )


def _weights(piece: _Piece) -> npt.NDArray[np.float32]:
    if piece.sample.weights is None:
        return np.ones(piece.stop - piece.first, np.float32)
    return piece.of(piece.sample.weights)


def _packed_experts(pieces: Sequence[_Piece]) -> npt.NDArray[np.int32] | None:
    """[T, layers, top_k]. A sample's last position predicts nothing, so it was never recorded: -1."""
    parts: list[npt.NDArray[np.int32]] = []
    for piece in pieces:
        experts = piece.sample.experts
        if experts is None:
            return None
        parts.append(piece.of(experts).astype(np.int32))
        if piece.last:
            parts.append(np.full((1, *experts.shape[1:]), -1, dtype=np.int32))
    return np.concatenate(parts)


def _check(sample: Sample) -> None:
    """All per-token arrays have N entries, and no loss lies on the first token: nothing predicts it."""
    n = len(sample.token_ids)
    lengths = {
        "mask": len(sample.mask),
        "logprobs": len(sample.logprobs),
        "advantages": len(sample.advantages),
        "versions": len(sample.versions),
        "weights": n if sample.weights is None else len(sample.weights),
        "experts + 1": n if sample.experts is None else len(sample.experts) + 1,
    }
    wrong = {name: length for name, length in lengths.items() if length != n}
    if wrong:
        raise ValueError(f"{sample.episode_id}/{sample.segment}: {n} token ids but {wrong}")
    if sample.mask[0]:
        raise ValueError(f"{sample.episode_id}/{sample.segment}: its first token carries loss, but nothing predicts it")


def _check_replay(sample: Sample, other: Sample) -> None:
    """The samples of a step all have recorded experts, of one model, or none has."""
    own, theirs = (None if s.experts is None else s.experts.shape[1:] for s in (sample, other))
    if own != theirs:
        raise ValueError(
            f"{sample.episode_id}/{sample.segment} has recorded experts of shape {own} (layers, top k), "
            f"{other.episode_id}/{other.segment} of {theirs}; router replay is on for every sample of a step or for "
            "none, and all are of one model"
        )
