"""A process says that it still moves.

The supervisor names a file in the variable BEAT_FILE; touching it is the heartbeat. The supervisor looks
whether the file changed, and measures time on its own clock, so that neither clock steps nor a slow disk look
like a hang.
"""

import faulthandler
import signal
import threading
import time
from pathlib import Path

BEAT_FILE = "TWINMILL_BEAT_FILE"
"""name of the variable that carries the path"""

STACKS = signal.SIGUSR1
"""on this signal a process with a Heart writes the stacks of all its threads to stderr: sent before a hang is
killed"""


class Heart:
    """Call `beat()` wherever the process's own loop comes round: then a loop that is stuck is seen as well as
    a process that is stopped. Cheap enough for inner loops (it touches the file at most five times a
    second)."""

    def __init__(self, path: str | Path | None) -> None:
        """None = started by hand, nobody listens: `beat` does nothing."""
        self._path = None if path is None else Path(path)
        self._next = 0.0
        if self._path is not None:
            faulthandler.register(STACKS, all_threads=True)

    def beat(self) -> None:
        now = time.monotonic()
        if self._path is None or now < self._next:
            return
        self._next = now + 0.2
        self._path.touch()

    def start(self, interval_s: float = 1.0) -> threading.Event:
        """Beat from a thread of its own until the returned event is set. This sees a process that is stopped
        or whose interpreter is stuck in native code, not a main loop that waits for ever: prefer `beat()`."""
        stop = threading.Event()

        def loop() -> None:
            self.beat()
            while not stop.wait(interval_s):
                self.beat()

        threading.Thread(target=loop, name="heart", daemon=True).start()
        return stop


def pulse(path: Path) -> int | None:
    """Something that changes with every beat; None = no beat yet."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
