"""KL to a reference as part of the reward, estimator k1 (arXiv 2603.24477, section 4.1).

    R_i  <-  R_i - beta * sum_t (log mu(a_t) - log pi_ref(a_t)), t over the sampled tokens of the whole chain

mu is the engine's own distribution, so the sum is an unbiased estimate of KL(mu || ref) of the whole chain.
k1 as a term of the loss would have zero expected gradient, hence in the reward; k3's variance explodes once
the two drift apart. Where the original puts it, and with which coefficient and reference, is not published:
this placement is our choice.
"""

import numpy as np

from twinmill.records.samples import Sample

from .base import F64


def kl_k1(samples_S: tuple[Sample, ...], owner_S: tuple[int, ...], attempts: int) -> F64:
    """Axis G: sum over an attempt's samples and sampled tokens of engine minus reference log-probability."""
    total_G = np.zeros(attempts)
    for sample, owner in zip(samples_S, owner_S, strict=True):
        if sample.ref_logprobs is None:
            raise ValueError(
                f"{sample.episode_id}/{sample.segment} has no reference log-probabilities, but credit.kl is "
                "above 0; score it with train.reference before credit"
            )
        difference = sample.logprobs.astype(np.float64) - sample.ref_logprobs
        total_G[owner] += difference[sample.mask].sum()
    return total_G
