"""Which task a slot holds: a pure function of the seed, and no task twice before all were seen once."""

import math
from collections.abc import Sequence


def task_of(slot: int, ids: Sequence[str], seed: int) -> str:
    """An affine permutation of the ids: slot -> id, the same on every cluster and after every crash."""
    count = len(ids)
    if not count:
        raise ValueError("the task set has no tasks in this split")
    step = _coprime(count, seed)
    return ids[(slot * step + seed * 7919) % count]


def _coprime(count: int, seed: int) -> int:
    step = max(1, int(count * 0.6180339887) + seed % 101)
    while math.gcd(step, count) != 1:
        step += 1
    return step


def attempt_seed(seed: int, slot: int, attempt: int) -> int:
    """63 bits, the same for every try of one attempt: an attempt lost to infrastructure is run again as it was."""
    x = (seed * 0x9E3779B97F4A7C15 + slot * 0xBF58476D1CE4E5B9 + attempt * 0x94D049BB133111EB + 1) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (x ^ (x >> 31)) >> 1
