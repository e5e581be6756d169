"""What can go wrong in a store.

StoreError
├── NotFound          no object at this key
├── Corrupt           an object is there, but its bytes are not what was written
├── StoreUnavailable  no answer, or only server errors, within the deadline
│   └── StoreFull     no room left to write
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


class StoreRefused(StoreError):
    pass


class LaneTaken(StoreError):
    pass
