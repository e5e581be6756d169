"""Weight deltas on real RL updates: size against the bound that holds for all codecs of this family, and speed against memcpy.

    python bench/deltas.py [--cache FOLDER] [--runs 5] [--moe-steps 100] [--no-engine]

The material is made at the first run (bench/_material.py; ten minutes of one idle core, 10 GB in the cache folder). Per set:
how much changed, ratio = bf16 bytes / bytes on the wire, the ratio at the bounds h0 and h1, and the layouts that others have
published (bench/_layouts.py). Ours is what the publisher stores: containers, tables, index and digests included; theirs are the
bare payloads. All rows come from the publisher's default setting and tiles for tp 8.

Times are CPU seconds of one thread, best of --runs, as a share of memcpy of the same bytes, measured between the runs. `encode`
is all that the publisher does (compare, tables, payloads, digests, BLAKE3); `decode` all that a subscriber does with objects
that are there: BLAKE3, decode, digests, up to patches. Layouts of others do no verification.

Keys: the h1 of the set S 1e-6 is held against the 183 that was measured on other rollouts of this model (h1_1p3_off).
scrub_versions: versions within which the scrub, at an engine's default share per version, found a bit that flipped in the
tile that has its turn last; with scrub_over_memcpy, its speed.

moe_ratio_p50: a mixture over 100 steps (bench/_mixture.py), beside its own h1.

Not measured: GPUs.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from _layouts import LAYOUTS, size
from _material import CACHE, SMOLLM2, Material, Set
from _mixture import MODEL as MIXTURE
from _mixture import updates
from _result import finish
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.engine.sync import SyncConfig, scrub_share
from twinmill.model.config import ModelConfig
from twinmill.model.hf import WEIGHTS, pack_bits, read_bits
from twinmill.publish import PublishConfig
from twinmill.publish.container import Opened
from twinmill.publish.draft import Weights
from twinmill.publish.encode import Encoded, Encoder
from twinmill.publish.publisher import Publisher
from twinmill.publish.subscriber import Subscriber
from twinmill.publish.tensors import unsigned
from twinmill.publish.threads import in_order
from twinmill.publish.tiles import Grid, digests, gather, scatter, table_of
from twinmill.publish.wdx import TILE_MAX, Patch, Tables, advance, backend, decode_tile
from twinmill.publish.wdx.bounds import h0_bits, h1_bits
from twinmill.records.engines import GenerateRequest, KvPolicy, Sampling
from twinmill.records.weights import GridSpec
from twinmill.store.blobs import digest_of, open_blobs

MUST = {
    "size_over_h1_max": "<= 1.06",
    "size_over_h1_sparse": "<= 1.1",
    "ratio_1p3": ">= 170",
    "h1_1p3_off": "<= 0.02",
    "ratio_cold": ">= 195",
    "encode_over_memcpy": ">= 0.19",
    "decode_over_memcpy": ">= 0.3",
    "scatter_over_memcpy": ">= 1.5",
    "verify_frac": "<= 0.03",
    "two_thread_speedup": ">= 1.7",
}
MUST_MIXTURE = {"moe_size_over_h1_max": "<= 1.1"}
MUST_ENGINE = {"pause_ms_135m": "< 50", "pause_over_full_reload": "< 0.02"}
MAIN, COLD = "S 1e-6", "cold S 3e-6"
"""sets that keys are named after"""
KNOWN_H1 = 183.0
DENSE = 0.01
"""share of changed weights from which a set counts for size_over_h1_max"""
MEMCPY_BYTES = 256 << 20
USES = ((-1.0, 0.0), (0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""shares of the steps in which an expert learned; the first is those that never did"""


