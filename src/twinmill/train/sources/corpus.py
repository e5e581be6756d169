"""Mid-training: rows of a packed corpus (data/corpus.py), every token but the first of a row carrying loss."""

import numpy as np
import numpy.typing as npt

from twinmill.batch.pack import Packing, pack
from twinmill.records.samples import Microbatch, Sample

from .order import drawn


class CorpusSource:
    """`rows` is [N, T] token ids; a step reads `rows_per_step` of them."""

    name = "corpus"

    def __init__(self, rows: npt.NDArray[np.int64], rows_per_step: int, seed: int, packing: Packing) -> None:
        self.rows, self.rows_per_step, self.seed, self.packing = rows, rows_per_step, seed, packing

    def batch(self, step: int) -> list[Microbatch]:
        return row_microbatches(self.rows[drawn(len(self.rows), self.rows_per_step, step, self.seed)], self.packing)


def row_microbatches(rows: npt.NDArray[np.int64], packing: Packing) -> list[Microbatch]:
    """[N, T] token ids as microbatches; the denominator is their number of predicted tokens."""
    samples = [plain_sample(f"row{i}", row, np.arange(len(row)) > 0) for i, row in enumerate(rows)]
    return pack(samples, packing, float(sum(s.mask.sum() for s in samples)), drop_idle=False).microbatches


def plain_sample(name: str, token_ids: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> Sample:
    """A sample that no engine sampled: no log-probabilities, no advantages, no versions."""
    zeros = np.zeros(len(token_ids), np.float32)
    none = np.full(len(token_ids), -1, np.int64)
    ids = np.ascontiguousarray(token_ids, dtype=np.int64)
    return Sample(episode_id=name, segment=0, token_ids=ids, mask=mask, logprobs=zeros, advantages=zeros, versions=none)
