"""Leave one out. RLOO, arXiv 2402.14740.

    A_i = R_i - mean_{j != i} R_j  =  G / (G - 1) * (R_i - mean_j R_j)

The baseline does not contain the attempt itself, so the gradient is unbiased at every group size.
"""

import numpy as np

from twinmill.records.samples import F32

from .base import Scored, spread


def leave_one_out(group: Scored) -> list[F32]:
    """Example: rewards 1, 0, 0: advantages 1, -1/2, -1/2. A lone graded attempt gets 0."""
    rewards_G = group.rewards_G
    graded = ~np.isnan(rewards_G)
    others = int(graded.sum()) - 1
    if others < 1 or (rewards_G[graded] == rewards_G[graded][0]).all():
        return spread(group, np.zeros_like(rewards_G))
    total = rewards_G[graded].sum()
    return spread(group, rewards_G - (total - rewards_G) / others)
