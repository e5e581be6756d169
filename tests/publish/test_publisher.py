from collections.abc import Callable

import numpy as np
import pytest

from twinmill.publish import PublishConfig
from twinmill.publish.chain import rebuild, versions
from twinmill.publish.container import read_part
from twinmill.publish.errors import Refused
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.publisher import Publisher
from twinmill.publish.tiles import tiled_digest
from twinmill.records.weights import GridSpec, VersionKind
from twinmill.store import blobs as blobs_module
from twinmill.store.audit import audit
from twinmill.store.blobs import Blobs, open_blobs

from .toys import DTYPES, State, Trainer, first_state, moved, same


class Killed(BaseException):
    """The end of the process."""


def test_every_version_can_be_rebuilt_bit_for_bit(blobs: Blobs) -> None:
    trainer = Trainer(blobs, full_every=3)
    made = [trainer.publish() for _ in range(8)]
    assert [version.kind for version in made] == [
        VersionKind.FULL if number % 3 == 0 else VersionKind.DELTA for number in range(8)
    ]
    log = WeightsLog(blobs)
    for number, state in enumerate(trainer.states):
        weights = rebuild(log, number)
        assert same(weights.tensors, state)
        assert weights.version.model_digest == tiled_digest(state, DTYPES, GridSpec())
    found = audit(blobs, objects=True)
    assert found.problems == ()
    assert found.versions == 8


def test_what_did_not_change_costs_nothing(local: Blobs) -> None:
    trainer = Trainer(local)
    trainer.publish()
    version = trainer.publish()
    grid = WeightsLog(local).grid(version)
    [part] = version.parts
    opened = read_part(local, part)
    for index, tile in enumerate(grid.tiles):
        before, after = opened.digests(index)
        still = {piece.name for piece in tile.pieces} == {"model.layers.0.mlp.experts.1.up_proj.weight"}
        assert (before == after) == (opened.changed(index) == 0) == still
        assert len(opened.payload(index)) == 1 or not still
    assert version.changed == sum(opened.changed(index) for index in range(len(grid.tiles)))


def test_a_version_without_any_change_is_a_version(local: Blobs) -> None:
    publisher = Publisher(local, "run")
    publisher.publish(first_state(), DTYPES, step=0)
    version = publisher.publish(first_state(), DTYPES, step=1)
    assert (version.number, version.kind, version.changed) == (1, VersionKind.DELTA, 0)
    assert version.payload_bytes == version.parts[0].head_bytes + len(WeightsLog(local).grid(version).tiles)
    assert same(rebuild(WeightsLog(local), 1).tensors, first_state())


@pytest.mark.parametrize("codec", ["wdx", "gaps", "raw"])
def test_what_a_codec_would_inflate_goes_as_it_is(local: Blobs, codec: str) -> None:
    publisher = Publisher(local, "run", PublishConfig(codec=codec))
    publisher.publish(first_state(0), DTYPES, step=0)
    version = publisher.publish(first_state(1), DTYPES, step=1)
    tables = sum(len(one) for one in read_part(local, version.parts[0]).tables)
    assert version.payload_bytes - version.parts[0].head_bytes <= version.full_bytes + 64
    assert tables < version.full_bytes
    assert same(rebuild(WeightsLog(local), 1).tensors, first_state(1))


def test_the_caller_may_go_on_training_at_once(local: Blobs) -> None:
    publisher = Publisher(local, "run")
    state = first_state()
    publisher.publish(state, DTYPES, step=0)
    for array in state.values():
        array[...] = 0
    state = moved(first_state(), 1)
    publisher.publish(state, DTYPES, step=1)
    assert same(rebuild(WeightsLog(local), 0).tensors, first_state())
    assert same(rebuild(WeightsLog(local), 1).tensors, state)


def test_a_restarted_publisher_goes_on_with_a_delta(blobs: Blobs) -> None:
    Trainer(blobs).publish()
    state = first_state()
    for number in range(1, 4):
        state = moved(state, number)
        version = Publisher(blobs, "run", PublishConfig(full_every=0)).publish(state, DTYPES, step=number)
        assert (version.number, version.kind) == (number, VersionKind.DELTA)
        assert version.config is not None, "known from the version before"
    assert same(rebuild(WeightsLog(blobs), 3).tensors, state)


def test_a_version_is_sent_in_several_objects(blobs: Blobs) -> None:
    """They cover all tiles in order, are begun when full, and are the same when they are made again."""
    trainer = Trainer(blobs, object_bytes=1000)
    made = [trainer.publish() for _ in range(3)]
    assert len(made[0].parts) > 2
    assert all(part.object.bytes - part.head_bytes >= 1000 for part in made[0].parts[:-1])
    assert same(rebuild(WeightsLog(blobs), 2).tensors, trainer.states[2])
    assert audit(blobs, objects=True).problems == ()
    again = Trainer(open_blobs("memory://"), object_bytes=1000)
    assert [again.publish() for _ in range(3)] == made


def _with(name: str, array: np.ndarray) -> State:
    return {**first_state(), name: array}


