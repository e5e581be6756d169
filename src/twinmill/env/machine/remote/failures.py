"""How exceptions cross from the server to the client: by name, each as itself, and whose failure it is with it."""

import errno
import logging
import os

from twinmill.records.machines import Failed

from ..base import (
    InfrastructureError,
    MachineBusyError,
    MachineDestroyed,
    MachineLostError,
    MachineRefused,
    MachineStartError,
)

log = logging.getLogger("twinmill.machines")
CROSSING: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        MachineStartError, MachineRefused, MachineLostError, MachineBusyError, InfrastructureError, MachineDestroyed,
        ValueError,
    )
}  # fmt: skip
"""Besides these an OSError that the machine gave its errno crosses. Anything else is the server's own mistake, and so
infrastructure."""


def failure(error: BaseException) -> Failed:
    """For the other side. A mistake of the server's own is said here in full, and is a lost machine there."""
    if isinstance(error, OSError) and error.errno is not None:
        return Failed(kind="OSError", message=str(error.filename or ""), errno=error.errno)
    name = next((kind.__name__ for kind in type(error).__mro__ if kind in CROSSING.values()), "")
    if not name:
        log.error("a mistake of the server's own", exc_info=error)
        return Failed(kind="MachineLostError", message=f"the server's own mistake: {type(error).__name__}: {error}")
    retry_after_s = error.retry_after_s if isinstance(error, MachineBusyError) else 0.0
    return Failed(kind=name, message=str(error), retry_after_s=retry_after_s)


def exception_of(failed: Failed) -> Exception:
    """The other side's exception, raised here. One of a kind that is not known here is infrastructure."""
    if failed.kind == "MachineBusyError":
        return MachineBusyError(failed.message, retry_after_s=failed.retry_after_s)
    if failed.kind == "OSError":
        number = failed.errno or errno.EIO
        return OSError(number, os.strerror(number), failed.message)
    return CROSSING.get(failed.kind, MachineLostError)(failed.message)
