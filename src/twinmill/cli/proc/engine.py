"""Process role `engine/<cluster>`: one embedded engine, its subscriber and mirror. The model comes from the weights log."""

import asyncio
import contextlib
import json
import signal
import time

import torch

from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.engine.embedded.config import backend_of
from twinmill.engine.server import EngineServer
from twinmill.engine.sync import Installed, SyncConfig, follow
from twinmill.model.config import from_hf
from twinmill.model.memory import keep_freed_memory
from twinmill.publish import LeaseConfig, LinkConfig, MirrorConfig
from twinmill.publish.errors import PublishError
from twinmill.publish.leases import Lease
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.mirror import Mirror
from twinmill.publish.subscriber import Event, Subscriber
from twinmill.store.errors import StoreError, StoreUnavailable

from .base import Role, perform


async def main(role: Role) -> None:
    keep_freed_memory()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
    blocks, i = role.blocks, role.cluster()
    torch.set_num_threads(blocks.get(f"clusters.{i}.threads", int))
    link = blocks.get(f"clusters.{i}.link", LinkConfig)
    config = blocks.get(f"clusters.{i}.mirror", MirrorConfig)
    mirror = Mirror(role.blobs(), role.run.mirror(role.part), link, config)
    lease_config = blocks.get(f"clusters.{i}.lease", LeaseConfig)
    lease = Lease(WeightsLog(mirror), role.part, config=lease_config, transfer=config.transfer)
    mirror.keep = lease.keys
    engine = await first_engine(role, mirror)

    def on_event(event: Event) -> None:
        text = f"{role.part}: version {event.version}: {event.why}"
        role.metrics.write("event", level="warning", what=event.kind.value, text=text)
        print(f"{event.kind.value}: version {event.version}: {event.why}", flush=True)

    def on_installed(done: Installed) -> None:
        role.metrics.write(
            "swap", cluster=role.part, engine=role.name, version=done.version, pause_s=done.flip.pause_s,
            swap_s=done.flip.swap_s, fetch_s=done.prepare_s, stage_s=done.stage_s, bytes=done.fetched_bytes,
            hops=done.hops, stale_kv_tokens=done.flip.stale_kv_tokens, repaired=done.tries > 1,
        )  # fmt: skip

    def on_outage(error: StoreUnavailable) -> None:
        role.metrics.write("event", level="warning", what="store", text=f"{role.part}: {error}")

    subscriber = Subscriber(mirror, role.run.record.run_id, who=role.part, on_event=on_event)
    try:
        async with EngineServer(engine, role.run.socket(f"engine-{role.part}")), asyncio.TaskGroup() as group:
            group.create_task(_report(role, engine))
            group.create_task(_hold(role, lease, subscriber))
            await follow(
                engine, subscriber, blocks.get("sync", SyncConfig), on_installed=on_installed, on_outage=on_outage
            )
    finally:
        engine.close()


async def first_engine(role: Role, mirror: Mirror) -> EmbeddedEngine:
    """Wait for version 0 (the supervisor bounds how long a run may take to get there) and build what it describes."""
    log = WeightsLog(mirror)
    while log.newest() < 0:
        role.heart.beat()
        await asyncio.sleep(0.3)
    version = await asyncio.to_thread(log.get, 0)
    if version.config is None:
        raise ValueError("version 0 carries no config.json: this weights log was not begun by twinmill's trainer")
    model = from_hf(json.loads(await asyncio.to_thread(mirror.get_ref, version.config)))
    config = role.blocks.get("engine", EngineConfig)
    backend, why = backend_of(config, model)
    print(f"{role.name} computes with {backend}: {why}", flush=True)
    return EmbeddedEngine(model, config, engine_id=role.name, cluster=role.part)


LEASE_POLL_S = 5.0


async def _hold(role: Role, lease: Lease, subscriber: Subscriber) -> None:
    """Keep what this cluster holds from being collected, beside the work. Without a lease it works as well: every object is
    verified, and one that has gone is known to be gone."""
    while True:
        try:
            number = subscriber.number
            if number >= 0 and lease.held != {number}:
                await asyncio.to_thread(lease.take, [number])
            await asyncio.to_thread(lease.beat)
        except (StoreError, PublishError) as error:
            role.metrics.write("event", level="warning", what="lease", text=f"{role.part}: {error}")
        await asyncio.sleep(LEASE_POLL_S)


async def _report(role: Role, engine: EmbeddedEngine) -> None:
    """Beats, and says once a second how busy the engine was."""
    before, at = await engine.state(), time.time()
    while True:
        role.heart.beat()
        await asyncio.sleep(1.0)
        now, t = await engine.state(), time.time()
        busy = min(1.0, (now.busy_s - before.busy_s) / (t - at))
        role.metrics.write(
            "engine", cluster=role.part, engine=role.name, serving=now.serving, in_flight=now.in_flight,
            busy_frac=busy, busy_s=now.busy_s, sampled_tokens=now.sampled_tokens, cpu_s=time.process_time(),
            tokens_per_s=(now.sampled_tokens - before.sampled_tokens) / (t - at),
        )  # fmt: skip
        if busy > 0.02:
            role.metrics.write("busy", lane=f"engine/{role.part}", start=t - busy * (t - at), end=t, what="generate")
        before, at = now, t


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError):
        perform(lambda role: asyncio.run(main(role)))
