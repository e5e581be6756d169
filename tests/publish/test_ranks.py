import pytest

from twinmill.publish.manifest import WeightsLog
from twinmill.publish.ranks import Ranks
from twinmill.publish.subscriber import Subscriber
from twinmill.publish.tiles import Shard, gather, owned
from twinmill.store.blobs import Blobs, open_blobs

from .toys import Trainer


class Engine:
    """Four tensor-parallel ranks over one log."""

    def __init__(self) -> None:
        self.blobs: Blobs = open_blobs("memory://")
        self.trainer = Trainer(self.blobs, skip_every=())
        self.trainer.publish()
        self.grid = WeightsLog(self.blobs).grid(self.trainer.publisher.latest)  # type: ignore[arg-type]
        self.mine = {rank: owned(self.grid, Shard(tp=4, tp_rank=rank)) for rank in range(4)}
        self.subscribers = {r: Subscriber(self.blobs, "run", tiles=t, retry_s=0.0) for r, t in self.mine.items()}
        self.ranks = Ranks(self.subscribers)

    def update(self, **options: object) -> None:
        prepared = self.ranks.prepare()
        assert prepared is not None
        self.ranks.commit(prepared, **options)  # type: ignore[arg-type]

    def holds(self, rank: int, number: int) -> bool:
        held = self.subscribers[rank].held
        assert held is not None
        state = self.trainer.states[number]
        return held.version.number == number and all(
            gather(self.grid.tiles[t], held.tensors).tobytes() == gather(self.grid.tiles[t], state).tobytes()
            for t in self.mine[rank]
        )


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.update()
    engine.trainer.publish()
    return engine


def test_all_ranks_move_together(engine: Engine) -> None:
    engine.update()
    assert engine.ranks.serving == dict.fromkeys(range(4), 1)
    assert all(engine.holds(rank, 1) for rank in range(4))
    assert engine.ranks.prepare() is None


def test_nobody_moves_before_all_are_prepared(engine: Engine) -> None:
    """One rank cannot reach the newest version: all wait at the last that everybody reaches."""
    engine.update()
    engine.trainer.publish()
    [part] = WeightsLog(engine.blobs).get(2).parts
    ahead = {rank: engine.subscribers[rank].prepare() for rank in (0, 1, 2)}
    assert all(ahead.values())
    engine.blobs.delete(part.object.key)
    assert engine.ranks.prepare() is None
    assert engine.ranks.serving == dict.fromkeys(range(4), 1)
    assert all(engine.holds(rank, 1) for rank in range(4))


def test_a_rank_that_lags_sets_the_pace(engine: Engine) -> None:
    prepared = engine.subscribers[2].prepare(1)
    assert prepared is not None
    engine.subscribers[2].commit(prepared)
    engine.trainer.publish()
    engine.update()
    assert engine.ranks.serving == dict.fromkeys(range(4), 2)


def test_a_commit_that_broke_off_is_done_again(engine: Engine) -> None:
    failed: list[int] = []

    def switch(rank: int) -> None:
        if rank == 2 and not failed:
            failed.append(rank)
            raise RuntimeError("the copy to the device was interrupted")

    engine.update(switch=switch)
    assert engine.ranks.fenced == {}
    assert all(engine.holds(rank, 1) for rank in range(4))


def test_a_rank_that_cannot_follow_is_fenced_and_begins_anew(engine: Engine) -> None:
    def switch(rank: int) -> None:
        if rank == 1:
            raise RuntimeError("device lost")

    engine.update(switch=switch)
    assert engine.ranks.fenced == {1: "device lost"}
    assert engine.ranks.serving == {0: 1, 2: 1, 3: 1}
    engine.trainer.publish()
    engine.update(switch=switch)
    assert engine.ranks.serving == {0: 2, 2: 2, 3: 2}
    assert engine.ranks.readmit(1)
    assert engine.ranks.serving == dict.fromkeys(range(4), 2)
    assert engine.holds(1, 2)


def test_where_no_rank_can_follow_all_stay_where_they_were(engine: Engine) -> None:
    def switch(rank: int) -> None:
        raise RuntimeError(f"rank {rank} has no memory left")

    with pytest.raises(RuntimeError, match="rank 3 has no memory"):
        engine.update(switch=switch)
    assert engine.ranks.fenced == {}
    assert all(engine.holds(rank, 0) for rank in range(4))
    engine.update()
    assert all(engine.holds(rank, 1) for rank in range(4))
