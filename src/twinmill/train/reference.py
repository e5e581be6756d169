"""Reference log-probabilities: what the pinned reference version says to the tokens that the engine sampled.

Stands between batch.samples and batch.credit, and is skipped where credit.kl is 0. The reference chooses its experts
freely: replay is for the policy, whose own routing the engine recorded.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from twinmill.batch.pack import Packing, by_sample, pack
from twinmill.model.transformer import Decoder
from twinmill.records.samples import Microbatch, Sample

from .step import inputs_of, logprobs_at
from .workers import in_order


def score(reference: Decoder, samples: Sequence[Sample], packing: Packing, temperature: float) -> list[Sample]:
    """The samples with ref_logprobs: [N] each, 0 where the mask is off."""
    plain = [
        msgspec.structs.replace(sample, episode_id=str(i), segment=0, experts=None) for i, sample in enumerate(samples)
    ]

    @torch.inference_mode()
    def one(microbatch: Microbatch) -> dict[str, np.ndarray]:
        rows = torch.from_numpy(np.flatnonzero(microbatch.mask))
        hidden = reference(**inputs_of(microbatch)).hidden
        scores = np.zeros(len(microbatch.token_ids), np.float32)
        scores[microbatch.mask] = logprobs_at(reference, hidden, microbatch, rows, temperature).numpy()
        return by_sample(microbatch, scores)

    found = {f"{i}/0": np.zeros(len(sample.token_ids), np.float32) for i, sample in enumerate(samples)}
    for scores in in_order(one, pack(plain, packing, 1.0, drop_idle=False).microbatches):
        found |= scores
    return [msgspec.structs.replace(sample, ref_logprobs=found[f"{i}/0"]) for i, sample in enumerate(samples)]
