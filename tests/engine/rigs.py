"""Embedded engines over small random models, and the trainer's view of what they did."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import torch

from tests.model.sizes import TINY, sharp
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.engine.embedded.compute import Done, Work
from twinmill.engine.embedded.weights import WeightBuffers
from twinmill.model.config import ModelConfig, Parity
from twinmill.model.hf import named_views, state_bits
from twinmill.model.transformer import Decoder
from twinmill.records.engines import GenerateRequest, Generation, KvPolicy, Sampling

BACKEND = "torch"
"""of the engines here; set by the fixture `backend`"""


@asynccontextmanager
async def serving(decoder: Decoder, *, step_s: float = 0.0, **settings) -> AsyncIterator[EmbeddedEngine]:
    """An engine that serves `decoder` as version 0. step_s: what a step takes at least, so that a test which wants to act
    in the middle of a request finds it there."""
    config = EngineConfig(
        **{"context_tokens": 128, "slots": 12, "batch": 8, "request_s": 60.0, "backend": BACKEND, **settings}
    )
    engine = EmbeddedEngine(decoder.config, config, engine_id="test", cluster="here")
    compute = engine._scheduler._compute
    quick = compute.step

    def step(work: Work) -> Done:
        time.sleep(step_s)
        return quick(work)

    compute.step = step
    try:
        await engine.stage(0, state_bits(decoder))
        await engine.flip(KvPolicy.KEEP)
        yield engine
    finally:
        engine.close()


def model(seed: int = 0, config: ModelConfig = TINY) -> Decoder:
    """A trainer's decoder that computes in the bits of the engine."""
    return sharp(config, seed, Parity.CORE if BACKEND == "core" else Parity.STRICT)


def held_bits(weights: WeightBuffers) -> dict[str, np.ndarray]:
    """Stored bits, read from the memory that is computed with."""
    if BACKEND == "torch":
        return state_bits(weights.serving.decoder)
    packed = weights.serving.packed
    return {name: packed.bits(name) for name in packed.places}


def damage(weights: WeightBuffers, name: str, bit: int) -> None:
    """Turn one bit, counted as in fp32, of the first number of a tensor of the idle set."""
    if BACKEND == "torch":
        named_views(weights._idle.decoder)[name].view(torch.int32).flatten()[0] ^= 1 << bit
        return
    packed = weights._idle.packed
    place = packed.places[name]
    part = packed.part(place.part)
    if isinstance(part, np.ndarray):
        part.view(np.uint32)[place.first] ^= 1 << bit
    else:
        bits = packed.bits(name)
        bits.flat[0] ^= 1 << (bit - 16)
        part.pack(bits, place.first, place.index)


def prompt(n: int, seed: int = 0, vocab: int = TINY.vocab) -> list[int]:
    return [random.Random(seed * 1000 + n).randrange(vocab) for _ in range(n)] if n else []


def ask(ids: list[int], session: str = "s", **rest) -> GenerateRequest:
    """Keywords of Sampling and of GenerateRequest alike."""
    sampling = {k: rest.pop(k) for k in list(rest) if k in Sampling.__struct_fields__}
    return GenerateRequest(
        session_id=session,
        token_ids=ids,
        sampling=Sampling(**{"max_tokens": 10, "seed": 3, **sampling}),
        **{"want_experts": True, **rest},
    )


def routes(generation: Generation) -> np.ndarray:
    return np.frombuffer(generation.experts, "<u2").reshape(generation.experts_shape)


@torch.no_grad()
def trainer_logprobs(
    decoder: Decoder, ids: list[int], temperature: float, experts: np.ndarray | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The trainer's unpacked forward over `ids`: log-probability of each id but the first, and routes."""
    tokens = torch.tensor(ids)
    forced = None
    if experts is not None:
        forced = torch.full((len(ids), *experts.shape[1:]), -1, dtype=torch.int32)
        forced[: len(experts)] = torch.from_numpy(experts.astype(np.int32))
    output = decoder(tokens, torch.arange(len(ids)), [len(ids)], forced)
    return decoder.logprobs(output.hidden[:-1], tokens[1:], temperature), output.routes


def run(coroutine):
    """asyncio.run with a deadline, so that a test that waits for ever fails instead."""

    async def bounded():
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(bounded())
