"""What every record shares."""

from typing import Any, dataclass_transform

from msgspec import Struct, StructMeta, field


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class RecordMeta(StructMeta):
    """msgspec inherits `frozen` but not `kw_only`, and type checkers see neither; here both hold for every record."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        ours = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True, "tag_field": "record", "tag": True}
        return super().__new__(mcls, name, bases, namespace, **{**ours, **options})


class Record(Struct, metaclass=RecordMeta):
    """A frozen, keyword-only, tagged struct. Unknown fields are refused: an old reader never half-reads a new record."""


class Ref(Record):
    """An immutable object in the store. Producer: whoever put it. `digest` is the BLAKE3 hex of its bytes.

    Example: Ref(key="experts/7-0-0.zst", digest="af13...", bytes=912)
    """

    key: str
    digest: str
    bytes: int
