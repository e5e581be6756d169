"""bench faults at its smallest: every kind of fault, both codecs, both readers; and that a reader that errs would be found."""

import json
import random
from itertools import islice

import pytest

import faults
from faults import CODECS, KINDS, Fault, World, does_nothing, injections, read
from twinmill.publish.wdx.native import REFERENCE


@pytest.fixture(scope="module")
def world() -> World:
    return World("wdx")


def test_nothing_is_served_that_is_wrong(capsys):
    with pytest.raises(SystemExit):
        faults.main(["--faults", "480", "--reference", "0.1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    measured = found["measured"]
    assert (measured["undetected"], measured["base_touched"]) == (0, 0)
    assert measured["injected"] == 480 and measured["injected_least"] == 480 // len(KINDS)
    assert measured["tiles"] >= 64 and REFERENCE in measured["readers"]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_fault_does_something_and_is_the_same_for_the_same_seed(name, codec):
    world = World(codec)
    one, two = (list(islice(injections(world, name, "seed"), 6)) for _ in range(2))
    assert not any(does_nothing(world, fault) for fault in one)
    assert [fault.wrong for fault in one] == [fault.wrong for fault in two]


def test_sealed_damage_reaches_the_decoder(world):
    """Outer digests are right: what is found is found by tiles."""
    tiles = world.coded(faults.WANTED, 0)
    tiles[0] = tiles[0]._replace(payload=tiles[0].payload[:-1])
    outcome = read(world, world.with_tiles(0, tiles))
    assert outcome.noticed and outcome.right and outcome.how != "Corrupt"


def test_sound_bytes_are_not_called_damaged(world):
    assert read(world, Fault({})).how == "exact"
    assert not read(world, Fault({})).noticed
    assert does_nothing(world, Fault({}))


def test_a_reader_that_hands_out_anything_would_be_found(world, monkeypatch):
    monkeypatch.setattr("twinmill.publish.draft.advance", lambda before, patch: before)
    monkeypatch.setattr(
        "twinmill.publish.container.Opened.digests", lambda self, tile: (world.held[1].digests[tile],) * 2
    )
    monkeypatch.setattr(
        "twinmill.publish.tiles.Grid.model_digest", lambda self, digests: world.versions[2].model_digest
    )
    monkeypatch.setattr("faults.digests", lambda grid, tensors: list(world.held[1].digests))
    rng, wrong = random.Random(0), 0
    for _ in range(60):
        wrong += not read(world, KINDS["bit flip"](world, rng)).right
    assert wrong
