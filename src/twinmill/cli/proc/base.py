"""What every process of a run does first: read its run folder, hold the supervisor's death pipe, show its heart.

A role is started as `python -m twinmill.cli.proc.<role> RUN NAME`. It ends by itself (exit 0), by SIGTERM, or when the
supervisor is gone; whatever it was doing is in the logs of the store or is done again.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from twinmill.cli.blocks import Blocks
from twinmill.cli.errors import causes, expected
from twinmill.cli.makers import machine_maker
from twinmill.env.machine.remote.config import RemoteConfig
from twinmill.env.reward.grading import MakeMachine
from twinmill.launch.beat import BEAT_FILE, Heart
from twinmill.launch.death import DEATH_FD, watch_parent
from twinmill.store.blobs import Blobs, StoreConfig, open_blobs
from twinmill.store.metrics import MetricsWriter, TensorboardSink, WandbSink
from twinmill.store.runs import RunFolder


@dataclass(frozen=True)
class Role:
    name: str
    """process name, as the supervisor knows it: "engine/east" """
    run: RunFolder
    blocks: Blocks
    metrics: MetricsWriter
    heart: Heart

    @property
    def part(self) -> str:
        """The cluster's name of "engine/east"."""
        return self.name.rpartition("/")[2]

    def blobs(self) -> Blobs:
        return open_store(self.run, self.blocks)

    def make_machine(self) -> MakeMachine:
        """What makes this run's machines."""
        remote = self.blocks.get("remote", RemoteConfig) if self.blocks.has("remote") else RemoteConfig()
        return machine_maker(self.blocks.get("machine", str), remote)

    def cluster(self) -> int:
        """Index of this role's cluster in the config."""
        names = [c["name"] for c in self.blocks.get("clusters", list)]
        return names.index(self.part)


def open_store(run: RunFolder, blocks: Blocks) -> Blobs:
    config = blocks.get("store", StoreConfig)
    return open_blobs(config.url or run.store_url, config=config)


def enter() -> Role:
    """The beginning of every role's main()."""
    run, name = RunFolder.open(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the supervisor decides
    if fd := os.environ.get(DEATH_FD):
        watch_parent(int(fd))
    blocks = Blocks(run.config_path)
    stem = name.replace("/", "-")
    sinks = tuple(_sink(kind, run, stem) for kind in blocks.get("sinks", list))
    return Role(name, run, blocks, MetricsWriter(run.metrics_path(stem), sinks), Heart(os.environ.get(BEAT_FILE)))


def perform(main: Callable[[Role], object]) -> None:
    """The whole life of a role. An end that we have words for is said in one line, kept as an event and shown in the
    report; a bug keeps its traceback. Either way the exit code is 1, and the supervisor decides what follows."""
    role = enter()
    try:
        main(role)
    except Exception as error:
        found = causes(error)
        for text in dict.fromkeys(str(cause) for cause in found if expected(cause)):
            role.metrics.write("event", level="error", what="error", text=f"{role.name}: {text}")
            print(f"error: {text}", flush=True)
        if not all(map(expected, found)):
            raise
        sys.exit(1)


def _sink(kind: str, run: RunFolder, stem: str):  # type: ignore[no-untyped-def]
    made = {
        "tensorboard": lambda: TensorboardSink(run.path / "tensorboard" / stem),
        "wandb": lambda: WandbSink(run.path / "wandb", f"{run.path.name}-{stem}"),
    }
    return made[kind]()


def _leave(_: int, __: FrameType | None) -> None:
    """SIGTERM unwinds the stack, so that machines are closed and files ended."""
    raise SystemExit(143)
