"""How errors are shown: one line that names what was wrong, where, and what to do. A bug keeps its traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from twinmill.cli.blocks import ConfigError
from twinmill.env.machine.base import InfrastructureError
from twinmill.store.errors import StoreError

EXPECTED: tuple[type[Exception], ...] = (ConfigError, StoreError, InfrastructureError)


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except EXPECTED as error:
        fail(str(error))
    except (ValueError, FileNotFoundError, PermissionError) as error:
        plain = type(error) in (FileNotFoundError, PermissionError)
        if not plain and not type(error).__module__.startswith("twinmill") and not _ours(error):
            raise
        fail(str(error))


def fail(text: str, code: int = 2) -> None:
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
    sys.exit(code)


def _ours(error: BaseException) -> bool:
    """Was it raised by our own code on purpose (innermost frame in twinmill), rather than inside a library?"""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "/twinmill/" in trace.tb_frame.f_code.co_filename
