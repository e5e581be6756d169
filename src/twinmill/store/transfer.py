"""Many objects at once: upload and download that come through faults, go on after a kill, and end in time.

    upload    parts -> objects named by their content; what is there already is not sent again
    download  refs or ranges -> a sink; checked before anybody sees it, again from here, then from elsewhere
    absent    which of these objects are not there
    remove    take objects away

Each runs an event loop of its own in the caller's thread, and returns or raises when all of it is over: nothing goes on
behind its back. Here, not in publish, because nothing in it knows of versions; checkpoints and episodes' blobs cross the
same links.

    who                waits for                      unblocked by              bound
    a request          a place among `streams`        another's end             the others' bounds
    a request          the store                      bytes                     deadline_s, silence_s, then tried again
    upload             room for the next part         the end of one before     the same
    a download         another process's, same file   its end or its death      budget_s

Errors: TransferFailed (named object, attempts, last cause), Corrupt (what the store holds is not what was written),
NotFound, StoreRefused, StoreFull. What has crossed by then stays: start again and only the rest crosses.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from twinmill.records.base import Ref

from .fetching import Download
from .flight import Flight, OnProgress, TransferConfig, all_of
from .requests import Place, Requests
from .sending import Part, Upload, size_of
from .sinks import Sink
from .spans import Want

T = TypeVar("T")


def cut(body: Part, object_bytes: int) -> list[memoryview]:
    """`body` in parts of `object_bytes`, none copied. An empty body is one empty part."""
    view = memoryview(body).cast("B")
    return [view[at : at + object_bytes] for at in range(0, max(len(view), 1), object_bytes)]


def upload(
    place: Place,
    parts: Iterable[Part],
    config: TransferConfig | None = None,
    progress: OnProgress | None = None,
    *,
    prefix: str,
    again: bool = False,
    point: str = "blob.ref",
) -> list[Ref]:
    """Store each part at prefix/<its BLAKE3>; their refs in order. All are there when this returns.

    parts: taken one by one while the ones before are on their way, so they may be made meanwhile, in another thread.
    again: send also what is there already with the right size, which heals a damaged copy. point: the named write.
    """

    async def run() -> list[Ref]:
        return await Upload(place, config or TransferConfig(), progress, prefix, again, point).run(parts)

    return _finished(run())


def download(
    place: Place,
    wants: Iterable[Ref | Want],
    sink: Sink,
    config: TransferConfig | None = None,
    progress: OnProgress | None = None,
    *,
    others: Sequence[Place] = (),
    arrived: Callable[[Want], None] | None = None,
) -> None:
    """Fill `sink` with every want. All have settled when this returns.

    others: places to fetch from, in turn, what `place` has lost, has damaged, or does not give. arrived: called in this
    thread as each want settles, so that work on it may begin.
    """
    found = dict.fromkeys(Want.of(want) if isinstance(want, Ref) else want for want in wants)

    async def run() -> None:
        places = [one.requests() for one in (place, *others)]
        try:
            await Download(places, sink, config or TransferConfig(), progress, arrived).run(list(found))
        finally:
            sink.close()

    _finished(run())


def absent(place: Place, refs: Iterable[Ref], config: TransferConfig | None = None) -> list[Ref]:
    """Those of `refs` that are not in the store, or have another size there; in order."""
    wanted = list(dict.fromkeys(refs))

    async def run() -> list[Ref]:
        flight, requests = Flight(config or TransferConfig()), place.requests()
        sizes = await all_of(size_of(flight, requests, ref.key) for ref in wanted)
        return [ref for ref, size in zip(wanted, sizes) if size != ref.bytes]

    return _finished(run())


def remove(place: Place, keys: Iterable[str], config: TransferConfig | None = None) -> None:
    """Delete. Nothing happens to a key without an object."""

    async def run() -> None:
        flight, requests = Flight(config or TransferConfig()), place.requests()
        await all_of(_remove(flight, requests, key) for key in keys)

    _finished(run())


async def _remove(flight: Flight, requests: Requests, key: str) -> None:
    await flight.request("delete", key, requests.url, 0, lambda: requests.delete(key))


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Its result. In a thread that runs a loop already, which stands still meanwhile, in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(asyncio.run, work).result()
