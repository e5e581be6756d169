"""A run is free when the last process of its last life is gone.

An flock belongs to the open file, and the processes that a supervisor starts inherit the file. So the kernel
gives it back exactly when the supervisor *and* every process it started have ended, in whatever way: a resume
can neither start a second trainer beside one that is still dying, nor be blocked by a stale file.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType


class RunHeld(RuntimeError):
    """Someone still runs here. The message names the holder and the mend."""


class RunLock:
    """with RunLock(folder / "lock", wait_s=15) as lock: Supervisor(..., keep_fds=(lock.fd,)).run()"""

    def __init__(self, path: str | Path, *, wait_s: float = 15.0) -> None:
        """`wait_s`: how long to wait for the processes of an earlier life to end; 0 = not at all."""
        self.path = Path(path)
        self.wait_s = wait_s
        self.fd = -1

    def __enter__(self) -> "RunLock":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        until = time.monotonic() + self.wait_s
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    holder = self.path.read_text(errors="replace").strip() or "unknown"
                    os.close(self.fd)
                    raise RunHeld(
                        f"{self.path.parent} is in use: supervisor pid {holder}, or a process it started, "
                        "still runs; stop it (Ctrl-C there, or kill that pid) and try again"
                    ) from None
                time.sleep(0.05)
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes our copy. No unlock: a process that would not die keeps the run held, which is the point."""
        with contextlib.suppress(OSError):
            os.close(self.fd)
