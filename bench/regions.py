"""Four regions with links of their own follow one weights log, while links fail and processes are killed.

    python bench/regions.py [--versions 200] [--every 4] [--lag 3] [--seed 0]

    trainer ──uplink──► S3 server (moto's) ──downlink of each region──► mirror, subscriber: a process of its own

A model of 4M weights moves as in RL (fp32 masters under Adam, a high learning rate, so that a version is of some size), and a
version is committed every --every seconds. Links are shaping proxies: bandwidth, round trip, a window per connection; no loss.
Once in ten versions a region is killed or its link fails, silently or with resets, for two versions; a killed one starts again
from its mirror at once.

unknown_digests  versions served whose digest, computed from the region's memory, is not that of the log
served_frac      share of (region, version) in which that version or a later one was served before --lag more were committed
sync_p50_s, sync_p99_s        from commit to serving, over all regions and versions, faults included
sync_over_link_p50            the same over what the region's bandwidth alone needs for the version's bytes
link_use_up, link_use_down    of the slowest region's link while it is busy with many objects (bench/_link.py)
lag_max_versions              most versions that a region was behind, when it served one
bytes_over_full               bytes of all deltas over bytes of as many full versions

Regions need processor time to decode: on a machine that is busy with other things, sync is slower than the link allows.
"""

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import structs
from rich.console import Console
from rich.progress import track
from rich.table import Table

from _link import measure
from _region import Order, Served, read_served
from _result import finish

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.publish.adam import Masters
from tests.store.s3_server import BUCKET, S3Server, serving

from twinmill.publish import PublishConfig
from twinmill.publish.publisher import Publisher
from twinmill.records.weights import WeightVersion
from twinmill.store.backends import StoreConfig
from twinmill.store.blobs import open_blobs
from twinmill.store.proxy.shaping import Fall, Shape, ShapingProxy

MUST = {
    "unknown_digests": "== 0",
    "served_frac": ">= 0.95",
    "sync_over_link_p50": "<= 1.3",
    "link_use_up": ">= 0.9",
    "link_use_down": ">= 0.9",
}
RUN = "regions"
UPLINK = Shape(up_bytes_per_s=4e6, down_bytes_per_s=4e6, rtt_s=0.02)
REGIONS = {
    "near": Shape(up_bytes_per_s=1e6, down_bytes_per_s=1e6, rtt_s=0.005),
    "mid": Shape(up_bytes_per_s=0.6e6, down_bytes_per_s=0.6e6, rtt_s=0.02),
    "far": Shape(up_bytes_per_s=0.4e6, down_bytes_per_s=0.4e6, rtt_s=0.05),
    "narrow": Shape(up_bytes_per_s=0.3e6, down_bytes_per_s=0.3e6, rtt_s=0.08),
}
LEARNING_RATE = 5e-5
POLL_S = 0.02
START_S = 300.0
"""within which every region must serve the first version"""


class Sizes(NamedTuple):
    """How much there is to do; a test takes less."""

    shape: tuple[int, int] = (1024, 1024)
    matrices: int = 4


SIZES = Sizes()


class Trainer:
    """Publishes a model that moves."""

    def __init__(self, store: StoreConfig, sizes: Sizes) -> None:
        self._masters = {
            f"model.layers.{i}.mlp.up_proj.weight": Masters(sizes.shape, LEARNING_RATE, seed=i)
            for i in range(sizes.matrices)
        }
        config = PublishConfig(threads=1, object_bytes=64 << 10)  # many objects, as of a large model
        self._publisher = Publisher(open_blobs(store.url, config=store), RUN, config)
        self.committed: list[tuple[float, WeightVersion]] = []

    def publish(self) -> None:
        number = len(self.committed)
        for masters in self._masters.values() if number else ():
            masters.step()
        state = {name: masters.bits for name, masters in self._masters.items()}
        version = self._publisher.publish(state, dict.fromkeys(state, "BF16"), step=number)
        self.committed.append((time.time(), version))

    def close(self) -> None:
        self._publisher.close()


