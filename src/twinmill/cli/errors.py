"""How errors are shown: one line that names what was wrong, where, and what to do. A bug keeps its traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dis import opmap

from rich.console import Console
from rich.text import Text


@contextmanager
def explained() -> Iterator[None]:
    """For commands: a mistake of the user, or a state of the world that we have words for, is one line and exit code 2.
    Ctrl-C is no error, and as silent as in any other program."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if not expected(error):
            raise
        fail(str(error))


def expected(error: BaseException) -> bool:
    """Was it raised on purpose, in words for people? Then it is of a kind of our own, or was raised by our own code."""
    if isinstance(error, FileNotFoundError | PermissionError) or type(error).__module__.startswith("twinmill."):
        return True
    return isinstance(error, ValueError | ImportError | OSError) and _ours(error)


def causes(error: BaseException) -> list[BaseException]:
    """The error itself, or those of which a group of concurrent tasks has died."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for part in error.exceptions for cause in causes(part)]
    return [error]


def fail(text: str, code: int = 2) -> None:
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
    sys.exit(code)


def _ours(error: BaseException) -> bool:
    """Did a raise statement of our own code raise it, rather than a library, or a slip like int("x")?"""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    return "/twinmill/" in code.co_filename and code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]
