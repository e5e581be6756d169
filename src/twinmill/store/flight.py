"""Many requests in flight: how many at once, how long each may take, when it is tried again, and when no more.

A request fails by an error that another try may mend (StoreUnavailable, or its deadline), or by one that none will
(everything else), which passes at once. While the store says "slow down" or lets deadlines pass, fewer requests are in
flight: their number is halved, and grows again by one for each round that went well.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from .errors import StoreFull, StoreUnavailable, TransferFailed

T = TypeVar("T")
A = TypeVar("A")
_TOO_FAST = ("code: 503 ", "code: 429 ", "SlowDown")
"""in the words of a store that wants fewer requests"""


class TransferConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many objects cross a link at once, and how patiently."""

    object_bytes: int = 48 << 20
    """size of the objects that a body is cut into; the last one may be smaller"""
    request_bytes: int = 8 << 20
    """longest range in bytes that one request reads; longer ones are read by several"""
    gap_bytes: int = 128 << 10
    """ranges of one object that lie so near are read by one request, with what is between them; 0 = only if they touch"""
    streams: int = 16
    """most requests in flight; fewer for as long as the store is overrun"""
    in_flight_bytes: int = 1 << 30
    """most bytes in flight, which is what they take of memory; a larger object crosses alone"""
    deadline_s: float = 120.0
    """seconds that one request may take, to the last byte"""
    silence_s: float = 20.0
    """seconds without a byte after which a request that reads counts as lost"""
    retries: int = 8
    """tries of a request after its first, at each place; 0 = none"""
    backoff_s: float = 0.2
    """seconds before the first retry; twice as many before each that follows, times a random factor of 0.5 to 1"""
    backoff_max_s: float = 10.0
    """longest pause in seconds"""
    budget_s: float = 1800.0
    """seconds that a whole transfer may take; 0 = only the bounds on its requests hold"""
    check_etags: bool = True
    """compare the ETag of what was written with the MD5 of what was sent, where the store's ETags are MD5s"""
    seed: int = 0
    """of the random factor; 0 = another one each time, so that clusters do not come back in step"""

    def __post_init__(self) -> None:
        for name in ("object_bytes", "request_bytes", "streams", "in_flight_bytes", "deadline_s", "silence_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; want a number > 0")
        for name in ("gap_bytes", "retries", "backoff_s", "backoff_max_s", "budget_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; want a number >= 0")


class Progress(NamedTuple):
    """How far a transfer is. Given to a callback in the thread that called upload or download."""

    done_bytes: int
    """what is across, what need not cross included; shrinks when something arrived damaged"""
    total_bytes: int
    """0 = not known yet"""
    reused_bytes: int
    """of those done: what was there before the transfer began"""
    retries: int
    """requests that were made again"""


OnProgress: TypeAlias = Callable[[Progress], None]


class Flight:
    """The requests of one transfer. Belongs to one event loop."""

    def __init__(self, config: TransferConfig, progress: OnProgress | None = None) -> None:
        self.config = config
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + config.budget_s if config.budget_s else float("inf")
        self._bulk = Room(config.streams, config.in_flight_bytes)
        self._small = Room(config.streams, config.in_flight_bytes)
        self._seed = config.seed or random.randrange(1, 1 << 62)
        self._tell = progress
        self.progress = Progress(0, 0, 0, 0)

    def moved(self, done: int, *, reused: int = 0, total: int = 0, retries: int = 0) -> None:
        """Count, and tell whoever watches."""
        was = self.progress
        self.progress = Progress(
            was.done_bytes + done, was.total_bytes + total, was.reused_bytes + reused, was.retries + retries
        )
        if self._tell is not None:
            self._tell(self.progress)

    async def request(
        self, doing: str, key: str, url: str, size: int, attempt: Callable[[], Awaitable[T]], *, before: int = 0
    ) -> T:
        """The result of `attempt`, of up to 1 + retries tries. TransferFailed when there was none.

        size: bytes that will cross; 0 = a question, which need not wait for bulk. before: tries that failed elsewhere.
        """
        room = self._bulk if size else self._small
        spent = f"the transfer's budget of {self.config.budget_s:g} s is used up"
        tries, cause = 0, ""
        while tries <= self.config.retries:
            async with room.place(size):
                began = self._loop.time()
                if began >= self._end:
                    cause = f"{cause}; {spent}" if cause else spent
                    break
                tries += 1
                try:
                    async with asyncio.timeout_at(min(began + self.config.deadline_s, self._end)):
                        result = await attempt()
                    room.widen()
                    return result
                except TimeoutError as error:
                    cause = str(error) or f"not through within {self._loop.time() - began:.3g} s"
                    room.narrow(began)
                except StoreFull:
                    raise
                except StoreUnavailable as error:
                    cause = _cause(error)
                    if any(word in cause for word in _TOO_FAST):
                        room.narrow(began)
            pause = self.pause_s(key, tries - 1)
            if self._loop.time() + pause >= self._end:
                cause = f"{cause}; {spent}"
                break
            if tries <= self.config.retries:
                self.moved(0, retries=1)
                await asyncio.sleep(pause)
        raise TransferFailed(doing, key, url, before + tries, cause)

    def pause_s(self, key: str, failed: int) -> float:
        """Seconds to wait after the try number `failed` (from 0) of `key`. The same for the same seed."""
        longest = min(self.config.backoff_s * 2.0**failed, self.config.backoff_max_s)
        return longest * random.Random(f"{self._seed} {key} {failed}").uniform(0.5, 1.0)


def _cause(error: StoreUnavailable) -> str:
    """What the client said, in one line: the rest is said once, at the end."""
    return str(error.__cause__ or error).strip().partition("\n")[0][:300]


class Room:
    """Bounds how many are in, and how many bytes they hold. First come, first served."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._now = float(most)
        self._inside = 0
        self._bytes = 0
        self._narrowed = 0.0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def place(self, size: int) -> AsyncIterator[None]:
        await self.enter(size)
        try:
            yield
        finally:
            self.leave(size)

    async def enter(self, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        self._inside -= 1
        self._bytes -= size
        self._admit()

    def narrow(self, began: float) -> None:
        """Half as many from now on, at least one. What `began` before the last time shows nothing new."""
        if began >= self._narrowed:
            self._now = max(1.0, self._now / 2)
            self._narrowed = asyncio.get_running_loop().time()

    def widen(self) -> None:
        """One more for each round, up to the most."""
        self._now = min(float(self._most), self._now + 1.0 / self._now)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            fits = self._inside < int(self._now) and self._bytes + size <= self._most_bytes
            if not turn.done():
                if not fits and self._inside:
                    return
                self._inside += 1
                self._bytes += size
                turn.set_result(None)
            self._waiting.popleft()


async def all_of(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first failure ends the others, and is raised."""
    async with Together() as group:
        tasks = [group.create_task(job) for job in jobs]
    return [task.result() for task in tasks]


class Together(asyncio.TaskGroup):
    """A TaskGroup that raises its first failure itself: callers catch our errors, not groups of them."""

    async def __aexit__(self, *error: Any) -> None:
        first: BaseException | None = None
        try:
            await super().__aexit__(*error)
        except BaseExceptionGroup as group:
            first = group
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
        if first is not None:
            raise first


async def to_its_end(work: Callable[[A], T], argument: A) -> T:
    """`work` in a thread; when cancelled, the thread is waited for, so that it leaves nothing locked behind."""
    job = asyncio.ensure_future(asyncio.to_thread(work, argument))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        raise
