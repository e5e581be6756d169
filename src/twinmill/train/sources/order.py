"""Endless shuffled passes over n items, as a pure function of (seed, position)."""

import numpy as np


def drawn(n: int, count: int, step: int, seed: int) -> list[int]:
    """The `count` items that step `step` reads. Every pass over the n items has an order of its own.

    Example: n = 3, count = 2: steps 0 and 1 read items [a, b] and [c, a'], with a' the first of the second pass.
    """
    if n == 0:
        raise ValueError("there is nothing to train on: the source is empty")
    places = range(step * count, (step + 1) * count)
    orders = {pass_: np.random.default_rng((seed, pass_)).permutation(n) for pass_ in {p // n for p in places}}
    return [int(orders[place // n][place % n]) for place in places]