class Region:
    """A link and the process behind it."""

    def __init__(self, name: str, shape: Shape, server: S3Server, folder: Path) -> None:
        self.name, self.shape = name, shape
        self.served_at = folder / f"{name}.jsonl"
        self.link = ShapingProxy(_address(server), shape)
        self.kills = self.outages = 0
        self._server, self._folder = server, folder / name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        order = Order(
            name=self.name, store=_through(self._server, self.link), run_id=RUN, folder=str(self._folder),
            served=str(self.served_at), poll_s=POLL_S,
        )  # fmt: skip
        program = [sys.executable, str(Path(__file__).with_name("_region.py")), msgspec.json.encode(order).decode()]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE)

    def kill(self) -> None:
        self.kills += 1
        self.end()
        self.start()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            assert self._process.stdin is not None
            self._process.stdin.close()

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"region {self.name} ended by itself with {self._process.returncode}: see above")

    def served(self) -> list[Served]:
        return read_served(self.served_at)


def _address(server: S3Server) -> tuple[str, int]:
    return "127.0.0.1", int(server.config.endpoint.rpartition(":")[2])


def _through(server: S3Server, link: ShapingProxy) -> StoreConfig:
    return structs.replace(server.config, url=f"s3://{BUCKET}/regions", endpoint=link.url, deadline_s=20.0)


