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
from twinmill.records.samples import Sample

from .step import inputs_of, logprobs_at


@torch.inference_mode()
def score(reference: Decoder, samples: Sequence[Sample], packing: Packing, temperature: float) -> list[Sample]:
    """The samples with ref_logprobs: [N] each, 0 where the mask is off."""
    plain = [
        msgspec.structs.replace(sample, episode_id=str(i), segment=0, experts=None) for i, sample in enumerate(samples)
    ]
    found: dict[str, np.ndarray] = {}
    for microbatch in pack(plain, packing, 1.0, drop_idle=False).microbatches:
        rows = torch.from_numpy(np.flatnonzero(microbatch.mask))
        hidden = reference(**inputs_of(microbatch)).hidden
        scores = np.zeros(len(microbatch.token_ids), np.float32)
        scores[microbatch.mask] = logprobs_at(reference, hidden, microbatch, rows, temperature).numpy()
        found |= by_sample(microbatch, scores)
    nothing = {f"{i}/0": np.zeros(len(sample.token_ids), np.float32) for i, sample in enumerate(samples)}
    return [
        msgspec.structs.replace(sample, ref_logprobs=(nothing | found)[f"{i}/0"]) for i, sample in enumerate(samples)
    ]
