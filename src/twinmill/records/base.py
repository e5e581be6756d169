"""What every record shares."""

from msgspec import Struct


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="record", tag=True):
    """A frozen, tagged struct. Unknown fields are refused: an old reader never half-reads a new record."""


class Ref(Record):
    """An immutable object in the store. Producer: whoever put it. `digest` is the BLAKE3 hex of its bytes.

    Example: Ref(key="experts/7-0-0.zst", digest="af13...", bytes=912)
    """

    key: str
    digest: str
    bytes: int
