"""The embedded engine: decode speed against the torch engine and transformers, share of the roofline, scoring, swaps."""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from _result import finish
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.model.config import ModelConfig, Parity
from twinmill.model.core import levels, native
from twinmill.model.core.forward import KV_BLOCK, Core, Rows, drawing, new_kv, scoring
from twinmill.model.core.weights import PackedWeights
from twinmill.model.hf import dtypes, init_decoder, save_folder, state_bits
from twinmill.model.memory import keep_freed_memory
from twinmill.model.transformer import Decoder
from twinmill.publish.tiles import Grid, digests, table_of
from twinmill.records.engines import GenerateRequest, KvPolicy, Sampling
from twinmill.records.weights import GridSpec

MODEL = ModelConfig(
    family="qwen3_moe", vocab=2048, width=256, layers=4, heads=8, kv_heads=4, head_dim=32, experts=16, top_k=2,
    expert_intermediate=128, qk_norm=True,
)  # fmt: skip
"""7.6M parameters, of which 2.1M work on a token"""
LARGE = ModelConfig(
    family="llama", vocab=49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, intermediate=1536
)
"""135M parameters: the shape of SmolLM2-135M; random weights, for the swap alone"""
PROMPT, NEW = 64, 128
BATCHES = (1, 16, 64)
MUST = {
    "over_hf_b1": ">= 10",
    "over_hf_b64": ">= 3.5",
    "roofline_b1": ">= 0.5",
    "roofline_b64": ">= 0.4",
    "two_thread_speedup": ">= 1.7",
    "score_over_torch": ">= 1.6",
    "swap_ms_7m": "<= 15",
    "start_s": "< 1",
}


def median(run: Callable[[], float], runs: int) -> float:
    return statistics.median(run() for _ in range(runs))


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def prompts(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).integers(0, MODEL.vocab, (batch, PROMPT)).astype(np.int32)


# Engines: whole requests, prompt included, through the scheduler


async def served(decoder: Decoder, backend: str) -> EmbeddedEngine:
    config = EngineConfig(backend=backend, context_tokens=256, slots=80, batch=64, prefill_tokens=2048)
    engine = EmbeddedEngine(decoder.config, config, engine_id="bench", cluster="bench")
    await engine.stage(0, state_bits(decoder))
    await engine.flip(KvPolicy.KEEP)
    return engine


def requests(batch: int, new: int = NEW) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            session_id=f"{i}", token_ids=ids, sampling=Sampling(max_tokens=new, seed=i), want_experts=True, last=True
        )
        for i, ids in enumerate(prompts(batch).tolist())
    ]


def engine_speed(decoder: Decoder, backend: str, runs: int) -> dict[int, float]:
    """Tokens per second by batch, one thread."""

    async def main() -> dict[int, float]:
        engine = await served(decoder, backend)
        speeds = {}
        for batch in BATCHES:
            seconds = []
            for _ in range(runs + 1):
                started = time.perf_counter()
                await asyncio.gather(*map(engine.generate, requests(batch)))
                seconds.append(time.perf_counter() - started)
            speeds[batch] = batch * NEW / statistics.median(seconds[1:])
        engine.close()
        return speeds

    torch.set_num_threads(1)
    return asyncio.run(main())


def transformers_speed(folder: Path, runs: int, cores: int) -> dict[int, float]:
    """Tokens per second by batch of the fastest of dtypes and thread counts."""
    from transformers import AutoModelForCausalLM

    best = dict.fromkeys(BATCHES, 0.0)
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        for threads in sorted({1, cores}):
            torch.set_num_threads(threads)
            for batch in BATCHES:
                ids = torch.from_numpy(prompts(batch)).long()
                settings = {
                    "max_new_tokens": NEW,
                    "min_new_tokens": NEW,
                    "do_sample": True,
                    "top_k": 0,
                    "pad_token_id": 0,
                }
                work = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **settings)  # noqa: B023, E731
                speed = batch * NEW / median(lambda: timed(work), runs)  # noqa: B023
                print(f"transformers {dtype} threads {threads} batch {batch}: {speed:.0f} tokens/s", flush=True)
                best[batch] = max(best[batch], speed)
    return best


# The core by itself: what of the machine it uses


