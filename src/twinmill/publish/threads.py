"""Many items at once, results in their order, and never more than a few in memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def processors(threads: int) -> int:
    """How many threads a setting means: 0 = one per processor that this process may use."""
    return threads or len(os.sched_getaffinity(0))


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, begin: Callable[[], object] | None = None
) -> Iterator[Result]:
    """work(item) of each item, in order, by so many threads; two results per thread may wait to be taken. `begin` is called
    first in each thread that is not the caller's.

    `items` is read in the caller's thread, as results are taken. One thread, or one item, is the caller's own thread. The
    first error is raised in its turn; what has not begun by then never does.
    """
    items = iter(items)
    first = list(islice(items, 2))
    if threads <= 1 or len(first) < 2:
        yield from map(work, chain(first, items))
        return
    going: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, initializer=begin) as pool:
        try:
            for item in chain(first, items):
                going.append(pool.submit(work, item))
                if len(going) > 2 * threads:
                    yield going.popleft().result()
            while going:
                yield going.popleft().result()
        finally:
            for future in going:
                future.cancel()
