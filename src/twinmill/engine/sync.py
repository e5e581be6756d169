"""Keeps one engine at the newest version of the weights log.

    loop    consumes        versions, in order, from the subscriber
            waits for       the log to grow (asked every `poll_s`)
            unblocked by    the trainer's publisher; cancellation
    each    prepare -> stage, while the engine serves -> digests of what was staged, read back from the engine's own
            memory, against the log's -> flip -> commit
    idle    some tiles of what is held are checked, so that a bit that flips in this host's memory is found and repaired:
            a share of them with each version, a few at each look, and what is left over before the version after next

Invariant 3 lives here: what does not match is rebuilt from nothing and staged anew; what still does not match is never
served.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import Protocol

from twinmill.publish.apply import Prepared
from twinmill.publish.subscriber import Subscriber
from twinmill.publish.tiles import Grid
from twinmill.records.base import Record
from twinmill.records.engines import KvPolicy
from twinmill.store.errors import StoreUnavailable

from .base import Engine, EngineError, Flip


class SyncConfig(Record):
    """How an engine follows the weights log."""

    kv: KvPolicy = KvPolicy.KEEP
    """what happens to KV of the version before"""
    poll_s: float = 0.2
    """seconds between two looks at the log"""
    outage_s: float = 300.0
    """seconds without an answer from the store before the engine process gives up; it serves what it has until then"""
    tries: int = 3
    """times a version is staged before memory that does not match is taken for broken"""
    scrub_versions: int = 16
    """versions within which every tile of this host's copy has been checked; 0 = tiles are not checked"""


LOOK_TILES = 4
"""checked at one look at the log, at most: a tile is 2 MB or less"""


def scrub_share(tiles: int, versions: int) -> int:
    """How many tiles to check with each version, so that all have been after so many."""
    return ceil(tiles / versions) if versions else 0


class Checkable(Engine, Protocol):
    """An engine whose memory can be read back. EmbeddedEngine is one."""

    target: int
    repairs: int

    async def staged_digests(self, grid: Grid) -> Sequence[bytes]:
        """The digest of each tile of what is staged, from the memory that will be computed with; b"" = not even the shape or
        the dtype of what was staged is there."""
        ...


class Installed(Record):
    """One version that an engine went to. Made for metrics."""

    version: int
    flip: Flip
    hops: int
    """versions applied to get here"""
    changed: int
    """tensors whose bits differ from the version before"""
    fetched_bytes: int
    prepare_s: float
    """fetching, verifying and decoding, while the version before was served"""
    stage_s: float
    """filling the idle buffer and reading it back, while the version before was served"""
    tries: int


async def follow(
    engine: Checkable,
    subscriber: Subscriber,
    config: SyncConfig,
    *,
    on_installed: Callable[[Installed], None] = lambda _: None,
    on_outage: Callable[[StoreUnavailable], None] = lambda _: None,
) -> None:
    """Runs until it is cancelled, the store is away for too long, or the engine's memory cannot be trusted."""
    answered, due = time.monotonic(), 0
    while True:
        try:
            prepared = await asyncio.to_thread(subscriber.prepare)
            answered = time.monotonic()
        except StoreUnavailable as error:
            on_outage(error)
            if time.monotonic() - answered > config.outage_s:
                raise
            prepared = None
        if prepared is None:
            now = min(due, LOOK_TILES)
        else:
            on_installed(await install(engine, subscriber, prepared, config))
            now = due
            due += scrub_share(subscriber.tiles, config.scrub_versions)
        if now:
            await asyncio.to_thread(subscriber.scrub, now)
            due -= now
        if prepared is None:
            await asyncio.sleep(config.poll_s)


async def install(engine: Checkable, subscriber: Subscriber, prepared: Prepared, config: SyncConfig) -> Installed:
    """Stage, verify, flip, commit. Raises EngineError when the memory differs from the manifest `tries` times."""
    for attempt in range(1, config.tries + 1):
        started = time.monotonic()
        number = prepared.version.number
        engine.target = max(engine.target, number)
        await engine.stage(number, prepared.tensors)
        wrong = _differences(prepared, await engine.staged_digests(prepared.grid))
        stage_s = time.monotonic() - started
        if not wrong:
            flip = await engine.flip(config.kv)
            subscriber.commit(prepared)
            return Installed(
                version=number,
                flip=flip,
                hops=prepared.hops,
                changed=len(prepared.changed),
                fetched_bytes=prepared.fetched_bytes,
                prepare_s=prepared.seconds,
                stage_s=stage_s,
                tries=attempt,
            )
        engine.repairs += 1
        again = await asyncio.to_thread(subscriber.prepare, number, afresh=True)
        if again is None:
            raise EngineError(f"version {number} does not match the log ({wrong[0]}) and cannot be rebuilt")
        prepared = again
    raise EngineError(
        f"version {number}: {len(wrong)} tiles, {wrong[0]} first, differ in this engine's memory from the log "
        f"after {config.tries} tries; this process's memory is not to be trusted"
    )


def _differences(prepared: Prepared, found: Sequence[bytes]) -> list[str]:
    """The tiles that differ, in words."""
    pairs = enumerate(zip(prepared.digests, found, strict=True))
    return [prepared.grid.describe(tile) for tile, (wanted, here) in pairs if wanted != here]
