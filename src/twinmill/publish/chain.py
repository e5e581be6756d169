"""Rebuild a version: the last full one, then every delta behind it, verified hop by hop.

Nothing is ever changed in place. A hop makes new arrays beside the old ones, so a damaged delta leaves what
is held, and what is served, exactly as it was.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from twinmill.records.weights import TensorPatch, VersionKind, WeightVersion
from twinmill.store.errors import Corrupt, NotFound

from .codec import CODECS
from .errors import Broken
from .manifest import WeightsLog
from .tensors import WIDTHS, Array, bits_of, tensor_digest, unsigned

DAMAGE = (Broken, Corrupt, NotFound)
"""why a version cannot be rebuilt; a store that does not answer is another matter"""


class Weights(NamedTuple):
    """A version and its tensors: Hugging Face name -> stored bits. The arrays are read-only, and shared."""

    version: WeightVersion
    tensors: dict[str, Array]


def path_to(log: WeightsLog, number: int, held: WeightVersion | None = None) -> list[WeightVersion]:
    """Versions to apply, in order, to reach `number`: from `held` or the last full one, the nearer."""
    path = [log.get(number)]
    while path[-1].parent is not None and (held is None or path[-1].parent != held.number):
        path.append(log.get(path[-1].parent))
    return path[::-1]


def hop(log: WeightsLog, version: WeightVersion, held: Weights | None) -> Weights:
    """Apply one version. Broken, Corrupt or NotFound when it cannot be; `held` is unchanged in any case.

    Every tensor that changed is checked after decoding. Those that did not are taken over from `held` unread: that
    the memory is still what it was, an engine finds out when it checks its own.
    """
    log.verify_link(version)
    base = None if version.kind is VersionKind.FULL else held
    if version.parent is not None and (base is None or base.version.number != version.parent):
        have = "nothing" if base is None else f"version {base.version.number}"
        raise Broken(version.number, f"follows version {version.parent}, but {have} is held")
    known = {} if base is None else {patch.name: patch for patch in base.version.tensors}
    if base is not None and known.keys() != {patch.name for patch in version.tensors}:
        raise Broken(version.number, f"has other tensors than version {version.parent}")
    data = memoryview(log.blobs.get_ref(version.object))
    tensors = {}
    for patch in version.tensors:
        if base is not None:
            _check_base(version, patch, known[patch.name])
        tensors[patch.name] = _decode(version, patch, data, None if base is None else base.tensors[patch.name])
    return Weights(version, tensors)


def walk(log: WeightsLog, path: Sequence[WeightVersion], held: Weights | None) -> tuple[Weights | None, int, str]:
    """Apply `path` as far as it goes: what was reached (`held` when nothing was), how many were applied, the damage."""
    for done, version in enumerate(path):
        try:
            held = hop(log, version, held)
        except DAMAGE as error:
            return held, done, str(error)
    return held, len(path), ""


def rebuild(log: WeightsLog, number: int, held: Weights | None = None) -> Weights:
    """Version `number`, starting from `held` where its path leads through it, else from the last full one."""
    weights = held
    for version in path_to(log, number, held.version if held else None):
        weights = hop(log, version, weights)
    assert weights is not None
    return weights


def _check_base(version: WeightVersion, patch: TensorPatch, base: TensorPatch) -> None:
    if (patch.dtype, patch.shape) != (base.dtype, base.shape):
        raise Broken(version.number, f"{patch.dtype}{patch.shape} on a base of {base.dtype}{base.shape}", patch.name)
    if patch.before != base.after:
        raise Broken(version.number, f"was made on a base other than version {version.parent}", patch.name)


def _decode(version: WeightVersion, patch: TensorPatch, data: memoryview, base: Array | None) -> Array:
    if patch.dtype not in WIDTHS or patch.codec not in CODECS:
        raise Broken(version.number, f"unknown dtype {patch.dtype!r} or codec {patch.codec!r}", patch.name)
    if min(patch.shape, default=0) < 0 or patch.offset < 0 or patch.bytes < 0:
        raise Broken(version.number, f"negative size in shape {patch.shape} or payload place", patch.name)
    if patch.offset + patch.bytes > len(data):
        raise Broken(version.number, f"payload ends behind its object's {len(data)} bytes", patch.name)
    if base is not None and patch.codec == "same" and patch.before == patch.after:
        return base  # its digest was checked when it was made
    if base is None and patch.codec != "raw":
        raise Broken(version.number, f"codec {patch.codec!r} in a full version, which holds raw bits", patch.name)
    try:
        # A blank costs no memory, so a lying shape of a full version fails at its payload's length.
        blank = np.broadcast_to(np.zeros(1, unsigned(patch.dtype)), prod(patch.shape))
        payload = data[patch.offset : patch.offset + patch.bytes]
        bits = CODECS[patch.codec].decode(blank if base is None else bits_of(base), payload)
    except ValueError as error:  # CodecError, or a shape that no array can have
        raise Broken(version.number, f"payload is damaged: {error}", patch.name) from error
    if (found := tensor_digest(bits)) != patch.after:
        raise Broken(version.number, f"digest {found} after decoding, {patch.after} was published", patch.name)
    array = bits.view(unsigned(patch.dtype)).reshape(patch.shape)
    array.flags.writeable = False
    return array


def versions(log: WeightsLog, first: int = 0, last: int | None = None) -> Iterator[WeightVersion]:
    """Manifests first..last (None = the newest), in order."""
    end = log.newest() if last is None else last
    yield from (log.get(number) for number in range(first, end + 1))
