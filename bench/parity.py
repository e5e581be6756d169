"""Strict parity on a trained model: decoding in any batch = one-chunk prefill = the trainer's gradient forward, and its cost."""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from _result import finish
from twinmill.batch.pack import Packing, by_sample, pack
from twinmill.data.render import Renderer, open_renderer
from twinmill.data.tasks.base import open_taskset
from twinmill.engine.base import ExpertTrace
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.env.harness.tools import SPECS
from twinmill.model.config import ModelConfig, Parity
from twinmill.model.core.forward import KV_BLOCK, Core, Rows, new_kv, scoring
from twinmill.model.core.weights import PackedWeights
from twinmill.model.hf import load_folder, state_bits
from twinmill.model.transformer import Decoder
from twinmill.records.engines import GenerateRequest, KvPolicy, Sampling
from twinmill.records.samples import Microbatch, Sample
from twinmill.train.loss.policy_gradient import PolicyGradient, policy_gradient
from twinmill.train.optimizer import AdamW
from twinmill.train.step import Compute, inputs_of, logprobs_at
from twinmill.train.trainer import Trainer

BATCHES = (1, 16, 64)
"""requests that the engine works on at once"""
CONTEXT = 1024
TURN_TOKENS, MOST_TURNS = 96, 4
MUST = {"equal_frac": "== 1", "flips": "== 0", "tokens": ">= 100000", "strict_step_slowdown": "<= 0.10"}


# What the engine does: sessions of several turns that come, wait and go at random


class Prompts:
    """Texts as the model was trained on them: the beginnings of tasks, and lines of their files as what tools would answer."""

    def __init__(self, renderer: Renderer, count: int) -> None:
        taskset = open_taskset("tinyrepo:1")
        self.renderer = renderer
        tasks = [taskset.load(name) for name in taskset.ids("heldout")[:count]]
        self.opened = [renderer.open(task.messages, [SPECS[name] for name in task.tools]) for task in tasks]
        self.lines = [line for task in tasks for text in task.machine.files.values() for line in text.splitlines()]

    def answer(self, sampled_ids: Sequence[int], rng: random.Random) -> list[int]:
        return self.renderer.observe(sampled_ids, ["\n".join(rng.choices(self.lines, k=rng.randrange(1, 9)))])


async def session(engine: EmbeddedEngine, prompts: Prompts, name: str, group: int, rng: random.Random) -> Sample:
    """One attempt at task `group`, as the engine answered: position i of the arrays speaks of token i."""
    ids = list(prompts.opened[group % len(prompts.opened)])
    mask, logprobs, trace = [False] * len(ids), [0.0] * len(ids), ExpertTrace()
    turns = rng.randrange(1, MOST_TURNS + 1)
    for turn in range(turns):
        await asyncio.sleep(rng.choice((0, 0, 0.01 * rng.random())))
        room = min(rng.randrange(1, TURN_TOKENS + 1), CONTEXT - len(ids))
        out = await engine.generate(
            GenerateRequest(
                session_id=name,
                group_id=f"{group}",
                token_ids=list(ids),
                sampling=Sampling(max_tokens=room, stop_ids=tuple(prompts.renderer.stop_ids), seed=rng.getrandbits(60)),
                want_experts=True,
                experts_from=trace.known,
                last=turn == turns - 1,
            )
        )
        ids += out.sampled_ids
        mask += [True] * len(out.sampled_ids)
        logprobs += out.logprobs
        trace.extend(out)
        answer = prompts.answer(out.sampled_ids, rng)
        if turn == turns - 1 or len(ids) + len(answer) + 1 > CONTEXT:
            break
        ids += answer
        mask += [False] * len(answer)
        logprobs += [0.0] * len(answer)
    return Sample(
        episode_id=name,
        segment=0,
        token_ids=np.array(ids, np.int64),
        mask=np.array(mask),
        logprobs=np.array(logprobs, np.float32),
        advantages=np.where(mask, rng.choice((-1.0, 1.0)), 0.0).astype(np.float32),
        versions=np.where(mask, 0, -1),
        experts=trace.rows(),
    )


