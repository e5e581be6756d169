import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from twinmill.store.errors import Corrupt, NotFound, StoreFull, StoreRefused, StoreUnavailable, TransferFailed
from twinmill.store.flight import Flight, Progress, Room, TransferConfig

QUICK = TransferConfig(retries=3, backoff_s=0.001, seed=1)


def fly(config: TransferConfig, attempt: Callable[[], Awaitable[Any]], size: int = 1) -> tuple[Any, Progress]:
    async def run() -> tuple[Any, Progress]:
        flight = Flight(config)
        result = await flight.request("read", "some/key", "s3://b", size, attempt)
        return result, flight.progress

    return asyncio.run(run())


class Failing:
    """Fails with each of `errors` in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "there"


def test_a_request_is_tried_again() -> None:
    attempt = Failing(StoreUnavailable("503"), TimeoutError("silent"), StoreUnavailable("reset"))
    assert fly(QUICK, attempt) == ("there", Progress(0, 0, 0, 3))
    assert attempt.calls == 4


def test_the_end_names_the_object_the_attempts_and_the_last_cause() -> None:
    attempt = Failing(*[StoreUnavailable(f"reset {i}") for i in range(9)])
    with pytest.raises(
        TransferFailed, match=r"could not read 'some/key' in s3://b: 4 attempts, the last: reset 3"
    ) as e:
        fly(QUICK, attempt)
    assert (e.value.key, e.value.attempts, e.value.cause) == ("some/key", 4, "reset 3")
    assert isinstance(e.value, StoreUnavailable), "whoever waits out an outage waits out this one"


@pytest.mark.parametrize("error", [NotFound("k"), Corrupt("k", "why"), StoreRefused("no"), StoreFull("full")])
def test_what_no_try_can_mend_is_said_at_once(error: Exception) -> None:
    attempt = Failing(error)
    with pytest.raises(type(error)):
        fly(QUICK, attempt)
    assert attempt.calls == 1


def test_a_deadline_ends_a_try() -> None:
    calls = 0

    async def hang() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(60)

    started = asyncio.new_event_loop().time()
    with pytest.raises(TransferFailed, match=r"2 attempts, the last: not through within 0\.\d+ s"):
        fly(TransferConfig(retries=1, backoff_s=0.001, deadline_s=0.05), hang)
    assert calls == 2
    assert asyncio.new_event_loop().time() - started < 20.0


def test_a_budget_ends_a_transfer() -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    with pytest.raises(TransferFailed, match=r"budget of 0\.1 s is used up") as e:
        fly(TransferConfig(retries=50, backoff_s=0.001, deadline_s=30, budget_s=0.1), hang)
    assert e.value.attempts == 1
    with pytest.raises(TransferFailed, match=r"reset; the transfer's budget of 0\.1 s"):
        fly(TransferConfig(retries=50, backoff_s=30, budget_s=0.1), Failing(StoreUnavailable("reset")))


def test_pauses_grow_are_bounded_and_differ() -> None:
    async def pauses(seed: int) -> list[float]:
        flight = Flight(TransferConfig(backoff_s=0.2, backoff_max_s=3.0, seed=seed))
        return [flight.pause_s("k", n) for n in range(8)]

    one, same, other = (asyncio.run(pauses(seed)) for seed in (5, 5, 6))
    assert one == same != other
    for n, pause in enumerate(one):
        assert min(0.2 * 2**n, 3.0) / 2 <= pause <= min(0.2 * 2**n, 3.0)
    assert asyncio.run(pauses(0)) != asyncio.run(pauses(0)), "0 = clusters do not come back in step"


@pytest.mark.parametrize("seed", range(20))
def test_a_room_holds_no_more_than_it_may_and_lets_in_by_turns(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 5, 20, 60]) for _ in range(60)]  # 60 is more than the room: it goes in alone

    async def run() -> list[int]:
        room, inside, entered = Room(4, 50), [], []

        async def guest(i: int) -> None:
            async with room.place(sizes[i]):
                entered.append(i)
                inside.append(sizes[i])
                assert len(inside) <= 4
                assert sum(inside) <= 50 or len(inside) == 1
                await asyncio.sleep(rng.uniform(0, 0.003))
                inside.remove(sizes[i])

        guests = [asyncio.ensure_future(guest(i)) for i in range(60)]
        await asyncio.sleep(0)
        leaver = guests.pop(rng.randrange(10, 60))  # one gives up waiting
        leaver.cancel()
        await asyncio.wait_for(asyncio.gather(*guests), 10)
        return entered

    entered = asyncio.run(run())
    assert entered == sorted(entered)
    assert len(entered) == 59


def test_a_store_that_is_overrun_gets_fewer_requests_and_then_more() -> None:
    async def run() -> list[int]:
        room, widths = Room(8, 1 << 30), []

        async def width() -> int:
            places = [asyncio.ensure_future(room.enter(1)) for _ in range(20)]
            await asyncio.sleep(0.001)
            inside = sum(place.done() for place in places)
            for place in places[inside:]:
                place.cancel()
            await asyncio.sleep(0)
            for _ in range(inside):
                room.leave(1)
            return inside

        now = asyncio.get_running_loop().time
        for step in "=-=n=+=":
            if step == "=":
                widths.append(await width())
            elif step == "-":
                began = now()
                for _ in range(8):  # eight that were out together say the same once
                    room.narrow(began - 1.0 if _ else began)
            elif step == "n":
                for _ in range(9):
                    await asyncio.sleep(0.001)
                    room.narrow(now())
            else:
                for _ in range(100):
                    room.widen()
        return widths

    assert asyncio.run(run()) == [8, 4, 1, 8]


def test_impossible_settings_are_refused() -> None:
    for wrong in ({"streams": 0}, {"deadline_s": 0}, {"retries": -1}, {"request_bytes": -5}):
        with pytest.raises(ValueError, match="want a number"):
            TransferConfig(**wrong)
    with pytest.raises(msgspec.ValidationError, match="streams is 0"):
        msgspec.convert({"streams": 0}, TransferConfig)