class Decoding:
    """`batch` sequences behind their prompts, moved on a token a call."""

    def __init__(self, weights: PackedWeights, batch: int, threads: int) -> None:
        self.core, self.weights, self.batch = Core(MODEL, threads), weights, batch
        width = (PROMPT + NEW) // KV_BLOCK
        self.table = np.arange(batch * width, dtype=np.int32).reshape(batch, width)
        self.kv = new_kv(MODEL, self.table.size)
        every = np.arange(batch, dtype=np.int32)
        self.slots = every
        places = np.tile(np.arange(PROMPT, dtype=np.int32), batch)
        rows = Rows(prompts(batch).ravel(), np.repeat(every, PROMPT), places, self.table)
        self.core.forward(weights, rows, self.kv)

    def run(self) -> float:
        """Seconds of a step, mean over NEW tokens."""
        ids = prompts(self.batch)[:, -1].copy()
        started = time.perf_counter()
        for position in range(PROMPT, PROMPT + NEW):
            places = np.full(self.batch, position, np.int32)
            ones = np.ones(self.batch)
            asks = drawing(self.slots, places + 1, ones, ones, self.slots.tolist())
            result = self.core.forward(self.weights, Rows(ids, self.slots, places, self.table), self.kv, asks)
            ids = result.token_ids
        return (time.perf_counter() - started) / NEW


def peak_flops() -> float:
    """Of one thread: the better of torch's and the core's product on matrices that fit the second cache."""
    n = 256
    a, b = torch.randn(n, n), torch.randn(n, n)
    out = torch.empty(n, n)
    matrix, pool = native().Matrix(n, n, native().F32), native().Pool(1)
    both = (lambda: torch.mm(a, b, out=out), lambda: pool.product(matrix, a.numpy(), out.numpy()))
    return max(2 * n**3 * 20 / min(timed(lambda: [work() for _ in range(20)]) for _ in range(20)) for work in both)  # noqa: B023


