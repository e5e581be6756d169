"""A whole run in one process, to be killed at any named write: two mills, a real trainer, no engine and no machines.

    python -m tests.cases.crash_world FOLDER SEED [PART PARTS]

Imports once, then forks a child for every life, so that each life starts as a fresh process would. Prints one JSON line
per round. Episodes are a pure function of slot, attempt and version; with window 0 the final digest is one, too.
"""

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec

from twinmill.batch.window import Window, may_start
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.publish import PublishConfig
from twinmill.publish.manifest import WeightsLog
from twinmill.records.engines import EngineState, Phase
from twinmill.records.runs import RunRecord
from twinmill.rollout.mill import Mill, RolloutConfig
from twinmill.store import blobs as store_blobs
from twinmill.store.audit import audit
from twinmill.store.blobs import Blobs
from twinmill.store.ledger import EpisodesLog
from twinmill.store.runs import RunFolder
from twinmill.train.checkpoint import Checkpoints
from twinmill.train.optimizer import AdamW
from twinmill.train.rl import Ports, Rl, rl, rl_trainer
from twinmill.train.sources.groups import Preparation
from twinmill.train.versions import RunVersions

from ..train.toys import tiny, toy_attempt

REAL = TinyRepo(0).load("tinyrepo/0/train/1")
STEPS, GROUPS, SIZE = 4, 2, 3
LIFE_S = 60


class FollowingEngine:
    """Serves whatever the weights log has: what the mill needs to know of an engine, without one."""

    def __init__(self, blobs: Blobs) -> None:
        self._log = WeightsLog(blobs)

    async def state(self) -> EngineState:
        serving = self._log.newest()
        return EngineState(
            engine_id="e", cluster="c", serving=serving, target=serving, phase=Phase.READY, in_flight=0, beat=0.0
        )


class ToyTasks:
    name = "toy"

    def load(self, task_id: str):
        return msgspec.structs.replace(REAL, id=task_id)


def train(folder: Path, window: int) -> None:
    run, blobs = RunFolder.open(folder), store_blobs.open_blobs(str(folder / "store"))
    config = Rl(
        steps=STEPS,
        window=Window(window=window, groups_per_step=GROUPS),
        preparation=Preparation(replay=False),
        optimizer=AdamW(lr=1e-3),
        checkpoint_every=2,
        poll_s=0.002,
        starved_s=30,
    )
    ports = Ports(
        episodes=EpisodesLog(blobs),
        versions=RunVersions(blobs, "crash", b"{}", None, PublishConfig()),
        checkpoints=Checkpoints(run),
        load_experts=lambda ref: None,
        emit=lambda report: None,
        reject=lambda rejected: None,
    )
    rl(config, rl_trainer(config, tiny()), ports)


def mill(folder: Path, cluster: str, window: int) -> Mill:
    blobs = store_blobs.open_blobs(str(folder / "store"))
    engine = FollowingEngine(blobs)

    async def play(task, *, episode_id, group_id, attempt, seed):
        slot = int(group_id)
        await asyncio.sleep(random.Random(seed).random() * 0.004)
        version = max(slot // GROUPS - window, 0) if window == 0 else (await engine.state()).serving
        toy = toy_attempt(slot, attempt, version)
        return toy.episode, toy.verdict

    return Mill(
        cluster=cluster,
        log=EpisodesLog(blobs),
        engine=engine,
        taskset=ToyTasks(),
        task_of=lambda slot: f"toy/{slot}",
        may_start=lambda slot, serving: may_start(slot, GROUPS, window, serving),
        play=play,
        config=RolloutConfig(groups_in_flight=2, group_size=SIZE, machines=4, poll_s=0.002, beat_s=0.2, lost_s=0),
        seed=1,
        slots=STEPS * GROUPS,
    )


def live(folder: Path, window: int) -> None:
    """One life: everything at once, until all is trained."""
    thread = threading.Thread(target=train, args=(folder, window), daemon=True)
    thread.start()

    async def mills() -> None:
        await asyncio.gather(*(mill(folder, cluster, window).run() for cluster in ("a", "b")))

    asyncio.run(mills())
    thread.join(LIFE_S)
    if thread.is_alive() or WeightsLog(store_blobs.open_blobs(str(folder / "store"))).newest() != STEPS:
        raise SystemExit(3)


def counting(counts: Counter):
    return lambda point: counts.update([point])


def dying(point: str, at: int):
    seen = Counter()

    def hook(name: str) -> None:
        seen[name] += 1
        if name == point and seen[name] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def in_child(work) -> int:
    """Run `work` in a forked child; its wait status. A child that does not end in time is killed and counts as 99."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + LIFE_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 99


def new_run(root: Path, name: str) -> Path:
    record = RunRecord(
        run_id=name, recipe="", config_digest="", revision="", seed=0, started=0.0, twinmill="0", python="3"
    )
    return RunFolder.create(root, record, b"{}").path


def judge(folder: Path, window: int, out: Path) -> None:
    blobs = store_blobs.open_blobs(str(folder / "store"))
    found = audit(blobs, window=window, objects=True)
    newest = WeightsLog(blobs).latest()
    out.write_text(
        json.dumps(
            {
                "problems": found.problems,
                "trained": found.trained,
                "dropped": found.dropped,
                "untrained": found.untrained,
                "open": found.open,
                "newest": found.newest,
                "digest": newest.model_digest if newest else "",
            }
        )
    )


def round_(root: Path, name: str, window: int, deaths: list[tuple[str, int]]) -> dict:
    folder = new_run(root, name)
    codes = []
    for point, at in deaths:

        def life(point=point, at=at) -> None:
            store_blobs.crash_points = dying(point, at)
            live(folder, window)

        codes.append(in_child(life))
    codes.append(in_child(lambda: live(folder, window)))
    out = folder / "audit.json"
    judged = in_child(lambda: judge(folder, window, out))
    found = json.loads(out.read_text()) if judged == 0 else {"problems": ["the audit itself failed"]}
    return {"name": name, "deaths": deaths, "codes": codes, **found}


def main() -> None:
    root, seed, part, parts = Path(sys.argv[1]), *map(int, [*sys.argv[2:], 0, 1][:3])
    root.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    counts_file = root / "counts.json"

    def record() -> None:
        counts: Counter = Counter()
        store_blobs.crash_points = counting(counts)
        live(new_run(root, "calm"), 1)
        counts_file.write_text(json.dumps(counts))

    assert in_child(record) == 0, "the undisturbed run failed"
    counts = json.loads(counts_file.read_text())
    print(json.dumps({"points": counts}), flush=True)
    for i, point in enumerate(sorted(counts)):
        window = i % 2
        other = rng.choice(sorted(counts))
        deaths = [(point, rng.randint(1, max(1, counts[point] // 2))), (other, 1 + rng.randrange(2))]
        if i % parts == part:
            print(json.dumps(round_(root, f"round-{i}", window, deaths)), flush=True)


if __name__ == "__main__":
    main()
