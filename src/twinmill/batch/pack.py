"""Samples -> microbatches: rows of at most T tokens, first-fit, longest first. Nothing is cut or padded.

A sample longer than T gets a row of its own. Attention never crosses a segment, so packing changes no result
but the last bits of fp32 sums; `unpacked` gives every sample its own row, for runs in which even these must
match the engine.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from twinmill.records.samples import Microbatch, Sample


class Packing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tokens: int = 2048
    """tokens of one microbatch; bounds the trainer's memory. A longer sample gets a microbatch of its own"""
    unpacked: bool = False
    """every sample is its own microbatch: bitwise equal to the engine's strict parity mode, and slower"""
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
    rows = [[s] for s in busy] if packing.unpacked else _first_fit(busy, packing.tokens)
    return Packed([_microbatch(row, denominator) for row in rows], len(samples) - len(busy))


def _carries_loss(sample: Sample, drop_idle: bool) -> bool:
    return bool((sample.mask & (sample.advantages != 0)).any() if drop_idle else sample.mask.any())


def _first_fit(samples: Sequence[Sample], tokens: int) -> list[list[Sample]]:
    """Longest first, ties in the given order: deterministic, and near the fewest possible rows."""
    rows: list[list[Sample]] = []
    room: list[int] = []
    for sample in sorted(samples, key=lambda sample: -len(sample.token_ids)):
        need = len(sample.token_ids)
        at = next((i for i, free in enumerate(room) if need <= free), len(rows))
        if at == len(rows):
            rows.append([])
            room.append(tokens)
        rows[at].append(sample)
        room[at] -= need
    return rows


def _microbatch(row: Sequence[Sample], denominator: float) -> Microbatch:
    lens = tuple(len(sample.token_ids) for sample in row)
    return Microbatch(
        token_ids=np.concatenate([s.token_ids for s in row]),
        positions=np.concatenate([np.arange(n, dtype=np.int64) for n in lens]),
        segment_lens=lens,
        mask=np.concatenate([s.mask for s in row]),
        logprobs=np.concatenate([s.logprobs for s in row]),
        advantages=np.concatenate([s.advantages for s in row]),
        weights=np.concatenate(
            [np.ones(n, np.float32) if s.weights is None else s.weights for s, n in zip(row, lens, strict=True)]
        ),
        versions=np.concatenate([s.versions for s in row]),
        sample_ids=tuple(f"{s.episode_id}/{s.segment}" for s in row),
        denominator=denominator,
        experts=_packed_experts(row),
    )


def _packed_experts(row: Sequence[Sample]) -> npt.NDArray[np.int32] | None:
    """[T, layers, top_k]. A segment's last position predicts nothing, so it was never recorded: -1."""
    parts: list[npt.NDArray[np.int32]] = []
    for sample in row:
        if sample.experts is None:
            if any(other.experts is not None for other in row):
                raise ValueError(
                    f"{sample.episode_id}/{sample.segment} has no experts, others of its step have; router "
                    "replay is on for every sample of a step or for none"
                )
            return None
        free = np.full((1, *sample.experts.shape[1:]), -1, dtype=np.int32)
        parts += [sample.experts.astype(np.int32), free]
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
