"""Microbatches side by side: each on threads of its own, what comes of them in the order in which they were given.

Threads that share the operators of one microbatch wait for one another at every operator, which costs most just where the
other mill wants the same cores. Threads that each have a microbatch never wait. What they give is summed in order, so
the bits are those of one thread as long as an operator's bits do not depend on its threads.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def in_order(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """work(item) of each, as many at once as torch has threads. Grad mode in `work` is torch's default, whatever it is
    here: it belongs to a thread."""
    threads = torch.get_num_threads()
    count = min(threads, len(items))
    if count <= 1:
        yield from map(work, items)
        return
    try:
        with ThreadPoolExecutor(count, "microbatch", torch.set_num_threads, (threads // count,)) as room:
            yield from room.map(work, items)
    finally:
        torch.set_num_threads(threads)  # MKL keeps one number for all threads, the one set last