def read_bytes(size: int) -> float:
    """Bytes per second that one thread reads of `size` bytes, again and again."""
    x = torch.ones(size // 8 * 2)
    halves = x.view(2, -1)
    ways = (x.sum, x.max, lambda: torch.dot(halves[0], halves[1]))
    return max(size / min(timed(work) for _ in range(10)) for work in ways)


def ideal_s(batch: int, flops: float) -> float:
    """The least seconds of a step: bytes at the speed of reading so many, or FLOPs at the peak, the longer one."""
    attention = MODEL.width * (MODEL.heads + 2 * MODEL.kv_heads) * MODEL.head_dim + MODEL.width**2
    expert, router = 3 * MODEL.width * MODEL.expert_intermediate, MODEL.width * MODEL.experts
    head, layers = MODEL.vocab * MODEL.width, MODEL.layers
    touched = MODEL.experts * (1 - (1 - MODEL.top_k / MODEL.experts) ** batch)
    numbers = layers * (attention + router + expert * touched) + head
    context = PROMPT + NEW / 2
    kv = layers * 2 * MODEL.kv_heads * MODEL.head_dim * context * batch
    active = layers * (attention + router + expert * MODEL.top_k) + head
    work = 2 * batch * (active + layers * 2 * MODEL.heads * MODEL.head_dim * context)
    size = int(2 * numbers + 4 * kv)
    return max(size / read_bytes(size), work / flops)


def core_figures(weights: PackedWeights, runs: int) -> dict[str, float]:
    measured: dict[str, float] = {}
    flops = peak_flops()
    measured["peak_gflops"], measured["read_gb_s"] = flops / 1e9, read_bytes(15 << 20) / 1e9
    for batch in BATCHES:
        one = Decoding(weights, batch, 1)
        seconds = median(one.run, runs)
        measured[f"core_tokens_s_b{batch}"] = batch / seconds
        measured[f"roofline_b{batch}"] = ideal_s(batch, flops) / seconds
    # side by side, so that a busy machine hurts both alike
    one, two = Decoding(weights, 64, 1), Decoding(weights, 64, 2)
    pairs = [(one.run(), two.run()) for _ in range(runs)]
    measured["two_thread_speedup"] = statistics.median(a / b for a, b in pairs)
    return measured


@torch.no_grad()
def scoring_ratio(decoder: Decoder, weights: PackedWeights, runs: int) -> dict[str, float]:
    batch, length = 32, PROMPT + NEW
    ids = np.random.default_rng(0).integers(0, MODEL.vocab, batch * length).astype(np.int32)
    core, table = Core(MODEL), np.arange(batch * 3, dtype=np.int32).reshape(batch, 3)
    places = np.tile(np.arange(length, dtype=np.int32), batch)
    rows = Rows(ids, np.repeat(np.arange(batch, dtype=np.int32), length), places, table)
    kv, asks = new_kv(MODEL, table.size), scoring(range(len(ids)), np.roll(ids, -1))
    tokens, where = torch.from_numpy(ids).long(), torch.from_numpy(places).long()
    torch.set_num_threads(1)
    ours = lambda: core.forward(weights, rows, kv, asks)  # noqa: E731
    theirs = lambda: decoder.logprobs(decoder(tokens, where, [length] * batch).hidden, tokens.roll(-1))  # noqa: E731
    pairs = [(timed(ours), timed(theirs)) for _ in range(runs + 1)][1:]
    return {
        "score_tokens_s": len(ids) / statistics.median(a for a, _ in pairs),
        "torch_score_tokens_s": len(ids) / statistics.median(b for _, b in pairs),
        "score_over_torch": statistics.median(b / a for a, b in pairs),
    }


def swap_ms(decoder: Decoder, runs: int) -> float:
    """From the start of staging to serving, digests of the engine's own memory included, while requests are at work,
    which must all finish."""

    async def main() -> float:
        engine, bits = await served(decoder, "core"), state_bits(decoder)
        grid = Grid(table_of(bits, dtypes(decoder)), GridSpec())
        wanted = digests(grid, bits)
        found = []
        for version in range(1, runs + 2):
            tasks = [asyncio.create_task(engine.generate(request)) for request in requests(4, 60)]
            await asyncio.sleep(0.02)
            await engine.stage(version, bits)
            assert await engine.staged_digests(grid) == wanted
            found.append((await engine.flip(KvPolicy.KEEP)).swap_s)
            assert all(len(out.sampled_ids) == 60 for out in await asyncio.gather(*tasks))
        engine.close()
        return 1e3 * statistics.median(found[1:])

    return asyncio.run(main())


def start_s(decoder: Decoder) -> float:
    """From nothing but imports and weights in memory to the first token."""
    bits = state_bits(decoder)

    async def main() -> None:
        engine = EmbeddedEngine(MODEL, EngineConfig(backend="core"), engine_id="bench", cluster="bench")
        await engine.stage(0, bits)
        await engine.flip(KvPolicy.KEEP)
        await engine.generate(requests(1, 1)[0])
        engine.close()

    return timed(lambda: asyncio.run(main()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="medians are over so many")
    parser.add_argument("--large", action="store_true", help="swap 135M parameters as well (3 GB)")
    parser.add_argument("--alone", action="store_true", help="leave transformers and the torch engine out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as an engine's process does
    decoder = init_decoder(MODEL, 0, Parity.OFF)
    weights = PackedWeights(MODEL)
    weights.load(state_bits(decoder))
    print(f"levels {', '.join(levels())}; {sum(b.size for b in state_bits(decoder).values()) / 1e6:.2f}M parameters")
    measured: dict[str, object] = {"level": levels()[0], "start_s": start_s(decoder)}
    measured |= core_figures(weights, options.runs)
    measured |= scoring_ratio(decoder, weights, options.runs)
    measured["swap_ms_7m"] = swap_ms(decoder, options.runs)
    must = dict(MUST)
    ours = engine_speed(decoder, "core", options.runs)
    measured |= {f"tokens_s_b{batch}": speed for batch, speed in ours.items()}
    if options.alone:
        must = {key: bound for key, bound in must.items() if not key.startswith("over_")}
    else:
        reference = engine_speed(decoder, "torch", 1)
        measured |= {f"over_torch_b{batch}": ours[batch] / speed for batch, speed in reference.items()}
        with tempfile.TemporaryDirectory() as folder:
            save_folder(decoder, folder)
            rival = transformers_speed(Path(folder), max(1, options.runs // 2), len(os.sched_getaffinity(0)))
        measured |= {f"hf_tokens_s_b{batch}": speed for batch, speed in rival.items()}
        measured |= {f"over_hf_b{batch}": ours[batch] / speed for batch, speed in rival.items()}
    if options.large:
        measured["swap_ms_135m"] = swap_ms(init_decoder(LARGE, 0), 3)
        must["swap_ms_135m"] = "<= 150"
    finish("engine", measured, must)


if __name__ == "__main__":
    main()
