"""Which samples stand together in a row, and what those that begin alike share.

The attempts of a group begin with the same prompt. A family is such a set of samples: what they share is computed once,
and each sample's rest as a continuation of it. Two samples share a beginning as far as

    their token ids are equal,
    their recorded experts are equal (the prompt of a late attempt may have been routed under newer weights), and
    every token is predicted behind it: the row before a sample's first token under the mask stays its own.

Families are found by what samples hold, whoever made them, so transcripts of one task share as well.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twinmill.records.samples import Sample

SEGMENT = 8
"""what a segment of a family costs, in tokens computed: measured on the nano model, where two attempts gain from about 30
shared tokens on and eight from about 12"""


class Family(NamedTuple):
    """Samples of one row that begin alike. Example: lengths 9 and 7, shared 5: tokens = 5 + 4 + 2 = 11."""

    samples: tuple[Sample, ...]
    shared: int = 0
    """ids at the beginning of each that are computed once; 0 = nothing"""

    @property
    def tokens(self) -> int:
        """Tokens that are really computed."""
        return self.shared + sum(len(sample.token_ids) - self.shared for sample in self.samples)


def alone(samples: Sequence[Sample]) -> list[Family]:
    return [Family((sample,)) for sample in samples]


def families(samples: Sequence[Sample], tokens: int) -> list[Family]:
    """The samples in families of at most `tokens` tokens, saving about as many as can be saved in that form.

    A larger family is divided, its beginning computed once in each part. A function of the samples and their order.
    """
    heads = [_head(sample) for sample in samples]
    order = sorted(range(len(samples)), key=lambda i: heads[i].tobytes())  # what begins alike stands side by side
    alike = [_alike(heads[a], heads[b]) for a, b in pairwise(order)]
    runs = _runs(0, len(order), alike) if samples else []
    members = sorted((sorted(order[run.first : run.stop]), run.shared) for run in runs)  # back to the given order
    found = [Family(tuple(samples[i] for i in which), shared) for which, shared in members]
    return [part for family in found for part in _parts(family, tokens)]


def first_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Indices of `sizes` in bins of at most `room`, largest first, ties in the given order: deterministic, and near the
    fewest possible bins. What is larger than `room` is alone in its bin."""
    bins: list[list[int]] = []
    free: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        at = next((b for b, left in enumerate(free) if sizes[i] <= left), len(bins))
        if at == len(bins):
            bins.append([])
            free.append(room)
        bins[at].append(i)
        free[at] -= sizes[i]
    return bins


class _Run(NamedTuple):
    """Places [first, stop) of the order in which what begins alike stands side by side."""

    first: int
    stop: int
    shared: int

    @property
    def saved(self) -> int:
        """Tokens, less what the segments cost."""
        count = self.stop - self.first
        return (count - 1) * self.shared - SEGMENT * (count + 1) if self.shared else 0


def _runs(first: int, stop: int, alike: Sequence[int]) -> list[_Run]:
    """Places [first, stop) as one run, or cut where neighbours have least in common, whichever saves more.

    alike[i] = what places i and i + 1 have in common. Example: alike [150, 60, 150]: two runs that share 150 save 300, one
    run that shares 60 would save 180.
    """
    if stop - first == 1:
        return [_Run(first, stop, 0)]
    least = min(alike[first : stop - 1])
    cuts = [i + 1 for i in range(first, stop - 1) if alike[i] == least]
    whole = _Run(first, stop, least)
    parts = [run for a, b in pairwise((first, *cuts, stop)) for run in _runs(a, b, alike)]
    return [whole] if whole.saved > sum(run.saved for run in parts) else parts


def _parts(family: Family, tokens: int) -> Iterator[Family]:
    if family.tokens <= tokens or not family.shared:
        yield family
        return
    own = [len(sample.token_ids) - family.shared for sample in family.samples]
    for part in first_fit(own, tokens - family.shared):
        members = tuple(family.samples[i] for i in sorted(part))
        yield Family(members, family.shared if len(members) > 1 else 0)


def _head(sample: Sample) -> npt.NDArray[np.uint16]:
    """[positions, 4 + layers * top_k]: ids and experts of the positions that the sample may share."""
    positions = max(int(sample.mask.argmax()) - 1, 0)
    ids = np.ascontiguousarray(sample.token_ids[:positions], dtype=np.int64).view(np.uint16).reshape(positions, 4)
    if sample.experts is None:
        return ids
    return np.hstack((ids, sample.experts.reshape(len(sample.experts), -1)[:positions]))


def _alike(a: npt.NDArray[np.uint16], b: npt.NDArray[np.uint16]) -> int:
    """How many positions two heads have in common, from the first on."""
    n = min(len(a), len(b))
    differ = (a[:n] != b[:n]).any(1)
    return int(differ.argmax()) if differ.any() else n
