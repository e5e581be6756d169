"""Single blocks of a run's config.json, for processes that must not import torch to read the rest."""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class ConfigError(ValueError):
    """One line that names the key and the mend."""


class Blocks:
    """config.json of a run that `cli.config` has checked as a whole before anything was started."""

    def __init__(self, path: Path | str) -> None:
        self._raw: dict[str, Any] = json.loads(Path(path).read_bytes())

    def get(self, key: str, kind: type[T]) -> T:
        """The block or value at a dotted key."""
        node: Any = self._raw
        for part in key.split("."):
            node = node[int(part)] if isinstance(node, list) else node[part]
        return msgspec.convert(node, kind)

    def has(self, key: str) -> bool:
        return self._raw.get(key) is not None
