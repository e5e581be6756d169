"""The second half of the two-phase apply: what was prepared becomes what is held, and can be taken back.

prepared    all of it was fetched, decoded and verified, and nothing was touched yet (draft.py)
commit      patches of absolute values are scattered into the held arrays: once or twice, the result is the same. Where
            somebody asked for `Prepared.tensors`, the copies made for that take the place of the held arrays instead,
            and whoever still reads the old ones keeps them as they were
take_back   the bits before, which the patches carry, are written back
marker      a small file says what was committed last, for whoever comes after this process
"""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from twinmill.records import wire
from twinmill.records.weights import WeightVersion

from .draft import Draft, Weights
from .tensors import Array
from .tiles import scatter, touched
from .wdx import Patch


class Prepared:
    """A version ready to be staged, on what `base` holds (None = from nothing)."""

    def __init__(self, draft: Draft, version: WeightVersion, *, hops: int, fetched_bytes: int, seconds: float) -> None:
        self.version = version
        self.base = draft.held
        self.digests = tuple(draft.digests)
        """of every tile of the version: what an engine's own memory must have"""
        self.grid = draft.grid
        self.patches: Mapping[int, Patch] | None = None if draft.begins_new else draft.patches()
        """tile -> what changed, for engines that write patches to their own copy; None = begin anew with `tensors`"""
        self.hops = hops
        """hops that were taken to get here"""
        self.fetched_bytes = fetched_bytes
        self.seconds = seconds
        self._draft = draft

    @property
    def token(self) -> tuple[int, str]:
        """What ranks tell each other: PREPARED(version, digest)."""
        return self.version.number, self.version.model_digest

    @cached_property
    def weights(self) -> Weights:
        return self._draft.weights()

    @property
    def tensors(self) -> dict[str, Array]:
        """All tensors, read-only. Copies of those that changed are made when this is first asked for."""
        return self.weights.tensors

    @property
    def has_tensors(self) -> bool:
        """Are there whole arrays, so that nothing need be scattered?"""
        return self.patches is None or "weights" in self.__dict__

    @cached_property
    def changed(self) -> frozenset[str]:
        """Names of tensors whose bits differ from what is held (all when it began anew)."""
        if self.patches is None:
            return frozenset(self.grid.shapes)
        tiles = self.grid.tiles
        return frozenset(name for tile, patch in self.patches.items() for name in touched(tiles[tile], patch.index))


class Undo(NamedTuple):
    """How to take the last commit back."""

    weights: Weights | None
    """what was held before"""
    patches: Mapping[int, Patch]
    """what was scattered into its arrays"""


def commit(held: Weights | None, prepared: Prepared) -> tuple[Weights, Undo]:
    """Hold `prepared` from now on. Idempotent; when it breaks off half-way, what was held is held again."""
    if held is None or prepared.patches is None or prepared.has_tensors:
        return prepared.weights, Undo(held, {})
    undo = Undo(prepared.base, prepared.patches)
    try:
        _scatter(held, prepared.patches)
    except BaseException:
        if held is prepared.base:  # never neither the one nor the other; a repetition has nothing to lose
            take_back(undo)
        raise
    after = Weights(prepared.version, prepared.grid, held.tensors, prepared.digests)
    return after, undo


def take_back(undo: Undo) -> Weights | None:
    """What was held before the commit, bit for bit."""
    if undo.weights is not None:
        _scatter(undo.weights, {tile: patch.undo() for tile, patch in undo.patches.items()})
    return undo.weights


def _scatter(held: Weights, patches: Mapping[int, Patch]) -> None:
    for array in held.tensors.values():
        array.flags.writeable = True
    try:
        for tile, patch in patches.items():
            scatter(held.grid.tiles[tile], patch.index, patch.new, held.tensors)
    finally:
        for array in held.tensors.values():
            array.flags.writeable = False


class Mark(msgspec.Struct, frozen=True):
    """What a process of this cluster committed last."""

    run_id: str
    version: int
    model_digest: str


def write_mark(path: Path, version: WeightVersion) -> None:
    """Durable when this returns: written aside, flushed, renamed, folder flushed."""
    staging = path.with_name(f"{path.name}#{os.getpid()}")
    staging.parent.mkdir(parents=True, exist_ok=True)
    mark = Mark(version.run_id, version.number, version.model_digest)
    with open(staging, "wb") as file:
        file.write(wire.to_json(mark))
        file.flush()
        os.fsync(file.fileno())
    os.replace(staging, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_mark(path: Path) -> Mark | None:
    """None = nothing was committed here, or the file is not what `write_mark` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError):
        return None
