"""A store that answers late or not at all leaves no slot behind that a trainer would wait for."""

import asyncio

import pytest

from twinmill.online.gateway import Gateway, GatewayConfig
from twinmill.online.gateway.run import listen, serve
from twinmill.online.gateway.slots import Slots
from twinmill.records.episodes import DropReason
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import StoreUnavailable
from twinmill.store.ledger import EpisodesLog

from .rigs import Reciter, nano, running, text


class Unsteady:
    """A store whose next creation below `prefix` ends in an error, after the object was written or before."""

    def __init__(self, blobs: Blobs, prefix: str, written: bool) -> None:
        self._blobs, self._prefix, self._written = blobs, prefix, written

    def put_new(self, key: str, data: bytes) -> bool:
        if self._prefix and key.startswith(self._prefix):
            self._prefix = ""
            if self._written:
                self._blobs.put_new(key, data)
            raise StoreUnavailable(f"{key}: no answer")
        return self._blobs.put_new(key, data)

    def __getattr__(self, name: str):
        return getattr(self._blobs, name)


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("then", ["another session", "the sweep"])
def test_an_admit_whose_answer_was_lost_is_closed(tmp_path, written, then):
    blobs = open_blobs(str(tmp_path))
    slots = Slots(EpisodesLog(Unsteady(blobs, "episodes/admit", written)), cluster="gateway", seed=0)

    async def play() -> int | None:
        with pytest.raises(StoreUnavailable):
            await slots.open("t", "a", 1, 0)
        if then == "the sweep":
            return await slots.drop_idle(3600.0, DropReason.UNGRADABLE)
        return (await slots.open("t", "a", 1, 0)).slot

    playing = asyncio.run(play())
    log = EpisodesLog(blobs)
    assert [admit.slot for admit in log.open_slots()] == ([] if playing is None else [playing])
    assert all(log.close_of(slot).drop is DropReason.INFRASTRUCTURE for slot in log.closed_slots())


def test_a_second_gateway_of_a_name_finds_the_first(tmp_path):
    log = EpisodesLog(open_blobs(str(tmp_path)))
    first, second = (Slots(log, cluster="gateway", seed=0) for _ in range(2))

    async def live() -> None:
        while True:
            await first.beat(0)
            await asyncio.sleep(0.02)

    async def play() -> list[bool]:
        found = [await second.rival(60.0)]  # nobody yet: an answer at once
        living = asyncio.create_task(live())
        await asyncio.sleep(0.1)
        found.append(await second.rival(60.0))
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        found.append(await second.rival(0.5))  # killed: watched in vain
        await first.end()
        found.append(await second.rival(60.0))
        return found

    assert asyncio.run(play()) == [False, True, False, False]


def test_a_second_gateway_does_not_touch_the_first_ones_slots(tmp_path):
    blobs = open_blobs(str(tmp_path))
    engine = Reciter([text("hi")])
    with running(engine, blobs=blobs, beat_s=0.2) as first:
        session = first.session()
        late = Gateway(engine, nano(), GatewayConfig(model="nano", context_tokens=1024, beat_s=0.2), blobs=blobs)
        with listen("127.0.0.1", 0) as listener, pytest.raises(OSError, match="another server named gateway"):
            asyncio.run(serve(late, listener, drain_s=1.0))
        assert [admit.slot for admit in EpisodesLog(blobs).open_slots()] == [0]
        assert first.reward(session, None).status_code == 200
    assert EpisodesLog(blobs).beats() == {}, "one that ends in order leaves no sign of life"
