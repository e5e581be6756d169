"""What can go wrong with weights.

PublishError
├── Refused      what was asked does not continue this log: shapes, order, another run's weights
├── Collected    a version's objects have been removed, or may be at any moment: take a newer one
├── Broken       a version cannot be rebuilt from what is stored; it is never served
└── BadFile      a file of an open format is damaged, unsafe, or made on another base; nothing of it was used

CodecError (a ValueError) is what decoders raise about bytes; whoever reads a version turns it into Broken.
"""


class CodecError(ValueError):
    """The payload is not what this codec writes."""


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


class BadFile(PublishError):
    def __init__(self, path: object, why: str, tensor: str = "") -> None:
        super().__init__(f"{path}" + (f", tensor {tensor!r}" if tensor else "") + f": {why}")
        self.tensor = tensor
        self.why = why
