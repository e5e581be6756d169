"""Declared waiting: how long each call of a task's tools takes beside its own work."""

import math
import random
from collections.abc import Iterator
from itertools import count
from statistics import NormalDist

from twinmill.records.tasks import ToolWait

_Z99 = NormalDist().inv_cdf(0.99)


def waits(spec: ToolWait, seed: int) -> Iterator[float]:
    """Seconds that call 0, 1, ... of the attempt with this seed waits; endless, and the same in every process."""
    mu, sigma = math.log(spec.median_s), math.log(spec.p99_over_p50) / _Z99
    return (random.Random(f"wait/{seed}/{call}").lognormvariate(mu, sigma) for call in count())