async def played(decoder: Decoder, prompts: Prompts, batch: int, tokens: int) -> list[Sample]:
    """Sessions with at least `tokens` sampled tokens, decoded with up to `batch` requests at work at once."""
    rng = random.Random(batch)
    config = EngineConfig(
        backend="core", context_tokens=CONTEXT, slots=batch + 8, batch=batch, prefill_tokens=rng.randrange(100, 600)
    )
    engine = EmbeddedEngine(decoder.config, config, engine_id="bench", cluster="bench")
    await engine.stage(0, state_bits(decoder))
    await engine.flip(KvPolicy.KEEP)
    found: list[Sample] = []

    async def worker(index: int) -> None:
        count = 0
        while sum(int(sample.mask.sum()) for sample in found) < tokens:
            name = f"b{batch}-{index}-{count}"
            # neighbours attempt the same task, at the same time or not
            found.append(await session(engine, prompts, name, 10 * count + index // 4, random.Random(name)))
            count += 1

    # more sessions than places, so that some wait; few where few tokens are wanted
    workers = min(batch + batch // 4 + 1, tokens // 40 + 2)
    await asyncio.gather(*(worker(index) for index in range(workers)))
    engine.close()
    return found


# The other two: what was decoded, computed again without decoding


class Agreement(NamedTuple):
    """Of sampled tokens [N] of a sample: whether the bits of the log-probability are those of decoding. And routes that differ."""

    equal: np.ndarray
    flips: int
    max_abs: float


def agreement(got: np.ndarray, sample: Sample, routes: np.ndarray) -> Agreement:
    """got [N - 1] or [N], of the sampled tokens alone; routes [positions, layers, top_k]. Sets that differ are flips."""
    want = sample.logprobs[sample.mask]
    assert sample.experts is not None
    differ = (np.sort(routes, -1) != np.sort(sample.experts.astype(routes.dtype), -1)).any(-1)
    return Agreement(got.view(np.int32) == want.view(np.int32), int(differ.sum()), float(np.abs(got - want).max()))


def prefilled(core: Core, weights: PackedWeights, sample: Sample) -> Agreement:
    """The whole text in one chunk, in a cache that holds nothing else."""
    ids = sample.token_ids.astype(np.int32)[:-1]
    blocks = -(-len(ids) // KV_BLOCK)
    table = np.arange(blocks, dtype=np.int32)[None]
    rows = Rows(ids, np.zeros(len(ids), np.int32), np.arange(len(ids), dtype=np.int32), table)
    sampled = np.flatnonzero(sample.mask)
    asks = scoring(sampled - 1, sample.token_ids[sampled])
    result = core.forward(weights, rows, new_kv(weights.config, blocks), asks)
    return agreement(result.logprobs, sample, result.routes)


def trained(decoder: Decoder, samples: Sequence[Sample], packing: Packing) -> Iterator[tuple[str, Agreement]]:
    """The trainer's forward over packed rows, gradients and all, routing freely."""
    named = {f"{sample.episode_id}/{sample.segment}": sample for sample in samples}
    for microbatch in pack(samples, packing, 1.0).microbatches:
        output = decoder(**{**inputs_of(microbatch), "experts": None})
        rows = torch.from_numpy(np.flatnonzero(microbatch.mask))
        scored = logprobs_at(decoder, output.hidden, microbatch, rows, 1.0)
        assert scored.requires_grad, "this is to be the forward that training goes through"
        logprobs = np.zeros(len(microbatch.token_ids), np.float32)
        logprobs[microbatch.mask] = scored.detach().numpy()
        routes = by_sample(microbatch, output.routes.numpy())
        for name, values in by_sample(microbatch, logprobs).items():
            sample = named[name]
            yield name, agreement(values[sample.mask], sample, routes[name][:-1])


def compared(decoder: Decoder, samples: Sequence[Sample], packing: Packing) -> dict[str, object]:
    core, weights = Core(decoder.config), PackedWeights(decoder.config)
    weights.load(state_bits(decoder))
    by_name = dict(trained(decoder, samples, packing))
    equal = {"prefill": 0, "trainer": 0, "both": 0}
    flips, largest = 0, 0.0
    for sample in samples:
        one, two = prefilled(core, weights, sample), by_name[f"{sample.episode_id}/{sample.segment}"]
        equal["prefill"] += int(one.equal.sum())
        equal["trainer"] += int(two.equal.sum())
        equal["both"] += int((one.equal & two.equal).sum())
        flips += one.flips + two.flips
        largest = max(largest, one.max_abs, two.max_abs)
    tokens = sum(int(sample.mask.sum()) for sample in samples)
    return {
        "tokens": tokens,
        "equal_frac": equal["both"] / tokens,
        "equal_prefill_frac": equal["prefill"] / tokens,
        "equal_trainer_frac": equal["trainer"] / tokens,
        "flips": flips,
        "token_layers": 2
        * sum(len(s.experts) for s in samples if s.experts is not None)
        * len(decoder.config.moe_layers),
        "max_abs_dlogp": largest,
    }


# What strict costs a step


def step_slowdown(folder: Path, samples: Sequence[Sample], packing: Packing, runs: int) -> dict[str, object]:
    """CPU seconds of one thread for a whole step (forward, backward, update), pair by pair on the same microbatches."""
    microbatches = pack(samples, packing, float(len(samples))).microbatches
    core, off = (stepping(folder, parity, microbatches) for parity in (Parity.CORE, Parity.OFF))
    pairs = [(core(), off()) for _ in range(runs + 1)][1:]
    return {
        "strict_step_slowdown": statistics.median(a / b for a, b in pairs) - 1,
        "strict_step_cpu_s": statistics.median(a for a, _ in pairs),
        "off_step_cpu_s": statistics.median(b for _, b in pairs),
        "step_tokens": sum(len(m.token_ids) for m in microbatches),
    }


def stepping(folder: Path, parity: Parity, microbatches: Sequence[Microbatch]):  # type: ignore[no-untyped-def]
    decoder, _ = load_folder(folder, parity)
    trainer = Trainer(decoder, partial(policy_gradient, config=PolicyGradient()), AdamW(lr=1e-6), Compute())

    def step() -> float:
        started = time.process_time()
        trainer.run(microbatches, step=1, version=0, source="bench")
        return time.process_time() - started

    return step


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1] / "models" / "nano")
    parser.add_argument(
        "--tokens", type=int, default=102_000, help="sampled tokens that are compared; the claim needs 100000"
    )
    parser.add_argument("--runs", type=int, default=5, help="pairs of steps whose median is the slowdown")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    decoder, config = load_folder(options.model, Parity.CORE)
    prompts, packing = Prompts(open_renderer(options.model), min(200, options.tokens // 100 + 8)), Packing()
    samples: list[Sample] = []
    decode_s = {}
    for batch in BATCHES:
        started = time.process_time()
        more = asyncio.run(played(decoder, prompts, batch, options.tokens // len(BATCHES) + 1))
        decode_s[f"decode_cpu_s_b{batch}"] = time.process_time() - started
        print(f"batch {batch}: {sum(int(s.mask.sum()) for s in more)} tokens in {len(more)} sessions", flush=True)
        samples += more
    measured: dict[str, object] = {"model": options.model.name, **shape_of(config), **decode_s}
    measured |= compared(decoder, samples, packing)
    measured |= step_slowdown(
        options.model,
        random.Random(0).sample(samples, min(48, len(samples), options.tokens // 40 + 1)),
        packing,
        options.runs,
    )
    finish("parity", measured, MUST)


def shape_of(config: ModelConfig) -> dict[str, object]:
    return {"layers": config.layers, "width": config.width, "experts": config.experts, "top_k": config.top_k}


if __name__ == "__main__":
    main()
