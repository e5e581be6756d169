"""One started process: its pipe, its log, its heartbeat, its end. Policy lives in supervisor.py."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .beat import BEAT_FILE, STACKS, pulse
from .death import DEATH_FD
from .family import catches, kill_family, posture
from .spec import ProcessSpec, log_stem

_LONGEST = 64 * 1024  # bytes of one line; a process that never ends a line must not fill us up
_STILL_S = 1.0  # an unfinished line that stands still for so long is shown as far as it goes
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)|[\x00-\x08\x0b-\x1f\x7f]")


class Child:
    """Standard output and error share one pipe, so that their order is what the process wrote. The log gets
    the bytes as they came; what is shown is decoded line by line, invalid UTF-8 replaced and terminal control
    taken out."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        environment: Mapping[str, str],
        log_dir: Path,
        death_fd: int,
        keep_fds: tuple[int, ...] = (),
        pulse_of: Callable[[], object] | None = None,
        life: int = 1,
    ) -> None:
        """Starts it. OSError: it could not be started. `life` counts its starts from 1."""
        self.spec = spec
        beat = log_dir.absolute() / f"{log_stem(spec.name)}.beat"
        beat.unlink(missing_ok=True)
        self._mark = f"{BEAT_FILE}={beat}"
        kill_family(None, self._mark)  # what a supervisor that was killed may have left of an earlier life
        self._pulse = pulse_of or (lambda: pulse(beat))
        self._seen = self._pulse()
        self._lines = LineBuffer()
        self._log = (log_dir / f"{log_stem(spec.name)}.log").open("ab", buffering=0)
        marks = {DEATH_FD: str(death_fd), BEAT_FILE: str(beat)}
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.fd = reader
        self.closed_output = False
        try:
            self._process = subprocess.Popen(
                spec.argv,
                env={**environment, **spec.thread_env(), **spec.env, **marks},
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,  # a terminal's Ctrl-C reaches the supervisor alone
                pass_fds=(death_fd, *keep_fds),
            )
        except BaseException:
            self._shut()
            raise
        finally:
            os.close(writer)
        self.pid = self._process.pid
        self.started = self.moved = time.monotonic()
        self._log.write(f"=== start {life}, pid {self.pid} ===\n".encode())

    def read(self) -> Iterator[str]:
        """Every line that has arrived. Never waits; called when the pipe is readable, and once after the
        end."""
        while True:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            if not data:
                self.closed_output = True
                break
            self._log.write(data)
            yield from self._lines.feed(data)

    def read_still(self, now: float) -> Iterator[str]:
        """An unfinished line that stands still."""
        if now - self._lines.fed > _STILL_S:
            yield from self._lines.flush()

    def silent_s(self, now: float) -> float:
        """Seconds by which it is beyond its heartbeat's deadline; 0 or less = it lives, or is not watched."""
        if self.spec.beat_s <= 0:
            return 0.0
        seen = self._pulse()
        if seen != self._seen:
            self._seen, self.moved = seen, now
        first = self.moved == self.started
        allowed = max(self.spec.beat_s, self.spec.start_s) if first else self.spec.beat_s
        return now - self.moved - allowed

    def posture(self) -> str:
        """What the kernel says it is doing. Example: "stopped"."""
        return posture(self.pid)

    def last_words(self) -> list[str]:
        """Ask a hanging process where it hangs (Heart dumps all stacks on that signal), and wait a moment for
        it."""
        if catches(self.pid, STACKS):  # by default the signal would kill it, and orphan its children
            os.kill(self.pid, STACKS)
            time.sleep(0.3)
        return [*self.read(), *self._lines.flush()]

    def pardon(self, seconds: float) -> None:
        """The supervisor itself stood still (Ctrl-Z, suspended laptop): that time does not count as
        silence."""
        self.started += seconds
        self.moved += seconds

    def ended(self) -> bool:
        """True once it has ended. It stays a zombie until `bury`, so that its number and group stay its
        own."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def ask_to_end(self) -> None:
        """SIGTERM to the process alone: ending its own children in order is its own business while grace
        lasts."""
        # Not Popen.send_signal: it reaps a process that has ended, and its family would be out of reach.
        os.kill(self.pid, signal.SIGTERM)
        os.kill(self.pid, signal.SIGCONT)

    def bury(self) -> tuple[int | None, list[str], set[int]]:
        """Kill what is left of its family, reap it, close its files. Returns (exit code as subprocess has it,
        or None if it does not even die by SIGKILL; the last lines; pids that are still there)."""
        left = kill_family(self.pid, self._mark)
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = None
        tail = [*self.read(), *self._lines.flush()]
        self._shut()
        return code, tail, left

    def _shut(self) -> None:
        os.close(self.fd)
        self._log.close()


class LineBuffer:
    """Bytes in any cut -> whole lines of text."""

    def __init__(self) -> None:
        self._rest = b""
        self.fed = 0.0

    def feed(self, data: bytes) -> list[str]:
        self.fed = time.monotonic()
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > _LONGEST:
            whole.append(self._rest[:_LONGEST])
            self._rest = self._rest[_LONGEST:]
        return [_shown(line) for line in whole]

    def flush(self) -> list[str]:
        rest, self._rest = self._rest, b""
        return [_shown(rest)] if rest else []


def _shown(line: bytes) -> str:
    """What a terminal would show of it at the end: after the last carriage return, without control
    sequences."""
    text = line.decode("utf-8", errors="replace").rstrip("\r").rpartition("\r")[2]
    return _ESCAPE.sub("", text)


def how_it_ended(code: int | None) -> str:
    """Example: "exit 3", "killed by SIGKILL (out of memory, or by hand)"."""
    if code is None:
        return "does not die even by SIGKILL (stuck in the kernel)"
    if code >= 0:
        return f"exit {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (" (out of memory, or by hand)" if name == "SIGKILL" else "")