def cpu_s(work: Callable[[], object]) -> float:
    """Seconds of this thread's processor time: others on the machine disturb it least."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def wall_s(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Memcpy:
    """The yardstick: measured between all that is measured, the best of all."""

    def __init__(self) -> None:
        self._source, self._target = np.ones(MEMCPY_BYTES, np.uint8), np.zeros(MEMCPY_BYTES, np.uint8)
        self._best = 0.0
        self.look()

    def look(self) -> None:
        seconds = min(cpu_s(lambda: np.copyto(self._target, self._source)) for _ in range(2))
        self._best = max(self._best, self._source.size / seconds)

    def share(self, size: int, seconds: float) -> float:
        """Speed of handling so many bytes, over that of memcpy."""
        return size / seconds / self._best

    @property
    def gb_per_s(self) -> float:
        return self._best / 1e9


class Wire(NamedTuple):
    """A delta as the publisher stores it."""

    encoded: Encoded
    objects: list[bytes]


class Codec:
    """One set through the publisher's encoder, and back."""

    def __init__(self, pair: Set, config: PublishConfig) -> None:
        self.grid = Grid(table_of(pair.before, dict.fromkeys(pair.before, "BF16")), GridSpec(tp=config.tp))
        self.pair, self._config = pair, config
        self._held = tuple(digests(self.grid, pair.before))
        self._room = np.empty(TILE_MAX, np.uint32)

    def encode(self) -> Wire:
        objects: list[bytes] = []
        encoder = Encoder(self.grid, self._config, "objects", lambda each: objects.extend(each) or ())
        base = Weights(None, self.grid, self.pair.before, self._held)  # the encoder asks for no version
        return Wire(encoder.delta(base, self.pair.after), objects)

    def decode(self, wire: Wire, threads: int = 1) -> dict[int, Patch]:
        """As Draft.take does it."""
        found: dict[int, Patch] = {}
        for part, data in zip(wire.encoded.parts, wire.objects):
            if digest_of(data) != part.object.digest:
                raise AssertionError(f"{part.object.key} is not what was written")
            opened = Opened(part, data)
            tables = {each.dtype: each for each in map(Tables.from_bytes, opened.tables)}
            tiles = range(part.first_tile, part.first_tile + part.tiles)

            def one(tile: int, opened=opened, tables=tables) -> Patch:
                cut = self.grid.tiles[tile]
                room = self._room if threads == 1 else np.empty(cut.size, unsigned(cut.dtype))
                bits = gather(cut, self.pair.before, room.view(unsigned(cut.dtype)))
                patch = decode_tile(bits, opened.payload(tile), tables[cut.dtype])
                before, after = opened.digests(tile)
                if before != self._held[tile] or advance(before, patch) != after:
                    raise AssertionError(f"{self.grid.describe(tile)} came out wrong")
                return patch

            found |= zip(tiles, in_order(one, tiles, threads))
        return found

    def verify(self, wire: Wire, patches: Mapping[int, Patch]) -> None:
        """What of `decode` is verification alone."""
        for data in wire.objects:
            digest_of(data)
        for tile, patch in patches.items():
            advance(self._held[tile], patch)

    def scatter(self, patches: Mapping[int, Patch], target: dict[str, np.ndarray]) -> None:
        for tile, patch in patches.items():
            scatter(self.grid.tiles[tile], patch.index, patch.new, target)


class Row(NamedTuple):
    """What is found out about one set."""

    name: str
    changed: float
    h0: float
    """ratio at the bound"""
    h1: float
    ratio: float
    encode: float
    """share of memcpy"""
    decode: float
    others: dict[str, tuple[float, float, float]]
    """layout -> ratio, encode, decode"""


def bound(pair: Set, bits: Callable[[np.ndarray, np.ndarray], float]) -> float:
    """The ratio at an entropy bound, tensor by tensor."""
    total = sum(bits(pair.before[name].reshape(-1), pair.after[name].reshape(-1)) for name in pair.before)
    return 8 * full_bytes(pair) / total


def full_bytes(pair: Set) -> int:
    return sum(bits.nbytes for bits in pair.before.values())


