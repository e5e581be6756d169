"""A store that answers late or not at all leaves no slot behind that a trainer would wait for."""

import asyncio

import pytest

from twinmill.online.gateway.slots import Slots
from twinmill.records.episodes import DropReason
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import StoreUnavailable
from twinmill.store.ledger import EpisodesLog


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
