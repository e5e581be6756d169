"""What a store's client throws, in our words: see the tree in errors.py."""

from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

from .errors import NotFound, StoreFull, StoreRefused, StoreUnavailable

_FULL = ("os error 28", "os error 122", "os error 27")
"""no space left on device, disk quota exceeded, file too large"""


@contextmanager
def in_our_words(doing: str, key: str, url: str, within: str = "") -> Iterator[None]:
    """Translate the client's errors while `doing` something to `key`. AlreadyExistsError and FileExistsError pass.

    within: " within its deadline of 30 s", for a store that did not answer; "" = the caller bounds the time.
    """
    where = f"could not {doing} {key!r} in {url}"
    try:
        yield
    except (AlreadyExistsError, FileExistsError):
        raise
    except FileNotFoundError as error:
        if doing == "write":
            raise StoreRefused(f"{where}: there is no such bucket or folder; make it first") from error
        raise NotFound(key, url) from error
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise StoreRefused(f"{where}: {_first_line(error)}; check credentials and rights") from error
    except (BaseError, OSError) as error:
        text = str(error)
        if any(code in text for code in _FULL) or getattr(error, "errno", None) in (27, 28, 122):
            raise StoreFull(f"{where}: no room left ({_first_line(error)}); free some and resume the run") from error
        raise StoreUnavailable(
            f"{where}{within}: {_first_line(error)}; check that the store is up and reachable, then resume the run"
        ) from error
    except ValueError as error:
        raise StoreRefused(f"{where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
