"""Any episode is computed again bit for bit from its versions and its seed, and what is not the same is named."""

import asyncio
import random
from functools import cache

import msgspec
import numpy as np
import pytest
import torch

from tests.model.sizes import NANO
from twinmill.engine.embedded import EngineConfig
from twinmill.engine.embedded.replay import Replayer, ReplayError
from twinmill.model.hf import state_bits
from twinmill.records.engines import KvPolicy, Sampling
from twinmill.records.episodes import Episode, OpenedBy, Segment, StopReason, Turn, Usage, VersionRun

from . import rigs
from .rigs import ask, model, prompt, routes, run, serving

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("backend")
TURNS = 2
SAMPLING = Sampling(temperature=0.9, top_p=0.95)


async def attempt(engine, i: int, rng: random.Random) -> tuple[Episode, np.ndarray]:
    """Some turns in a group of three, as the harness would record them."""
    ids, extra = prompt(70, i // 3, NANO.vocab), prompt(70, i // 3, NANO.vocab)
    turns, experts = [], []
    for index in range(TURNS):
        await asyncio.sleep(rng.random() * 0.02)
        out = await engine.generate(
            ask(ids, f"s{i}", group_id=f"g{i // 3}", seed=i, temperature=0.9, top_p=0.95, max_tokens=12,
                experts_from=sum(map(len, experts)))
        )  # fmt: skip
        experts.append(routes(out))
        turns.append(
            Turn(index=index, input_ids=extra, sampled_ids=out.sampled_ids, logprobs=out.logprobs, finish=out.finish,
                 version_runs=out.version_runs, kv_runs=out.kv_runs)
        )  # fmt: skip
        extra = prompt(rng.randrange(1, 20), 100 * i + index, NANO.vocab)
        ids = ids + out.sampled_ids + extra
    return _episode(i, turns), np.concatenate(experts)


def _episode(i: int, turns: list[Turn]) -> Episode:
    segment = Segment(index=0, opened_by=OpenedBy.TASK, turns=tuple(turns))
    return Episode(
        id=f"{i}", task_id="t", group_id="g", attempt=i, segments=(segment,), stop=StopReason.TURNS, versions=(0, 0),
        usage=Usage(), cluster="here", seed=i,
    )  # fmt: skip


async def play(weights, policy: KvPolicy, count: int = 6, **settings) -> list[tuple[Episode, np.ndarray]]:
    """Attempts in a crowded engine that goes from version to version meanwhile."""
    async with serving(weights[0], context_tokens=192, slots=4, batch=3, prefill_tokens=40, **settings) as engine:
        playing = [asyncio.create_task(attempt(engine, i, random.Random(i))) for i in range(count)]
        for version, decoder in enumerate(weights[1:], 1):
            await asyncio.sleep(0.1)
            await engine.stage(version, state_bits(decoder))
            await engine.flip(policy)
        return list(await asyncio.gather(*playing))


def replayer(weights) -> Replayer:
    config = EngineConfig(context_tokens=192, backend=rigs.BACKEND)
    return Replayer(weights[0].config, config, lambda version: state_bits(weights[version]))


@pytest.mark.parametrize("policy", list(KvPolicy))
def test_episodes_come_out_again_over_versions_and_evicted_contexts(policy):
    weights = [model(seed, NANO) for seed in range(3)]
    played = run(play(weights, policy, step_s=0.005))
    again, mixed = replayer(weights), 0
    for episode, experts in played:
        turns = list(again.episode(episode, SAMPLING, lambda segment, experts=experts: experts))
        assert [turn.difference for turn in turns] == [None] * TURNS
        assert sum(turn.routed for turn in turns) == len(experts)
        mixed += any(len(turn.versions) > 1 for turn in turns)
    assert mixed, "this test wants episodes of several versions"


@cache
def _one(backend: str):
    weights = [model(0, NANO), model(1, NANO)]
    episode, experts = run(play(weights[:1], KvPolicy.KEEP, count=1))[0]
    return weights, episode, experts


@pytest.fixture
def one(backend):
    """Two models, and an episode of the first; not to be changed."""
    return _one(rigs.BACKEND)


def changed(episode: Episode, index: int, **fields) -> Episode:
    turns = list(episode.segments[0].turns)
    turns[index] = msgspec.structs.replace(turns[index], **fields)
    return _episode(int(episode.id), turns)


def found(weights, episode: Episode, experts=None):
    turns = replayer(weights).episode(episode, SAMPLING, lambda segment: experts)
    return [turn.difference for turn in turns]


def test_another_log_probability_is_found_at_its_place(one):
    weights, episode, _ = one
    logprobs = list(episode.segments[0].turns[1].logprobs)
    logprobs[4] = float(np.nextafter(np.float32(logprobs[4]), np.float32(-9)))
    first, second = found(weights, changed(episode, 1, logprobs=logprobs))
    assert first is None
    assert (second.what, second.token, second.version) == ("log-probability", 4, 0)
    assert second.recorded == repr(logprobs[4]) != second.replayed


def test_another_token_is_found_at_its_place(one):
    weights, episode, _ = one
    ids = list(episode.segments[0].turns[0].sampled_ids)
    ids[7] = (ids[7] + 1) % NANO.vocab
    first = found(weights, changed(episode, 0, sampled_ids=ids))[0]
    assert (first.what, first.token, first.position, first.recorded) == ("token", 7, 77, str(ids[7]))


def test_another_expert_is_found_at_its_place(one):
    weights, episode, experts = one
    other = experts.copy()
    other[3, 1, 0] = next(e for e in range(NANO.experts) if e not in experts[3, 1])
    first, *rest = found(weights, episode, other)
    assert (first.what, first.token, first.position) == ("experts", -1, 3) and rest == [None]
    assert found(weights, episode, experts[:, :, ::-1]) == [None, None], "experts are compared as sets"


def test_other_weights_are_found(one):
    weights, episode, _ = one
    assert found(weights[::-1], episode)[0] is not None


def test_another_seed_is_found(one):
    weights, episode, _ = one
    assert found(weights, msgspec.structs.replace(episode, seed=99))[0].what == "token"


def test_an_episode_that_does_not_say_enough_is_refused_by_name(one):
    weights, episode, _ = one
    with pytest.raises(ReplayError, match="episode 0, segment 0, turn 1 does not say which versions"):
        found(weights, changed(episode, 1, kv_runs=()))
    with pytest.raises(ReplayError, match="turn 0: kv_runs covers 3 positions"):
        found(weights, changed(episode, 0, kv_runs=(VersionRun(version=0, count=3),)))
