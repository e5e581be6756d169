"""No orphans: a process ends when its supervisor is gone, even by kill -9.

The supervisor holds the write end of one pipe and never writes; every process inherits the read end, its
number in the variable DEATH_FD. However the supervisor ends, the kernel closes the write end and every reader
sees end of file:

    fd = environ.get(death.DEATH_FD)        # in cli/proc, the only reader of the environment
    if fd is not None:
        death.watch_parent(int(fd))

Not covered: a process that forks from the supervisor without exec keeps the write end open (nothing here
does).
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

DEATH_FD = "TWINMILL_DEATH_FD"
"""name of the variable that carries the read end's number"""

_PR_SET_PDEATHSIG = 1


def watch_parent(fd: int, *, grace_s: float = 5.0) -> threading.Thread:
    """Watch the death pipe in a daemon thread. When the supervisor is gone: SIGTERM to this process, so that
    a handler can leave machines and files in order, and after `grace_s` (at once where no handler is set)
    SIGKILL to its group."""
    os.fstat(fd)  # a wrong number is a mistake of the caller and said now, not a death of the parent
    _wake_when_orphaned()
    thread = threading.Thread(target=_wait_for_end, args=(fd, grace_s), name="watch-parent", daemon=True)
    thread.start()
    return thread


def _wait_for_end(fd: int, grace_s: float) -> None:
    while os.read(fd, 1):
        pass
    if callable(signal.getsignal(signal.SIGTERM)):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
    # No handler, or it did not come to an end. Take along the children that share our group.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _wake_when_orphaned() -> None:
    """A stopped process runs no thread, so that its watcher would sleep for ever: have the kernel continue us
    when the parent dies. SIGCONT does nothing to a process that runs, so a false alarm (the signal is tied to
    the thread that started us) costs nothing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
