"""What users of other systems reported, tried on this one."""

from collections import Counter

import numpy as np
import pytest

from twinmill.publish import PublishConfig
from twinmill.publish.chain import rebuild
from twinmill.publish.container import read_part
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.publisher import Publisher
from twinmill.publish.subscriber import Subscriber
from twinmill.store.audit import audit
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import StoreUnavailable
from twinmill.store.flight import TransferConfig
from twinmill.store.requests import BlobRequests

from .toys import DTYPES, Trainer, first_state, moved, same

SPECIAL = {
    "model.embed_tokens.weight": [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7FA1, 0xFFFF, 0x0001],
    "model.norm.weight": [
        0x00000000,
        0x80000000,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0x7FA00001,
        0xFFFFFFFF,
        0x00000001,
    ],
    "scale": [0x00, 0x80, 0x7F, 0xFF, 0x7E],
}
"""+0, -0, Inf, -Inf, quiet and signalling NaN, all ones, the least denormal"""


@pytest.mark.parametrize("codec", ["wdx", "gaps", "raw"])
def test_minus_zero_nan_and_infinity_travel(codec: str) -> None:
    """Detectors that compare as floats never send +0 -> -0; masks of NaN cannot write a NaN (grail, TRL, verl, vLLM)."""
    blobs = open_blobs("memory://")
    publisher = Publisher(blobs, "run", PublishConfig(codec=codec, threads=1, skip_every=()))
    state = first_state()
    for step, turn in enumerate([0, 1, 5, 0]):
        state = {name: array.copy() for name, array in state.items()}
        for name, values in SPECIAL.items():
            state[name].reshape(-1)[: len(values)] = np.roll(np.array(values, np.uint64), turn).astype(
                state[name].dtype
            )
        publisher.publish(state, DTYPES, step=step)
        assert same(rebuild(WeightsLog(blobs), step).tensors, state)


def test_whatever_changed_is_named_and_what_did_not_advances_the_number() -> None:
    """stitch #53: a delta that named no tensors skipped the reload, and the label advanced all the same."""
    blobs = open_blobs("memory://")
    publisher, subscriber = Publisher(blobs, "run", PublishConfig(threads=1)), Subscriber(blobs, "run")
    states = [first_state()]
    states += [moved(states[0], 1), moved(states[0], 1), moved(states[0], 2)]
    for step, state in enumerate(states):
        publisher.publish(state, DTYPES, step=step)
        prepared = subscriber.prepare()
        assert prepared is not None
        before = states[step - 1] if step else {}
        differing = {n for n, array in state.items() if n not in before or array.tobytes() != before[n].tobytes()}
        assert prepared.changed == differing
        subscriber.commit(prepared)
        assert subscriber.number == step
        assert same(prepared.tensors, state)


class Watched:
    """A store that counts requests, can fail at a put, and looks at what is there when a manifest comes."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.asked: Counter[str] = Counter()
        self.fail_at = -1
        self.missing: list[str] = []

    def __getattr__(self, name: str) -> object:
        method = getattr(self._blobs, name)
        if not callable(method):
            return method

        def counted(*args: object, **options: object) -> object:
            self.asked[name] += 1
            return method(*args, **options)

        return counted

    def requests(self) -> BlobRequests:
        return BlobRequests(self)  # type: ignore[arg-type]

    def put(self, key: str, data: bytes) -> None:
        """From the `fail_at`-th put on, none comes through."""
        self.asked["put"] += 1
        if self.fail_at > 0:
            self.fail_at -= 1
        if self.fail_at == 0:
            raise StoreUnavailable("503, slow down")
        self._blobs.put(key, data)

    def claim(self, key: str, data: bytes) -> bool:
        from twinmill.records.weights import WeightVersion
        from twinmill.store.frame import unseal_record

        for part in unseal_record(key, data, WeightVersion).parts:
            if not self._blobs.exists(part.object.key) or read_part(self._blobs, part).part != part:
                self.missing.append(part.object.key)
        return self._blobs.claim(key, data)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_upload_that_fails_half_way_leaves_nothing_half_done(nth: int) -> None:
    """NeMo-RL #2444: a failed sync sent some of its payloads, the trainer dropped the rest, and a retry was unsafe."""
    blobs = open_blobs("memory://")
    store = Watched(blobs)
    tries = TransferConfig(retries=1, backoff_s=0.01, streams=1)
    config = PublishConfig(codec="raw", threads=1, skip_every=(), object_bytes=300, transfer=tries)
    publisher = Publisher(store, "run", config)  # type: ignore[arg-type]
    states = [first_state(), moved(first_state(), 1)]
    publisher.publish(states[0], DTYPES, step=0)
    store.fail_at = nth
    with pytest.raises(StoreUnavailable):
        publisher.publish(states[1], DTYPES, step=1)
    store.fail_at = -1
    assert WeightsLog(blobs).newest() == 0
    held = publisher.state()
    assert held is not None
    assert same(held.tensors, states[0])
    assert len(publisher.publish(states[1], DTYPES, step=1).parts) >= nth
    assert same(rebuild(WeightsLog(blobs), 1).tensors, states[1])
    assert audit(blobs, objects=True).problems == ()


def test_every_object_is_there_before_the_manifest_is() -> None:
    """prime-rl #2389: housekeeping ran before the writes had landed."""
    store = Watched(open_blobs("memory://"))
    trainer = Trainer(store, codec="raw", object_bytes=300, skip_every=())  # type: ignore[arg-type]
    for _ in range(4):
        assert len(trainer.publish().parts) > 1
    assert store.missing == []


def test_a_version_costs_no_more_requests_late_than_early() -> None:
    """slime #2268: a sync took 143 s at first and 1596 s later."""
    store = Watched(open_blobs("memory://"))
    trainer, subscriber = Trainer(store, skip_every=()), Subscriber(store, "run")  # type: ignore[arg-type]
    costs = []
    for _ in range(64):
        before = sum(store.asked.values())
        trainer.publish()
        prepared = subscriber.prepare()
        assert prepared is not None
        subscriber.commit(prepared)
        trainer.publisher.close()
        costs.append(sum(store.asked.values()) - before)
    assert sum(costs[48:]) <= sum(costs[16:32]), "of 16 versions each, with the look for whether an anchor is due"
