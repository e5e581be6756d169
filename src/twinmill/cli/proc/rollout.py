"""Process role `rollout/<cluster>`: the first mill of one cluster. Torch-free; its children are the machines."""

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from twinmill.batch.window import Window, may_start
from twinmill.data.curriculum import task_of
from twinmill.data.render import open_renderer
from twinmill.data.tasks.base import IMPOSSIBLE, open_taskset
from twinmill.engine.client import EngineClient
from twinmill.env.audit import AuditConfig, Auditor, PlantedSet
from twinmill.env.harness.loop import HarnessConfig
from twinmill.env.machine.pool.local import Pool, elsewhere, memory
from twinmill.env.machine.pool.scheduler import PoolConfig
from twinmill.rollout.mill import Mill, RolloutConfig, no_audit
from twinmill.rollout.play import Player
from twinmill.store.ledger import EpisodesLog

from .base import Role, perform


async def rollout(role: Role, make_player: Callable[..., Player] = Player) -> None:
    """`make_player`: called with Player's arguments; benchmarks have players of their own."""
    blocks = role.blocks
    window = blocks.get("rl.window", Window)
    slots = blocks.get("rl.steps", int) * window.groups_per_step
    seed = blocks.get("seed", int)
    taskset = open_taskset(blocks.get("taskset", str))
    ids = taskset.ids(blocks.get("split", str))
    audit = blocks.get("audit", AuditConfig) if blocks.has("audit") else None
    canaries = taskset.ids(IMPOSSIBLE) if audit is not None and audit.canary_every else ()
    if audit is not None and audit.honeypots:
        taskset = PlantedSet(taskset, seed)
    renderer = open_renderer(blocks.get("model", str))

    def task_id_of(slot: int) -> str:
        """Of slot `slot`: every so many-th is a canary, a task whose right reward is 0."""
        if audit is not None and canaries and slot % audit.canary_every == audit.canary_every - 1:
            return task_of(slot, canaries, seed)
        return task_of(slot, ids, seed)

    config = blocks.get("rollout", RolloutConfig)
    blobs = role.blobs()
    tally = Tally(role)
    where = elsewhere if blocks.get("machine", str) == "remote" else memory
    pool = Pool(role.make_machine(), role.run.path / "machines", PoolConfig(machines=config.machines), where)
    async with EngineClient(role.run.socket(f"engine-{role.part}")) as engine:
        player = make_player(
            engine=engine,
            renderer=renderer,
            make_machine=pool.machine,
            harness=blocks.get("harness", HarnessConfig),
            cluster=role.part,
            blobs=blobs,
        )
        mill = Mill(
            cluster=role.part,
            log=EpisodesLog(blobs),
            engine=engine,
            taskset=taskset,
            task_of=task_id_of,
            may_start=lambda slot, serving: may_start(slot, window.groups_per_step, window.window, serving),
            play=player,
            config=config,
            seed=seed,
            slots=slots,
            note=tally.note,
            audit=no_audit if audit is None else Auditor(audit, renderer.decode),
        )
        running = asyncio.create_task(mill.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        heart = asyncio.create_task(_beat(role, tally))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await running
        finally:
            heart.cancel()
            await pool.close()


class Tally:
    """Passes the mill's notes on to the metrics, and adds them up for the board."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._rewards: deque[float] = deque(maxlen=128)
        self._open: set[int] = set()
        self.totals = dict.fromkeys(("episodes", "infra_failures", "lost", "hacks", "machine_s", "engine_wait_s"), 0.0)

    def note(self, kind: str, **fields: Any) -> None:
        self._role.metrics.write(kind, **fields)
        if kind == "slot":
            (self._open.add if fields["event"] == "admit" else self._open.discard)(fields["slot"])
        if kind == "attempt":
            self.totals["episodes"] += 1
            self.totals["machine_s"] += fields["machine_s"]
            self.totals["engine_wait_s"] += fields["engine_s"]
            self.totals["infra_failures"] += fields["failure"] is not None
            self.totals["lost"] += not fields["finished"]
            self.totals["hacks"] += bool(fields["hacks"])
            if fields["reward"] is not None:
                self._rewards.append(fields["reward"])
            self._role.metrics.write(
                "busy", lane=self._role.name, start=fields["start"], end=fields["end"], what="attempt"
            )

    def show(self) -> None:
        mean = sum(self._rewards) / len(self._rewards) if self._rewards else None
        whole = {name: int(self.totals[name]) for name in ("episodes", "infra_failures", "lost", "hacks")}
        self._role.metrics.write(
            "rollout",
            cluster=self._role.part,
            open_slots=len(self._open),
            reward_mean=mean,
            **{**self.totals, **whole},
        )


async def _beat(role: Role, tally: Tally) -> None:
    """From the loop itself: a loop that is stuck does not beat."""
    started = time.process_time(), time.monotonic()
    while True:
        role.heart.beat()
        await asyncio.sleep(1.0)
        tally.show()
        now = time.process_time(), time.monotonic()
        role.metrics.write(
            "cpu", lane=role.name, cpu_s=round(now[0] - started[0], 3), wall_s=round(now[1] - started[1], 3)
        )


if __name__ == "__main__":
    perform(lambda role: asyncio.run(rollout(role)))
