"""From the weights log into an engine's memory: nothing is served that does not match its manifest."""

import asyncio

import numpy as np
import pytest
import torch

from twinmill.engine.base import EngineError
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.engine.sync import SyncConfig, follow, install, scrub_share
from twinmill.model.hf import dtypes, state_bits
from twinmill.publish.publisher import Publisher
from twinmill.publish.subscriber import Subscriber
from twinmill.records.engines import KvPolicy
from twinmill.store.blobs import open_blobs
from twinmill.store.errors import StoreUnavailable

from . import rigs
from .rigs import ask, damage, held_bits, model, prompt, run

torch.set_num_threads(1)
QUICK = SyncConfig(poll_s=0.01)


class Rig:
    """A trainer's publisher and an engine process's parts over one store in memory."""

    def __init__(self) -> None:
        self.blobs = open_blobs("memory://")
        self.publisher = Publisher(self.blobs, "run")
        self.subscriber = Subscriber(self.blobs, "run")
        self.bits = state_bits(model(0))
        self.kinds = dtypes(model(0))
        self.engine = EmbeddedEngine(
            model(0).config, EngineConfig(context_tokens=128, backend=rigs.BACKEND), engine_id="e", cluster="c"
        )

    def publish(self, step: int) -> None:
        """Every version differs from the one before in one expert."""
        if step:
            self.bits = {name: array.copy() for name, array in self.bits.items()}
            self.bits["model.layers.0.mlp.experts.1.up_proj.weight"][:, 0] += 1
        self.publisher.publish(self.bits, self.kinds, step=step, slots=(step,))

    async def serves(self, version: int) -> None:
        while (await self.engine.state()).serving < version:
            await asyncio.sleep(0.005)


@pytest.fixture
def rig(backend):
    rig = Rig()
    yield rig
    rig.engine.close()


def test_an_engine_follows_the_log_while_it_works(rig):
    async def main():
        installed = []
        task = asyncio.create_task(follow(rig.engine, rig.subscriber, QUICK, on_installed=installed.append))
        await asyncio.sleep(0.05)
        assert (await rig.engine.state()).serving == -1
        rig.publish(0)
        await rig.serves(0)
        long = asyncio.create_task(rig.engine.generate(ask(prompt(20), max_tokens=100)))
        for step in (1, 2):
            rig.publish(step)
            await rig.serves(step)
        out = await long
        task.cancel()
        state = await rig.engine.state()
        return installed, out, state

    installed, out, state = run(main())
    assert [i.version for i in installed] == [0, 1, 2]
    assert [i.changed for i in installed] == [len(rig.bits), 1, 1]
    assert [i.tries for i in installed] == [1, 1, 1]
    assert (state.serving, state.target, state.repairs) == (2, 2, 0)
    assert [r.version for r in out.version_runs] == sorted(r.version for r in out.version_runs)
    held = held_bits(rig.engine._weights)
    assert all(np.array_equal(held[name], rig.bits[name]) for name in held)
    assert rig.subscriber.number == 2


def test_memory_that_differs_is_staged_anew_before_it_serves(rig, monkeypatch):
    spoiled = []
    stage = rig.engine._weights.stage

    def spoil(version, tensors):
        stage(version, tensors)
        if not spoiled:
            damage(rig.engine._weights, "model.layers.0.self_attn.q_proj.weight", 17)
            spoiled.append(version)

    monkeypatch.setattr(rig.engine._weights, "stage", spoil)

    async def main():
        rig.publish(0)
        prepared = rig.subscriber.prepare()
        return await install(rig.engine, rig.subscriber, prepared, QUICK), await rig.engine.state()

    installed, state = run(main())
    assert (installed.tries, state.serving, state.repairs) == (2, 0, 1)
    held = held_bits(rig.engine._weights)
    assert all(np.array_equal(held[name], rig.bits[name]) for name in held)


def test_memory_that_always_differs_is_never_served(rig, monkeypatch):
    stage = rig.engine._weights.stage

    async def main():
        rig.publish(0)
        await install(rig.engine, rig.subscriber, rig.subscriber.prepare(), QUICK)

        def spoil(version, tensors):
            stage(version, tensors)
            damage(rig.engine._weights, "model.norm.weight", 3)

        monkeypatch.setattr(rig.engine._weights, "stage", spoil)
        rig.publish(1)
        with pytest.raises(EngineError, match=r"1 tiles, tile \d+ \(.*norm\.weight.*\) first, differ .* 3 tries"):
            await install(rig.engine, rig.subscriber, rig.subscriber.prepare(), QUICK)
        return await rig.engine.state(), await rig.engine.generate(ask(prompt(5)))

    state, out = run(main())
    assert (state.serving, state.target, state.repairs) == (0, 1, 3)
    assert out.version_runs[0].version == 0
    assert rig.subscriber.number == 0


def test_every_tile_has_been_checked_within_so_many_versions(rig, monkeypatch):
    """Whether there is time between two versions or not."""
    checked = []
    monkeypatch.setattr(rig.subscriber, "scrub", lambda count: checked.append(count) or 0)

    async def main():
        task = asyncio.create_task(follow(rig.engine, rig.subscriber, SyncConfig(poll_s=0.01, scrub_versions=2)))
        for version in range(4):
            rig.publish(version)
            await rig.serves(version)
        while sum(checked) < 2 * rig.subscriber.tiles:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()

    run(asyncio.wait_for(main(), 60))
    tiles = rig.subscriber.tiles
    assert scrub_share(tiles, 2) == -(-tiles // 2) and scrub_share(tiles, 0) == 0
    assert sum(checked) == 4 * scrub_share(tiles, 2), "and nothing is checked without end"


def test_a_store_that_is_away_is_waited_for_and_then_named(rig, monkeypatch):
    def away(*_, **__):
        raise StoreUnavailable("the store is away")

    async def main():
        rig.publish(0)
        outages = []
        prepare = rig.subscriber.prepare
        monkeypatch.setattr(rig.subscriber, "prepare", away)
        task = asyncio.create_task(follow(rig.engine, rig.subscriber, QUICK, on_outage=outages.append))
        await asyncio.sleep(0.1)
        assert outages
        monkeypatch.setattr(rig.subscriber, "prepare", prepare)
        await rig.serves(0)
        monkeypatch.setattr(rig.subscriber, "prepare", away)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(StoreUnavailable):
            await follow(rig.engine, rig.subscriber, SyncConfig(poll_s=0.01, outage_s=0.1, kv=KvPolicy.KEEP))

    run(main())
