"""A real run, as a user starts it, with hands on everything: its processes, its store, what it left behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from twinmill.env.machine.leftovers import leftovers
from twinmill.publish.manifest import WeightsLog
from twinmill.records.episodes import Attempt
from twinmill.store.audit import Audit, audit
from twinmill.store.backends import StoreConfig
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.ledger import EpisodesLog, finished
from twinmill.store.metrics import read_metrics
from twinmill.store.runs import RunFolder

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "recipes" / "smoke.py"
PATIENCE_S = 400.0
"""of every wait here: far beyond what an idle machine needs, because the machine may not be idle"""
SILENCE = {"evaluation": "null", "midtrain": "null", "sft": "null", "experts": "null"}
"""overrides that leave RL alone of the smoke recipe"""
CALM = {"rl.poll_s": 0.3}
"""so that a step is not over before a test has looked"""


def twinmill(*args: object, stdin: str = "", cwd: Path = ROOT, within_s: float = PATIENCE_S):  # type: ignore[no-untyped-def]
    """Run a command to its end, as a user with a wide terminal does."""
    command = [sys.executable, "-m", "twinmill.cli.main", *map(str, args)]
    return subprocess.run(
        command, cwd=cwd, env=_environment(), input=stdin, capture_output=True, text=True, timeout=within_s
    )


def _environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", "TERM": "dumb", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def alive(pid: int) -> bool:
    """False for a zombie too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class RealRun:
    """One run below a root of its own, over all its lives. Use as a context: nothing outlives the block."""

    def __init__(self, root: Path, model: Path, store: StoreConfig | None = None) -> None:
        self.root, self.model, self._store = root, model, store
        self.root.mkdir(parents=True, exist_ok=True)
        self.life: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self._mounts = _mounts()

    # ---- lives

    def start(
        self, command: str = "run", *, recipe: Path = SMOKE, whole: bool = False, **overrides: object
    ) -> "RealRun":
        """`twinmill run recipes/smoke.py`, RL alone unless `whole`; keys with __ for a dot: rl__steps=4."""
        given = CALM | ({} if whole else SILENCE)
        given |= {key.replace("__", "."): _spelled(value) for key, value in overrides.items()}
        words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        return self._spawn(command, recipe, "--root", self.root, "--set", f"model={self.model}", *words)

    def resume(self) -> "RealRun":
        return self._spawn("run", "--resume", self.folder.path)

    def _spawn(self, *args: object) -> "RealRun":
        self.lives += 1
        with self.output.open("wb") as out:
            command = [sys.executable, "-m", "twinmill.cli.main", *map(str, args)]
            self.life = subprocess.Popen(
                command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        return self

    @property
    def output(self) -> Path:
        """What this life has printed."""
        return self.root / f"life-{self.lives}.txt"

    def wait(self, until: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
        """Until `until()` is true; fails when the run ends before that."""
        deadline = time.monotonic() + within_s
        while not until():
            ended = self.life is not None and self.life.poll() is not None
            if ended and not until():
                raise AssertionError(f"the run ended ({self.life.returncode}) before {what}:\n{self.said()[-4000:]}")
            assert time.monotonic() < deadline, f"{what} did not come within {within_s} s:\n{self.said()[-4000:]}"
            time.sleep(0.03)

    def end(self, within_s: float = PATIENCE_S) -> int:
        """The exit code of this life."""
        assert self.life is not None
        return self.life.wait(timeout=within_s)

    def done(self) -> None:
        """This life must end well."""
        code = self.end()
        assert code == 0, f"exit code {code}:\n{self.said()[-6000:]}"

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    # ---- processes

    def pid(self, name: str) -> int | None:
        """Of a process of the run that lives now: "trainer", "engine/east", "supervisor"."""
        if name == "supervisor":
            return self.life.pid if self.life is not None and self.life.poll() is None else None
        words = f"\0{self.folder.path}\0{name}\0".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes()
                if b"twinmill.cli.proc." in line and line.endswith(words) and alive(int(folder.name)):
                    return int(folder.name)
        return None

    def signal(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a process, once it is there. Returns its pid."""
        self.wait(lambda: self.pid(name), f"a process {name}")
        pid = self.pid(name)
        assert pid is not None
        os.kill(pid, number)
        return pid

    def every_pid(self) -> list[int]:
        """Of all processes that the supervisors of all lives have started, as the logs tell."""
        found = []
        for log in (self.folder.path / "logs").glob("*.log"):
            found += [int(pid) for pid in re.findall(rb"=== start \d+, pid (\d+) ===", log.read_bytes())]
        return found

    def strays(self) -> list[str]:
        """What this run has left on the machine: processes by folder or mark, machines, mounts, control groups."""
        mark, found = str(self.root).encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            if int(folder.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if not alive(int(folder.name)):
                    continue
                if mark in (folder / "cmdline").read_bytes() or mark in (folder / "environ").read_bytes():
                    found.append(f"process {folder.name}: {(folder / 'cmdline').read_bytes()!r}")
        for pid in self.every_pid():
            found += leftovers(pid)
        return found + sorted(_mounts() - self._mounts)

    def no_strays(self, within_s: float = 30.0, *, groups: bool = True) -> None:
        """Ends that are on their way are waited for. groups False: after a kill of the supervisor itself, empty control
        groups wait for the run's next life to be removed."""
        deadline = time.monotonic() + within_s
        while found := [stray for stray in self.strays() if groups or not stray.startswith("control group")]:
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    # ---- what it wrote

    @property
    def started(self) -> bool:
        return any(self.root.glob("*/run.json"))

    @cached_property
    def folder(self) -> RunFolder:
        self.wait(lambda: self.started, "a run folder")
        return RunFolder.latest(self.root)

    @cached_property
    def blobs(self) -> Blobs:
        if self._store is not None:
            return open_blobs(self._store.url, config=self._store)
        return open_blobs(self.folder.store_url)

    @property
    def weights(self) -> WeightsLog:
        return WeightsLog(self.blobs)

    @property
    def newest(self) -> int:
        """Number of the newest version; -1 = none yet."""
        return self.weights.newest()

    def closed(self, slots: int) -> bool:
        """Whether all slots below `slots` are closed."""
        return len(EpisodesLog(self.blobs).closed_slots()) >= slots

    def digests(self) -> list[str]:
        log = self.weights
        return [log.get(number).model_digest for number in range(log.newest() + 1)]

    def attempts(self) -> list[Attempt]:
        log = EpisodesLog(self.blobs)
        return [attempt for lane in log.lanes() for _, attempt in log.tail(lane)]

    def metrics(self, kind: str) -> list[dict[str, Any]]:
        return read_metrics(self.folder.metrics, kind)

    def events(self) -> list[str]:
        """What the run has shown of what went wrong: "<what>: <text>"."""
        return [f"{event['what']}: {event['text']}" for event in self.metrics("event")]

    def says(self, pattern: str) -> bool:
        """Whether an event that matches has been shown."""
        return any(re.search(pattern, event) for event in self.events())

    def log_of(self, name: str) -> str:
        return self.folder.log_path(name.replace("/", "-")).read_text(errors="replace")

    def config(self) -> dict[str, Any]:
        return json.loads(self.folder.config_path.read_bytes())

    def whole(self, window: int, slots: int) -> Audit:
        """The independent audit finds nothing, every slot was trained once, and no finished attempt was run again."""
        found = audit(self.blobs, window=window, objects=True)
        assert found.problems == ()
        assert (found.trained, found.open, found.untrained, found.dropped) == (slots, (), (), {})
        kept = [attempt for attempt in self.attempts() if finished(attempt)]
        assert len(kept) == found.attempts - found.unused
        assert len({(attempt.slot, attempt.attempt) for attempt in kept}) == len(kept)
        return found

    # ---- context

    def __enter__(self) -> "RealRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self.life is not None and self.life.poll() is None:
            self.life.kill()
            self.life.wait()
        if self.started:
            pids = self.every_pid()
            for pid in pids:
                if alive(pid) and str(self.root).encode() in _environ(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _mounts() -> set[str]:
    """Mounts of the host that a sandbox might have made."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return {f"mount {line}" for line in lines if line.split()[2] in ("tmpfs", "overlay", "proc", "devpts", "mqueue")}


def _spelled(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
