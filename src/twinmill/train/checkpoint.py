"""Checkpoints: the whole state of a trainer, from which the same bits follow.

    checkpoints/<step>-<digest>.safetensors    masters, moments, updates, torch's random state; never changed
    checkpoints/<step>-<digest>.json           step, size and digest of it; written last: without it there is none

A key names its content, so a step that is redone after a crash writes the same key or a new one, never over one
that a manifest names. A truncated or altered file is an error that names it (store.errors.Corrupt), never a
silent fresh start.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load as unpack_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor

from twinmill.store.blobs import digest_of, named_write
from twinmill.store.errors import Corrupt, NotFound
from twinmill.store.runs import RunFolder

from .optimizer import Optimizer

_RANDOM = "random/torch"


class _Head(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The .json beside the tensors."""

    step: int
    bytes: int
    digest: str


class State(NamedTuple):
    step: int
    """steps done"""
    tensors: dict[str, Tensor]


def take(optimizer: Optimizer) -> dict[str, Tensor]:
    """Everything that a later step depends on. Shares memory with the optimizer: save it before the next step."""
    return {**optimizer.state(), _RANDOM: torch.get_rng_state()}


def put_back(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Undo whatever came after `take`: masters, moments, rounded weights in the model, random state."""
    state = dict(tensors)
    random = state.pop(_RANDOM)
    optimizer.load(state)
    torch.set_rng_state(random)


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, run: RunFolder, folder: str = "checkpoints") -> None:
        self._run = run
        self._folder = run.path / folder
        self._folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, tensors: Mapping[str, Tensor]) -> str:
        """Write, whole or not at all; the key to load it by. Saving the same again changes nothing."""
        data = pack_tensors({name: tensor.contiguous() for name, tensor in tensors.items()})
        digest = digest_of(data)
        key = f"{step:08d}-{digest[:16]}"
        with named_write("checkpoint.save"):
            self._run.write(self._tensors_path(key), data)
            head = _Head(step=step, bytes=len(data), digest=digest)
            self._run.write(self._head_path(key), msgspec.json.encode(head))
        return key

    def load(self, key: str) -> State:
        """NotFound when there is none, Corrupt when it is not what was written."""
        path = self._tensors_path(key)
        try:
            head = msgspec.json.decode(self._head_path(key).read_bytes(), type=_Head)
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFound(key, str(self._folder)) from error
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Corrupt(str(self._head_path(key)), str(error)) from error
        if len(data) != head.bytes:
            raise Corrupt(str(path), f"{len(data)} bytes where {head.bytes} were written")
        if digest_of(data) != head.digest or not key.endswith(head.digest[:16]):
            raise Corrupt(str(path), "its digest is not the one that was written")
        try:
            return State(head.step, unpack_tensors(data))
        except SafetensorError as error:
            raise Corrupt(str(path), str(error)) from error

    def keys(self) -> list[str]:
        """Of the complete checkpoints, by step."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def prune(self, keep: int, needed: Collection[str]) -> None:
        """Remove all but the last `keep` and those in `needed` (what resuming may read); also a killed writer's rest.

        Only the one trainer of the run may call it.
        """
        keys = self.keys()
        stay = {*keys[max(len(keys) - keep, 0) :], *needed}
        for key in set(keys) - stay:
            self._head_path(key).unlink(missing_ok=True)  # first: a checkpoint without a head does not exist
        for path in self._folder.iterdir():
            if path.name.split(".")[0] not in stay or "#" in path.name:
                path.unlink(missing_ok=True)

    def _tensors_path(self, key: str):
        return self._folder / f"{key}.safetensors"

    def _head_path(self, key: str):
        return self._folder / f"{key}.json"