REFUSALS: dict[str, Callable[[Publisher], object]] = {
    "tensor 'model.norm.weight' was .* in version 0": lambda p: p.publish(
        _with("model.norm.weight", np.zeros(17, np.uint32)), DTYPES, step=1
    ),
    "tensor 'scale' was .*F8_E4M3.* is .*I8.* now": lambda p: p.publish(
        first_state(), {**DTYPES, "scale": "I8"}, step=1
    ),
    "tensor 'new' was absent": lambda p: p.publish(
        _with("new", np.zeros(1, np.uint16)), {**DTYPES, "new": "BF16"}, step=1
    ),
    "unknown dtype 'BF17'": lambda p: p.publish(first_state(), {**DTYPES, "scale": "BF17"}, step=1),
    "is BF16, but its array holds float32": lambda p: p.publish(
        _with("model.embed_tokens.weight", np.zeros((64, 16), np.float32)), DTYPES, step=1
    ),
    "differ in step": lambda p: p.publish(first_state(), {k: v for k, v in DTYPES.items() if k != "step"}, step=1),
    "without tensors": lambda p: p.publish({}, {}, step=1),
    "step 0 cannot follow version 0": lambda p: p.publish(moved(first_state(), 5), DTYPES, step=0),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_what_does_not_continue_the_log_is_refused(local: Blobs, why: str) -> None:
    publisher = Publisher(local, "run")
    publisher.publish(first_state(), DTYPES, step=0)
    with pytest.raises(Refused, match=why):
        REFUSALS[why](publisher)
    assert len(list(versions(WeightsLog(local)))) == 1
    publisher.publish(moved(first_state(), 1), DTYPES, step=1)


def test_what_a_killed_publication_had_sent_is_not_sent_twice(
    local: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Its objects are there, its manifest is not."""
    trainer = Trainer(local, object_bytes=1, skip_every=(), anchor_when=0.0)
    trainer.publish()
    version = trainer.publish()
    local.delete("weights/manifests/0000000001")
    sent: list[str] = []
    monkeypatch.setattr(blobs_module, "crash_points", sent.append)
    again = Publisher(local, "run", PublishConfig(object_bytes=1, skip_every=(), anchor_when=0.0))
    assert again.publish(trainer.states[1], DTYPES, step=1, created_at=0.0) == version
    assert len(version.parts) > 3 and "weights.manifest:after" in sent
    assert "weights.object:before" not in sent


def test_another_run_is_refused(local: Blobs) -> None:
    Trainer(local).publish()
    with pytest.raises(Refused, match="weights of run 'run', not of 'other'"):
        Publisher(local, "other")


def test_a_second_trainer_is_refused(blobs: Blobs) -> None:
    first, second = Publisher(blobs, "run"), Publisher(blobs, "run")
    first.publish(first_state(), DTYPES, step=0)
    with pytest.raises(Refused, match="second trainer"):
        second.publish(moved(first_state(), 1), DTYPES, step=0)
    assert same(rebuild(WeightsLog(blobs), 0).tensors, first_state())


def test_settings_that_cannot_be_are_refused(local: Blobs) -> None:
    wrong = {"codec": "zip", "full_every": -1, "object_bytes": -1, "skip_every": (16, 1), "anchor_when": -0.1, "tp": 0}
    for name, value in wrong.items():
        with pytest.raises(Refused, match=rf"publish\.{name} is"):
            Publisher(local, "run", PublishConfig(**{name: value}))


def test_repeating_the_last_publication_returns_it(local: Blobs) -> None:
    trainer = Trainer(local)
    version = trainer.publish()
    again = Publisher(local, "run").publish(first_state(), DTYPES, step=0)
    assert again == version


POINTS = [f"{name}:{when}" for name in ("weights.object", "weights.manifest") for when in ("before", "after")]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_kill_at_any_write_of_a_publication_is_harmless(
    local: Blobs, monkeypatch: pytest.MonkeyPatch, point: str, number: int
) -> None:
    trainer = Trainer(local)
    for _ in range(number):
        trainer.publish(slots=(len(trainer.states),))

    def die(here: str) -> None:
        if here == point:
            raise Killed

    monkeypatch.setattr(blobs_module, "crash_points", die)
    with pytest.raises(Killed):
        trainer.publish(slots=(number,))
    monkeypatch.undo()
    assert WeightsLog(local).newest() == number - (point != "weights.manifest:after")
    assert audit(local, objects=True).problems[number + 1 :] == ()

    restarted = Publisher(local, "run")
    version = restarted.publish(trainer.states[-1], DTYPES, step=number, slots=(number,), created_at=0.0)
    assert version.number == number
    assert same(rebuild(WeightsLog(local), number).tensors, trainer.states[-1])


def test_a_damaged_log_is_mended_by_a_full_version(local: Blobs) -> None:
    trainer = Trainer(local)
    for _ in range(3):
        version = trainer.publish()
    local.put(version.parts[0].object.key, b"lost")
    restarted = Publisher(local, "run")
    state = moved(trainer.states[-1], 9)
    mended = restarted.publish(state, DTYPES, step=3)
    assert (mended.number, mended.kind) == (3, VersionKind.FULL)
    assert same(rebuild(WeightsLog(local), 3).tensors, state)