def others(pair: Set, memcpy: Memcpy) -> dict[str, tuple[float, float, float]]:
    """Each layout once, its result checked."""
    found, full = {}, full_bytes(pair)
    for name, layout in LAYOUTS.items():
        wire, after = {}, {}
        encode_s = cpu_s(lambda: wire.update(layout.encode(pair.before, pair.after)))  # noqa: B023
        decode_s = cpu_s(lambda: after.update(layout.decode(pair.before, wire)))  # noqa: B023
        if any((after[name] != pair.after[name]).any() for name in pair.after):
            raise AssertionError(f"the layout {name} does not give back the weights of {pair.name}")
        found[name] = (full / size(wire), memcpy.share(full, encode_s), memcpy.share(full, decode_s))
    return found


def fireworks_ratio(pair: Set) -> float | None:
    """Of arc_v3, by the package that Fireworks publishes; None = it is not installed. Its payloads are pickles, which are made
    here and never opened."""
    try:
        from fireworks_delta_compression import delta_compress
    except ImportError:
        print("arc_v3 is left out: pip install fireworks-delta-compression==0.1.0 to see it beside the others")
        return None
    total = 0
    for name, bits in pair.before.items():
        old, new = (torch.from_numpy(b.view(np.int16)).view(torch.bfloat16) for b in (bits, pair.after[name]))
        total += delta_compress(src=old, dst=new, compression_format="arc_v3")[0].nbytes
    return full_bytes(pair) / total


def look(pair: Set, config: PublishConfig, memcpy: Memcpy, runs: int) -> Row:
    full, codec = full_bytes(pair), Codec(pair, config)
    wire = codec.encode()
    encode_s, decode_s = [], []
    for _ in range(runs):
        encode_s.append(cpu_s(codec.encode))
        memcpy.look()
        decode_s.append(cpu_s(lambda: codec.decode(wire)))
    changed = sum(np.count_nonzero(pair.before[name] != pair.after[name]) for name in pair.before)
    return Row(
        pair.name,
        2 * changed / full,
        bound(pair, h0_bits),
        bound(pair, lambda before, after: h1_bits(before, after, "BF16")),
        full / sum(map(len, wire.objects)),
        memcpy.share(full, min(encode_s)),
        memcpy.share(full, min(decode_s)),
        others(pair, memcpy),
    )


def closer(pair: Set, config: PublishConfig, memcpy: Memcpy, runs: int) -> dict[str, float]:
    """What is measured on one set alone: the scatter, the price of verification, two threads."""
    full, codec = full_bytes(pair), Codec(pair, config)
    wire = codec.encode()
    patches = codec.decode(wire)
    target = {name: bits.copy() for name, bits in pair.before.items()}
    scatter_s, verify_s, decode_s, speedups = [], [], [], []
    for _ in range(runs):
        scatter_s.append(cpu_s(lambda: codec.scatter(patches, target)))
        memcpy.look()
        verify_s.append(cpu_s(lambda: codec.verify(wire, patches)))
        decode_s.append(cpu_s(lambda: codec.decode(wire)))
        one, two = (wall_s(lambda threads=threads: codec.decode(wire, threads)) for threads in (1, 2))
        speedups.append(one / two)
    if any((target[name] != pair.after[name]).any() for name in target):
        raise AssertionError("the scatter did not give the weights after")
    return {
        "scatter_over_memcpy": memcpy.share(full, min(scatter_s)),
        "verify_frac": min(verify_s) / min(decode_s),
        "two_thread_speedup": statistics.median(speedups),
    }


