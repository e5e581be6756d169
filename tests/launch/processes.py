"""Tiny real processes for the launch tests, and one way to run a supervisor that cannot hang a test."""

import os
import sys
import time
from pathlib import Path

from twinmill.launch.outcome import Notice, Outcome, What
from twinmill.launch.spec import ProcessSpec, Restart
from twinmill.launch.supervisor import Supervisor

QUICK = Restart(attempts=2, within_s=30, backoff_s=0.05)


def spec(name: str, code: str, **settings: object) -> ProcessSpec:
    """A process that runs `code` in a bare interpreter."""
    return ProcessSpec(name=name, argv=(sys.executable, "-c", code), **{"grace_s": 2.0, **settings})


class Run:
    """Runs a supervisor to its end, or asks it to stop after `limit_s`; keeps all it said."""

    def __init__(self, specs: list[ProcessSpec], folder: Path, *, main: str = "main", limit_s: float = 20, **settings):
        self.lines: list[tuple[str, str]] = []
        self.notices: list[Notice] = []
        self.folder = folder
        until = time.monotonic() + limit_s

        def tick() -> None:
            if time.monotonic() > until:
                self.supervisor.request_stop("test limit")
            on_tick = settings.get("on_tick")
            if on_tick:
                on_tick(self)

        self.supervisor = Supervisor(
            specs,
            main=main,
            log_dir=folder,
            environment=dict(os.environ),
            on_line=lambda name, line: self.lines.append((name, line)),
            on_notice=self.notices.append,
            on_tick=tick,
            **{key: value for key, value in settings.items() if key != "on_tick"},
        )
        self.outcome: Outcome = self.supervisor.run()

    def of(self, name: str) -> list[str]:
        return [line for who, line in self.lines if who == name]

    def said(self, what: What, name: str | None = None) -> list[Notice]:
        return [n for n in self.notices if n.what is what and name in (None, n.name)]


def alive(pid: int) -> bool:
    """False for a zombie too: pid 1 of a container may be slow to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: list[int], within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def pids_in(folder: Path, count: int, within_s: float = 10.0) -> list[int]:
    """The numbers that processes have left in files `*.pid`, once there are `count`."""
    until = time.monotonic() + within_s
    while True:
        found = [int(text) for path in sorted(folder.glob("*.pid")) if (text := path.read_text())]
        if len(found) >= count:
            return found
        assert time.monotonic() < until, f"only {found} of {count} processes came up"
        time.sleep(0.02)
