"""Microbatches side by side: each on threads of its own, what comes of them in the order in which they were given.

Threads that share the operators of one microbatch wait for one another at every operator, which costs most just where the
other mill wants the same cores. Threads that each have a microbatch never wait. What they give is summed in order, so
the bits are those of one thread as long as an operator's bits do not depend on its threads.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch

from twinmill.publish import threads

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """work(item) of each, as many at once as torch has threads. Where that is several, grad mode in `work` is torch's
    default, whatever it is here: it belongs to a thread."""
    have = torch.get_num_threads()
    count = max(1, min(have, len(items)))
    try:
        yield from threads.in_order(work, items, count, partial(torch.set_num_threads, have // count))
    finally:
        torch.set_num_threads(have)  # MKL keeps one number for all threads, the one set last