def scrub(pair: Set, config: PublishConfig, memcpy: Memcpy) -> dict[str, float]:
    """Both ends of a real log; then a bit flips in the mirror where the last version touched nothing."""
    blobs, kinds = open_blobs("memory://"), dict.fromkeys(pair.before, "BF16")
    publisher, subscriber = Publisher(blobs, "bench", config), Subscriber(blobs, "bench")
    for number, state in enumerate((pair.before, pair.after)):
        publisher.publish(state, kinds, step=number)
        subscriber.commit(subscriber.prepare())
    publisher.close()
    held = subscriber.held
    if any((held.tensors[name] != pair.after[name]).any() for name in pair.after):
        raise AssertionError("the subscriber does not hold what was published")
    tiles = len(held.grid.tiles)
    seconds = cpu_s(lambda: subscriber.scrub(tiles))
    name = held.grid.tiles[-1].pieces[-1].name  # the last to have its turn
    held.tensors[name].flags.writeable = True
    bits = held.tensors[name].reshape(-1)
    untouched = int(np.flatnonzero(pair.before[name].reshape(-1) == pair.after[name].reshape(-1))[-1])
    bits[untouched] ^= 1
    each, looks = scrub_share(tiles, SyncConfig().scrub_versions), 1
    while not subscriber.scrub(each):
        looks += 1
    if (subscriber.held.tensors[name] != pair.after[name]).any():
        raise AssertionError("the flipped bit was found, and not put right")
    return {"scrub_versions": looks, "scrub_over_memcpy": memcpy.share(full_bytes(pair), seconds)}


def pause(pair: Set, model: ModelConfig, runs: int) -> dict[str, float]:
    """The embedded engine goes to and fro between two versions while it answers; and its load from the page cache."""
    config = EngineConfig(context_tokens=256, slots=8, batch=8)
    asks = [
        GenerateRequest(session_id=f"{i}", token_ids=[i + 1] * 8, sampling=Sampling(max_tokens=48, seed=i), last=True)
        for i in range(4)
    ]

    async def load(folder: Path) -> EmbeddedEngine:
        engine = EmbeddedEngine(model, config, engine_id="bench", cluster="bench")
        await engine.stage(0, read_bits(folder)[0])
        await engine.flip(KvPolicy.KEEP)
        return engine

    async def swaps(engine: EmbeddedEngine) -> list[float]:
        found = []
        for version in range(1, runs + 1):
            answers = [asyncio.create_task(engine.generate(ask)) for ask in asks]
            await engine.stage(version, (pair.before, pair.after)[version % 2])
            found.append((await engine.flip(KvPolicy.KEEP)).pause_s)
            await asyncio.gather(*answers)
        return found

    async def main() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / WEIGHTS).write_bytes(pack_bits(pair.before, dict.fromkeys(pair.before, "BF16")))
            started = time.perf_counter()
            engine = await load(folder)
            reload_s = time.perf_counter() - started
        try:
            pause_s = statistics.median(await swaps(engine))
        finally:
            engine.close()
        return {
            "pause_ms_135m": 1e3 * pause_s,
            "pause_over_full_reload": pause_s / reload_s,
            "full_reload_ms": 1e3 * reload_s,
        }

    return asyncio.run(main())


def mixture(steps: int, every: int, config: PublishConfig, model: ModelConfig, console: Console) -> dict[str, float]:
    """A mixture step by step, each encoded; every so many steps beside its own h1, and by use of experts."""
    table = Table(title="a mixture of experts: changed, by how often an expert has learned so far")
    for column in ("step", "changed", "ratio", "h1", "over h1", *(f"{low:.0%} to {high:.0%}" for low, high in USES)):
        table.add_column(column, justify="right")
    ratios, bounds, over = [], [], []
    for update in updates(steps, model):
        full = full_bytes(update.pair)
        ratios.append(full / sum(map(len, Codec(update.pair, config).encode().objects)))
        if update.number % every:
            continue
        bounds.append(bound(update.pair, lambda before, after: h1_bits(before, after, "BF16")))
        over.append(bounds[-1] / ratios[-1])
        groups = [[e.changed for e in update.experts if low < e.learned <= high] for low, high in USES]
        curve = (f"{statistics.mean(group):.2%} ({len(group)})" if group else "" for group in groups)
        told = (f"{update.changed:.2%}", f"{ratios[-1]:.1f}", f"{bounds[-1]:.1f}", f"{over[-1]:.3f}")
        table.add_row(str(update.number), *told, *curve)
    console.print(table)
    return {
        "moe_ratio_p50": statistics.median(ratios),
        "moe_h1_p50": statistics.median(bounds),
        "moe_size_over_h1_max": max(over),
        "moe_steps": len(ratios),
    }


