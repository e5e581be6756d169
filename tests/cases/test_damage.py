"""Damage in the bucket while a run goes on: seen before it is served, mended, and shown."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from tests.publish.toys import DTYPES, Trainer
from twinmill.publish.chain import rebuild
from twinmill.publish.errors import Refused
from twinmill.publish.manifest import WeightsLog
from twinmill.records.weights import Shortcut, WeightVersion
from twinmill.store.blobs import Blobs, digest_of, open_blobs
from twinmill.store.frame import seal_record
from twinmill.store.log import indexed

from .real import RealRun, twinmill

Damage = Callable[[Blobs, WeightVersion], None]


def corrupt(blobs: Blobs, version: WeightVersion) -> None:
    data = bytearray(blobs.get(version.parts[0].object.key))
    data[len(data) // 2] ^= 4
    blobs.put(version.parts[0].object.key, bytes(data))


def truncated(blobs: Blobs, version: WeightVersion) -> None:
    blobs.put(version.parts[0].object.key, blobs.get(version.parts[0].object.key)[:-1])


def missing(blobs: Blobs, version: WeightVersion) -> None:
    blobs.delete(version.parts[0].object.key)


def wrong_base(blobs: Blobs, version: WeightVersion) -> None:
    """A delta that claims to stand on other weights than those of its parent."""
    part = version.parts[0]
    data = bytearray(blobs.get(part.object.key))
    for tile in range(part.tiles):  # the digest before, in each entry of the index
        data[part.head_bytes - 60 * (part.tiles - tile) + 8] ^= 1
    ref = blobs.put_ref("weights/objects", bytes(data))
    forged = structs.replace(part, object=ref, head_digest=digest_of(bytes(data[: part.head_bytes])))
    key = indexed("weights/manifests", version.number)
    blobs.put(key, seal_record(key, structs.replace(version, parts=(forged, *version.parts[1:]))))


OBJECTS: tuple[Damage, ...] = (corrupt, truncated, missing)


def strike(run: RealRun, damage: Damage, groups: int = 2) -> int:
    """Damage a version after it was published and before the engine can have looked at it. Returns its number."""
    while (struck := _try_to_strike(run, damage, groups)) is None:
        pass
    return struck


def _try_to_strike(run: RealRun, damage: Damage, groups: int) -> int | None:
    """None = the engine or the trainer was quicker."""
    at = run.newest
    run.wait(lambda: run.newest > at or run.closed((at + 1) * groups), "the slots of the next step")
    if run.newest > at:
        return None
    stopped = run.signal("engine/east", signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 8  # well within the deadlines of those who wait for the engine
        while run.newest == at and time.monotonic() < deadline:
            time.sleep(0.01)
        version = run.weights.latest()
        if (
            version is None
            or version.number == at
            or (run.folder.mirror("east") / indexed("weights/manifests", version.number)).exists()
        ):
            return None
        damage(run.blobs, version)
        return version.number
    finally:
        os.kill(stopped, signal.SIGCONT)


@pytest.mark.timeout(900)
def test_damaged_versions_are_never_served_and_the_run_goes_on(run: RealRun) -> None:
    run.start(rl__steps=11, rl__window__window=1, publish__full_every=0)
    struck = {}
    for damage in (*OBJECTS, wrong_base):
        number = strike(run, damage)
        struck[number] = damage
        run.wait(lambda n=number: run.says(rf"unreachable: .*version {n}: "), f"word of version {number}")
        run.wait(lambda n=number: any(swap["version"] > n for swap in run.metrics("swap")), "a version that is sound")
    run.done()

    kinds = {number: run.weights.get(number).kind.value for number in range(12)}
    assert all("full" in [kinds[n] for n in range(number, 12)] for number in struck), kinds
    [forged] = [number for number, damage in struck.items() if damage is wrong_base]
    assert forged not in [swap["version"] for swap in run.metrics("swap")]
    assert "was made on other bits than those of version" in " ".join(run.events())

    shown = twinmill("weights", "verify", run.folder.path)
    assert shown.returncode == 1
    assert f"version {forged}: " in shown.stdout
    for number in struck:
        put_back = run.says(rf"mended: version {number}: ")
        assert put_back or f"version {number}: " in shown.stdout, (number, shown.stdout)
    assert f"version {min(struck) - 1}: " not in shown.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("damage", OBJECTS)
def test_with_a_window_of_0_the_trainer_puts_the_version_back(run: RealRun, damage: Damage) -> None:
    """No next version can come before the engines have this one: it is mended, or the run would stand still."""
    run.start(rl__steps=4, rl__window__window=0, publish__full_every=0)
    run.wait(lambda: run.newest >= 1, "version 1")
    number = strike(run, damage)
    run.done()
    assert run.says(rf"unreachable: .*version {number}: ")
    assert run.says(rf"mended: version {number}: ")
    assert twinmill("weights", "verify", run.folder.path).returncode == 0
    run.whole(window=0, slots=8)


def _shortcuts(blobs: Blobs, number: int) -> list[Shortcut]:
    log = WeightsLog(blobs)
    log.look_for_shortcuts()
    return list(log.shortcuts_to(number))


@pytest.fixture
def local(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "store"))


@pytest.mark.parametrize("damage", OBJECTS)
@pytest.mark.parametrize("full", [False, True])
def test_the_newest_version_is_put_back_byte_for_byte(local: Blobs, damage: Damage, full: bool) -> None:
    trainer = Trainer(local)
    for _ in range(3):
        trainer.publish()
    version = trainer.publish(full=full)
    log = WeightsLog(local)
    data = local.get(version.parts[0].object.key)
    damage(local, version)
    assert not trainer.publisher.mend(trainer.states[-1], DTYPES), "nobody has asked"
    log.want_full(version.number, "east")
    with pytest.raises(Refused, match="other weights than its own"):
        trainer.publisher.mend(trainer.states[-2], DTYPES)
    assert trainer.publisher.mend(trainer.states[-1], DTYPES)
    assert local.get(version.parts[0].object.key) == data
    assert not trainer.publisher.mend(trainer.states[-1], DTYPES), "there is nothing left to mend"
    rebuild(log, version.number)


def test_damage_that_comes_after_the_way_was_found_whole_is_mended(local: Blobs) -> None:
    trainer = Trainer(local)
    version = [trainer.publish() for _ in range(3)][-1]
    WeightsLog(local).want_full(2, "east")
    assert not trainer.publisher.mend(trainer.states[2], DTYPES), "the way is whole"
    missing(local, version)
    assert trainer.publisher.mend(trainer.states[2], DTYPES)
    rebuild(WeightsLog(local), 2)


@pytest.mark.parametrize("newest_too", [False, True])
def test_what_stands_on_damage_is_reached_by_an_anchor(local: Blobs, newest_too: bool) -> None:
    """With a small window the next version, which would be full, cannot come before this one is reached."""
    trainer = Trainer(local)
    versions = [trainer.publish() for _ in range(3)]
    missing(local, versions[1])
    if newest_too:
        missing(local, versions[2])
    log = WeightsLog(local)
    assert not trainer.publisher.mend(trainer.states[2], DTYPES), "nobody has asked"
    log.want_full(2, "east")
    assert trainer.publisher.mend(trainer.states[2], DTYPES)
    assert [shortcut.parent for shortcut in _shortcuts(local, 2)] == [None]
    found = rebuild(WeightsLog(local), 2)
    assert all(np.array_equal(found.tensors[name], array) for name, array in trainer.states[2].items())
    assert not trainer.publisher.mend(trainer.states[2], DTYPES), "there is nothing left to mend"
    assert trainer.publish().parent is None, "the next version is full instead"