@contextlib.contextmanager
def world(folder: Path, sizes: Sizes, shapes: Mapping[str, Shape]) -> Iterator[tuple[Trainer, list[Region]]]:
    """A trainer that has published version 0, and regions that serve it."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving())
        uplink = stack.enter_context(ShapingProxy(_address(server), UPLINK))
        trainer = Trainer(_through(server, uplink), sizes)
        stack.callback(trainer.close)
        trainer.publish()
        regions = [Region(name, shape, server, folder) for name, shape in shapes.items()]
        for region in regions:
            stack.enter_context(region.link)
            stack.callback(region.end)
            region.start()
        wait_for(regions, 0, START_S)
        yield trainer, regions


def wait_for(regions: Sequence[Region], number: int, deadline_s: float) -> None:
    """Until all serve that version or a later one."""
    deadline = time.monotonic() + deadline_s
    for region in regions:
        while max((line.version for line in region.served()), default=-1) < number:
            region.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"region {region.name} does not serve version {number} after {deadline_s:g} s")
            time.sleep(0.05)


class Trouble(NamedTuple):
    """What happens when a version has been committed."""

    region: int
    kind: str
    """kill, or how the link falls"""


def troubles(versions: int, regions: int, seed: int) -> dict[int, Trouble]:
    """One in ten versions, and none in the last ones, so that everybody can come back."""
    rng = random.Random(seed)
    kinds = ["kill", *(fall.value for fall in Fall)]
    return {
        number: Trouble(rng.randrange(regions), kinds[i % len(kinds)])
        for i, number in enumerate(range(4, max(versions - 4, 5), 10))
    }


def run(trainer: Trainer, regions: Sequence[Region], versions: int, every_s: float, seed: int) -> None:
    planned, mend_at = troubles(versions, len(regions), seed), dict[int, Region]()
    begun = time.monotonic()
    for number in track(range(1, versions + 1), "versions"):
        time.sleep(max(0.0, begun + number * every_s - time.monotonic()))
        if number in mend_at:
            mend_at.pop(number).link.mend()
        trainer.publish()
        for region in regions:
            region.check()
        if (trouble := planned.get(number)) is not None:
            region = regions[trouble.region]
            if trouble.kind == "kill":
                region.kill()
            else:
                region.outages += 1
                region.link.fall(Fall(trouble.kind))
                mend_at[number + 2] = region
    for region in mend_at.values():
        region.link.mend()
    wait_for(regions, versions, 120.0)


class Sync(NamedTuple):
    """One version in one region."""

    seconds: float
    """from commit to serving this one or a later one"""
    over_link: float
    in_time: bool


def syncs(region: Region, committed: Sequence[tuple[float, WeightVersion]], lag: int) -> list[Sync]:
    lines, found = region.served(), []
    for number in range(1, len(committed)):
        at, version = committed[number]
        served = next(line.t for line in lines if line.version >= number)
        late = committed[number + lag][0] if number + lag < len(committed) else float("inf")
        alone = version.payload_bytes / region.shape.down_bytes_per_s
        found.append(Sync(served - at, (served - at) / alone, served <= late))
    return found


def lag_max(lines: Sequence[Served], committed: Sequence[tuple[float, WeightVersion]]) -> int:
    times = [at for at, _ in committed]
    return max(int(np.searchsorted(times, line.t)) - 1 - line.version for line in lines)


def unknown(lines: Sequence[Served], committed: Sequence[tuple[float, WeightVersion]]) -> int:
    known = {version.number: version.model_digest for _, version in committed}
    return sum(line.digest != known.get(line.version) for line in lines)


def figures(
    committed: Sequence[tuple[float, WeightVersion]], regions: Sequence[Region], lag: int
) -> dict[str, float | int]:
    every = {region.name: syncs(region, committed, lag) for region in regions}
    whole = [sync for found in every.values() for sync in found]
    seconds = [sync.seconds for sync in whole]
    deltas = [version for _, version in committed[1:]]
    table = Table(title="regions")
    for column in ("region", "MB/s", "rtt ms", "kills", "outages", "p50 s", "over link", "p99 s", "in time"):
        table.add_column(column)
    for region in regions:
        mine = every[region.name]
        p50, p99 = (np.quantile([sync.seconds for sync in mine], q) for q in (0.5, 0.99))
        over = statistics.median(sync.over_link for sync in mine)
        told = (region.shape.down_bytes_per_s / 1e6, 1e3 * region.shape.rtt_s, region.kills, region.outages)
        on_time = sum(sync.in_time for sync in mine) / len(mine)
        table.add_row(
            region.name, *(f"{n:g}" for n in told), f"{p50:.2f}", f"{over:.2f}", f"{p99:.2f}", f"{on_time:.1%}"
        )
    Console(width=120).print(table)
    return {
        "versions": len(deltas),
        "unknown_digests": sum(unknown(region.served(), committed) for region in regions),
        "served_frac": sum(sync.in_time for sync in whole) / len(whole),
        "sync_p50_s": statistics.median(seconds),
        "sync_p99_s": float(np.quantile(seconds, 0.99)),
        "sync_over_link_p50": statistics.median(sync.over_link for sync in whole),
        "lag_max_versions": max(lag_max(region.served(), committed) for region in regions),
        "bytes_over_full": sum(v.payload_bytes for v in deltas) / sum(v.full_bytes for v in deltas),
        "kills": sum(region.kills for region in regions),
        "outages": sum(region.outages for region in regions),
    }


def main(arguments: list[str] | None = None, sizes: Sizes = SIZES, shapes: Mapping[str, Shape] = REGIONS) -> None:
    """sizes, shapes: smaller ones, for a test. The last region's link is the one whose use is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=200)
    parser.add_argument("--every", type=float, default=4.0, help="seconds from one version to the next")
    parser.add_argument(
        "--lag", type=int, default=3, help="versions by which a region may be behind and still be in time"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, world(Path(folder), sizes, shapes) as (trainer, regions):
        run(trainer, regions, given.versions, given.every, given.seed)
        found: dict[str, object] = {**figures(trainer.committed, regions, given.lag)}
    narrow = list(shapes.values())[-1]
    parts = [random.Random(i).randbytes(100_000) for i in range(24)]
    link = measure(narrow.down_bytes_per_s, narrow.rtt_s, parts, streams=16)
    found |= {key: link[key] for key in ("link_use_up", "link_use_down")}
    finish("regions", {**found, "lag": given.lag}, MUST)


if __name__ == "__main__":
    main()
