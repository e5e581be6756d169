"""Group mean (default). Dr. GRPO, arXiv 2503.20783; for Composer 2 see arXiv 2603.24477, section 4.1.

    A_i = R_i - mean_j R_j

Left out on purpose: division by the group's standard deviation (where all attempts are nearly equally right
it blows tiny differences up) and by the attempt's length (that favours short right and long wrong answers).
"""

import numpy as np

from twinmill.records.samples import F32

from .base import Scored, spread


def group_mean(group: Scored) -> list[F32]:
    """Example: rewards 1, 0, 0, NaN: advantages 2/3, -1/3, -1/3, 0."""
    graded = ~np.isnan(group.rewards_G)
    if not graded.any():
        return spread(group, group.rewards_G)
    rewards_G = group.rewards_G
    # equal rewards must give exactly 0, which the rounding of a mean does not promise
    if (rewards_G[graded] == rewards_G[graded][0]).all():
        return spread(group, np.zeros_like(rewards_G))
    return spread(group, rewards_G - rewards_G[graded].mean())
