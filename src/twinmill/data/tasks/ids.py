"""Ids of generated tasks: a million of them without a million strings."""

from collections.abc import Sequence


class Numbered(Sequence[str]):
    """prefix0, prefix1, ..."""

    def __init__(self, prefix: str, count: int) -> None:
        self._prefix, self._count = prefix, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(self._count))]
        if not -self._count <= i < self._count:
            raise IndexError(i)
        return f"{self._prefix}{i % self._count}"