def show(rows: list[Row], console: Console) -> None:
    table = Table(title="ratio to bf16 (encode, decode as shares of memcpy)")
    for column in ("set", "changed", "h0", "h1", "twinmill", "over h1", *LAYOUTS):
        table.add_column(column, justify="left" if column == "set" else "right", no_wrap=True)
    for row in rows:
        ours = f"{row.ratio:.1f} ({row.encode:.2f}, {row.decode:.2f})"
        theirs = [f"{ratio:.1f} ({encode:.2f}, {decode:.2f})" for ratio, encode, decode in row.others.values()]
        bounds = (f"{row.changed:.2%}", f"{row.h0:.1f}", f"{row.h1:.1f}", ours, f"{row.h1 / row.ratio:.3f}")
        table.add_row(row.name, *bounds, *theirs)
    console.print(table)


def measured(rows: list[Row]) -> dict[str, float]:
    by_name = {row.name: row for row in rows}
    main, cold = by_name[MAIN], by_name[COLD]
    sparse = [row for row in rows if row.changed < DENSE or row is cold]
    return {
        "size_over_h1_max": max(row.h1 / row.ratio for row in rows if row not in sparse),
        "size_over_h1_sparse": max(row.h1 / row.ratio for row in sparse),
        "ratio_1p3": main.ratio,
        "changed_1p3": main.changed,
        "h1_1p3": main.h1,
        "h1_1p3_off": abs(main.h1 / KNOWN_H1 - 1),
        "ratio_cold": cold.ratio,
        "best_other_1p3": max(ratio for ratio, _, _ in main.others.values()),
        "encode_over_memcpy": main.encode,
        "decode_over_memcpy": main.decode,
    }


def main(
    arguments: list[str] | None = None,
    material: Material | None = None,
    model: ModelConfig = SMOLLM2,
    mixture_model: ModelConfig = MIXTURE,
) -> None:
    """material, model, mixture_model: smaller ones, for a test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of the material")
    parser.add_argument("--runs", type=int, default=5, help="the best of so many counts")
    parser.add_argument("--moe-steps", type=int, default=100, help="of the mixture of experts; 0 = leave it out")
    parser.add_argument("--moe-every", type=int, default=10, help="steps from one look at the mixture's h1 to the next")
    parser.add_argument("--no-engine", action="store_true", help="leave the pause of the embedded engine out (3 GB)")
    given = parser.parse_args(arguments)
    console = Console(width=200 if not sys.stdout.isatty() else None)
    material = material or Material(given.cache)
    material.make()
    config, memcpy = PublishConfig(threads=1), Memcpy()
    rows = [look(material.load(name), config, memcpy, given.runs) for name in track(material.names, "sets")]
    show(rows, console)
    pair = material.load(MAIN)
    found: dict[str, object] = {**measured(rows), **closer(pair, config, memcpy, given.runs)}
    found |= scrub(pair, config, memcpy)
    if (arc_v3 := fireworks_ratio(pair)) is not None:
        found["arc_v3_1p3"] = arc_v3
    found |= {"memcpy_gb_per_s": memcpy.gb_per_s, "backend": backend(), "load_1min": os.getloadavg()[0]}
    must = dict(MUST)
    if given.moe_steps:
        found |= mixture(given.moe_steps, given.moe_every, config, mixture_model, console)
        must |= MUST_MIXTURE
    if not given.no_engine:
        found |= pause(pair, model, given.runs)
        must |= MUST_ENGINE
    finish("deltas", found, must)


if __name__ == "__main__":
    main()
