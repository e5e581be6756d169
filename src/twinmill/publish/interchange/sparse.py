"""A change as the stock sparse patch: positions and new values, uncompressed, one safetensors file (TRL, vLLM, prime-rl).

    <name>.indices   I32   flat positions of the elements whose bits changed, rising
    <name>.values          their new values, in the tensor's own dtype

Tensors that did not change are absent. Metadata, all strings: sparse ("True"), model_version, sparsity (share of the elements
that kept their bits), changed_params (tensors that changed), changed_elements; and ours, which others ignore: base_digest and
digest, the model digests (docs/FORMATS.md) before and after. A patch of theirs has no digests and says nothing about its base,
so it is read only when the caller vouches for that.

Positions are 32 bits signed: a tensor of 2^31 elements or more cannot be written this way.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import BadFile, Refused
from ..tensors import Array, State, bits_of, check_state, state_digest
from .files import TensorFile, write_tensors

INDICES, VALUES = ".indices", ".values"


def write_sparse(
    path: Path | str, before: State, after: State, dtypes: Mapping[str, str], *, model_version: int
) -> int:
    """Write what leads from `before` to `after` (same names, shapes and dtypes); how many elements changed."""
    check_state(before, dtypes)
    check_pair(before, after)
    parts: dict[str, Array] = {}
    kinds: dict[str, str] = {}
    changed = tensors = 0
    for name in sorted(after):
        old, new = bits_of(before[name]), bits_of(after[name])
        where = np.flatnonzero(old != new)
        if not len(where):
            continue
        if new.size > 1 << 31:
            raise Refused(f"tensor {name!r} has {new.size} elements; a sparse patch reaches 2^31: write XOR instead")
        parts[name + INDICES], kinds[name + INDICES] = where.astype(np.uint32), "I32"
        parts[name + VALUES], kinds[name + VALUES] = new[where], dtypes[name]
        changed, tensors = changed + len(where), tensors + 1
    if len(parts) != 2 * tensors:
        raise Refused("names of tensors end in .indices or .values so that two of this patch are the same")
    elements = sum(array.size for array in after.values())
    metadata = {
        "sparse": "True",
        "model_version": str(model_version),
        "sparsity": str(1 - changed / max(elements, 1)),
        "changed_params": str(tensors),
        "changed_elements": str(changed),
        "base_digest": state_digest(before, dtypes),
        "digest": state_digest(after, dtypes),
    }
    write_tensors(path, parts, kinds, metadata)
    return changed


def read_sparse(
    path: Path | str, before: State, dtypes: Mapping[str, str], *, unchecked: bool = False
) -> dict[str, Array]:
    """`before` with the patch applied, in new arrays where something changed. BadFile when the patch is damaged or not made
    for `before`.

    unchecked: read a patch without digests, too. Then only its form is checked: that `before` is its base is your word.
    """
    check_state(before, dtypes)
    file = TensorFile(path)
    if file.metadata.get("sparse", "").lower() != "true":
        raise BadFile(path, "metadata 'sparse' is not true: this is no sparse patch")
    base, promised = file.metadata.get("base_digest"), file.metadata.get("digest")
    if (base is None or promised is None) and not unchecked:
        raise BadFile(path, "has no digests of its base and result; pass unchecked=True if you vouch for the base")
    if base is not None and base != state_digest(before, dtypes):
        raise BadFile(path, f"was made on a base of digest {base[:16]}, this is another one")
    after = dict(before)
    for name in _patched(file):
        if name not in before:
            raise BadFile(path, "the base has no such tensor", name)
        after[name] = _applied(file, name, before[name], dtypes[name])
    if promised is not None and promised != state_digest(after, dtypes):
        raise BadFile(path, f"does not lead to digest {promised[:16]}: damaged, or the work of a faulty writer")
    return after


def check_pair(before: State, after: State) -> None:
    """Refused unless both states have the same tensors, by name, shape and width."""
    if odd := sorted(before.keys() ^ after.keys()):
        raise Refused(f"tensor {odd[0]!r} is in one state only; a change needs the same tensors before and after")
    for name, array in after.items():
        was = before[name]
        if (array.shape, array.dtype.itemsize) != (was.shape, was.dtype.itemsize):
            raise Refused(f"tensor {name!r} is {was.dtype}{was.shape} before and {array.dtype}{array.shape} after")


def _patched(file: TensorFile) -> list[str]:
    """Names of patched tensors; each has both its parts."""
    found: dict[str, set[str]] = {}
    for part in file.tensors:
        name, dot, suffix = part.rpartition(".")
        if dot + suffix not in (INDICES, VALUES):
            raise BadFile(file.path, f"want only names that end in {INDICES} or {VALUES}", part)
        found.setdefault(name, set()).add(dot + suffix)
    for name, suffixes in found.items():
        if len(suffixes) != 2:
            raise BadFile(file.path, f"has only {suffixes.pop()}", name)
    return sorted(found)


def _applied(file: TensorFile, name: str, before: Array, dtype: str) -> Array:
    places, values = file.tensors[name + INDICES], file.tensors[name + VALUES]
    if places.dtype != "I32" or values.dtype != dtype:
        raise BadFile(file.path, f"{places.dtype} indices, {values.dtype} values; want I32 and {dtype}", name)
    if len(places.shape) != 1 or places.shape != values.shape:
        raise BadFile(file.path, f"indices of shape {places.shape}, values of shape {values.shape}", name)
    where = file[name + INDICES].view(np.int32).astype(np.int64)
    if len(where) and not (where[0] >= 0 and where[-1] < before.size and (np.diff(where) > 0).all()):
        raise BadFile(file.path, f"its indices do not rise, or leave 0 .. {before.size - 1}", name)
    after = bits_of(before).copy()
    after[where] = file[name + VALUES]
    return after.view(before.dtype).reshape(before.shape)
