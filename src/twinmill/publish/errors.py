"""What can go wrong with weights.

PublishError
├── Refused      what was asked does not continue this log: shapes, order, another run's weights
├── Collected    a version's objects have been removed, or may be at any moment: take a newer one
└── Broken       a version cannot be rebuilt from what is stored; it is never served
"""


class PublishError(Exception):
    """Base of both. The message says what was wrong, where, and what to do."""


class Refused(PublishError):
    pass


class Collected(PublishError):
    pass


class Broken(PublishError):
    def __init__(self, version: int, why: str, tensor: str = "") -> None:
        super().__init__(f"version {version}" + (f", tensor {tensor!r}" if tensor else "") + f": {why}")
        self.version = version
        self.tensor = tensor
        self.why = why
