"""The inside of `transfer.download`: requests, what they hold for whom, checks, other places."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing

from .errors import Corrupt, NotFound, StoreUnavailable, TransferFailed
from .flight import Flight, OnProgress, Room, Together, TransferConfig, to_its_end
from .requests import Chunk, Requests
from .sinks import Sink
from .spans import Request, Span, Want, plan

_ASK_AGAIN_S = 0.05


class _Reading:
    """One request, and how much of it has come. What has come is not read again."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.got = 0
        self.tries = 0

    def dealt(self, chunk: Chunk) -> Iterator[tuple[Want, int, memoryview]]:
        """(want, place in it, bytes) of what `chunk`, the next to come, holds."""
        data, begin = memoryview(chunk), self.got
        self.got += len(data)
        for take in self.request.takes:
            low, high = max(begin, take.start), min(self.got, take.start + take.bytes)
            if low < high:
                yield take.want, take.at + low - take.start, data[low - begin : high - begin]


class _Damage:
    """What came of a want that was not what was wanted, and so from which place it is fetched next."""

    def __init__(self) -> None:
        self.place = 0
        self.tries = 0
        self._last = ""

    def add(self, found: str, retries: int) -> None:
        """The same wrong bytes twice: the place has them so. Others each time: the link damages them, so try again."""
        self.tries += 1
        if found == self._last or self.tries > retries:
            self.place, found = self.place + 1, ""
        self._last = found


class Download:
    def __init__(
        self,
        places: Sequence[Requests],
        sink: Sink,
        config: TransferConfig,
        progress: OnProgress | None,
        arrived: Callable[[Want], None] | None,
    ) -> None:
        self._places = places
        self._silent: set[int] = set()
        self._sink = sink
        self._config = config
        self._flight = Flight(config, progress)
        self._arrived = arrived
        self._group = Together()
        # Objects that are under way: enough for every stream, and few enough for a process's file descriptors.
        self._open = Room(2 * config.streams, 1)
        self._unsettled: Counter[str] = Counter()
        self._left: dict[Want, int] = {}
        self._damage: defaultdict[Want, _Damage] = defaultdict(_Damage)
        self._fetched: set[Want] = set()

    async def run(self, wants: Sequence[Want]) -> None:
        self._flight.moved(0, total=sum(want.bytes for want in wants))
        objects: defaultdict[str, list[Want]] = defaultdict(list)
        for want in wants:
            objects[want.key].append(want)
        async with self._group:
            for key, ranges in objects.items():
                await self._open.enter(0)
                self._unsettled[key] = len(ranges)
                await self._start(ranges)

    async def _start(self, wants: Sequence[Want]) -> None:
        """All that is wanted of one object."""
        missing = []
        for want in wants:
            spans = await to_its_end(self._sink.missing, want)
            if spans is None:
                self._group.create_task(self._wait_for_another(want))
            else:
                missing.append((want, spans))
        self._begin(missing)

    async def _wait_for_another(self, want: Want) -> None:
        """Another process of this host fetches the same file: it ends well, or its lock falls and we go on from there."""
        began = asyncio.get_running_loop().time()
        while (spans := await to_its_end(self._sink.missing, want)) is None:
            waited = asyncio.get_running_loop().time() - began
            if self._config.budget_s and waited > self._config.budget_s:
                cause = f"another process has been fetching it for {waited:.3g} s"
                raise TransferFailed("read", want.key, self._places[0].url, 0, cause)
            await asyncio.sleep(_ASK_AGAIN_S)
        self._begin([(want, spans)])

    def _begin(self, missing: Sequence[tuple[Want, Sequence[Span]]]) -> None:
        for want, spans in missing:
            self._left[want] = sum(span.bytes for span in spans)
            here = want.bytes - self._left[want]
            self._flight.moved(here, reused=here)
            if self._left[want]:
                self._fetched.add(want)
            else:
                self._group.create_task(self._settle(want))
        for request in plan(missing, self._config.request_bytes, self._config.gap_bytes):
            self._group.create_task(self._fetch(_Reading(request)))

    async def _fetch(self, reading: _Reading) -> None:
        """From the first place that is not known to be bad, on through the others."""
        request = reading.request
        first = max(self._damage[take.want].place for take in request.takes)
        places = [i for i in range(first, len(self._places)) if i not in self._silent] or [len(self._places) - 1]
        for i in places:
            try:
                return await self._fetch_from(self._places[i], reading)
            except (NotFound, Corrupt):
                if i == places[-1]:
                    raise
            except TransferFailed:
                self._silent.add(i)
                if i == places[-1]:
                    raise

    async def _fetch_from(self, place: Requests, reading: _Reading) -> None:
        request = reading.request
        for again in (True, False):
            left, tries = max(1, request.bytes - reading.got), reading.tries
            try:
                return await self._flight.request(
                    "read", request.key, place.url, left, lambda: self._read(place, reading), before=tries
                )
            except Corrupt:  # by the size that the store states: look twice, it may have been damaged on the way
                if not again:
                    raise
            await asyncio.sleep(self._flight.pause_s(request.key, 0))

    async def _read(self, place: Requests, reading: _Reading) -> None:
        request = reading.request
        reading.tries += 1
        loop, silence_s = asyncio.get_running_loop(), self._config.silence_s
        left = request.bytes - reading.got
        chunks = place.read(request.key, request.offset + reading.got, left, request.whole)
        try:
            async with asyncio.timeout(silence_s) as quiet, aclosing(chunks):
                async for chunk in chunks:
                    quiet.reschedule(loop.time() + silence_s)
                    for want, at, data in reading.dealt(chunk):
                        self._take(want, at, data)
        except TimeoutError:
            raise TimeoutError(f"silent for {silence_s:g} s after {reading.got} of {request.bytes} bytes") from None
        if reading.got < request.bytes:
            raise StoreUnavailable(f"ended after {reading.got} of {request.bytes} bytes")

    def _take(self, want: Want, at: int, data: memoryview) -> None:
        self._sink.write(want, at, data)
        self._flight.moved(len(data))
        self._left[want] -= len(data)
        if not self._left[want]:
            self._group.create_task(self._settle(want))

    async def _settle(self, want: Want) -> None:
        found = await to_its_end(self._sink.settle, want)
        if found is None:
            self._unsettled[want.key] -= 1
            if not self._unsettled[want.key]:
                self._open.leave(0)
            if self._arrived is not None:
                self._arrived(want)
            return
        self._flight.moved(-want.bytes, retries=1)
        if want in self._fetched:
            damage = self._damage[want]
            damage.add(found, self._config.retries)
            if damage.place >= len(self._places):
                places = ", then ".join(place.url for place in self._places)
                raise Corrupt(want.key, f"fetched {damage.tries} times from {places}: never with its digest")
            await asyncio.sleep(self._flight.pause_s(want.key, damage.tries - 1))
        await self._wait_for_another(want)
