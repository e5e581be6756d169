"""What can go wrong in a store.

StoreError
├── NotFound          no object at this key
├── Corrupt           an object is there, but its bytes are not what was written
├── StoreUnavailable  no answer, or only server errors, within the deadline
│   ├── StoreFull     no room left to write
│   └── TransferFailed  one of many requests was tried as often, or for as long, as its transfer may
├── StoreRefused      the store answered no: permission, credentials, bucket, a key it cannot hold
├── LaneTaken         another writer wrote where this one was to write
"""


class StoreError(Exception):
    """Base of all of them. The message says what was wrong, where, and what to do."""


class NotFound(StoreError):
    def __init__(self, key: str, url: str = "") -> None:
        super().__init__(f"no object at {key!r}" + (f" in {url}" if url else ""))
        self.key = key


class Corrupt(StoreError):
    """Never served, never skipped: the reader decides whether there is another copy."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"object {key!r} is damaged: {why}")
        self.key = key
        self.why = why


class StoreUnavailable(StoreError):
    pass


class StoreFull(StoreUnavailable):
    pass


class TransferFailed(StoreUnavailable):
    """Names what did not cross, how often it was tried, and the last cause. What has crossed is kept where it is."""

    def __init__(self, doing: str, key: str, url: str, attempts: int, cause: str) -> None:
        super().__init__(
            f"could not {doing} {key!r} in {url}: {attempts} {'attempt' if attempts == 1 else 'attempts'}, the last: "
            f"{cause}; check the store and the link, then start again: what has crossed is not sent twice"
        )
        self.key = key
        self.attempts = attempts
        self.cause = cause


class StoreRefused(StoreError):
    pass


class LaneTaken(StoreError):
    pass
