"""A change as compressed bytes per tensor in the layout of a Hugging Face folder: what slime publishes and SGLang's /pull_weights
reads.

    model-00000-of-0000N.safetensors   each changed tensor under its own name, as U8: one zstd frame.
                                       __metadata__: tensor name -> checksum of its bytes AFTER the change
    model.safetensors.index.json       weight_map, and metadata: version and base_version (six digits), delta_encoding,
                                       compression_format ("zstd"), checksum_format; ours: model_digest, after the change

The frame holds, by delta_encoding:
    xor         the tensor's bytes before XOR after
    overwrite   u32 count, u32 byte positions (rising), then the new bytes at them; idempotent, but of tensors under 4 GiB

Tensors that did not change are absent; a version in which none did is an index without files. XOR onto a wrong base gives
rubbish without complaint, hence the checksum of what comes out, always.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from ..errors import BadFile, Refused
from ..tensors import Array, State, bits_of, check_state, state_digest
from .checksums import CHECKSUMS, checksum
from .files import TensorFile, write_tensors
from .folder import SHARD_BYTES, Index, new_folder, open_shard, read_index, shard_names, split, write_index
from .sparse import check_pair

Octets = npt.NDArray[np.uint8]


class Encoding(NamedTuple):
    encode: Callable[[Octets, Octets], Octets]
    decode: Callable[[Octets, Octets], Octets]
    """(before, body) -> after; ValueError when the body is not what `encode` makes"""
    largest: Callable[[int], int]
    """bytes that a body for a tensor of so many bytes can have"""


def _xor(before: Octets, other: Octets) -> Octets:
    if len(other) != len(before):
        raise ValueError(f"{len(other)} bytes for a tensor of {len(before)}")
    return before ^ other


def _overwriting(before: Octets, after: Octets) -> Octets:
    if len(before) >= 1 << 32:
        raise ValueError(f"a tensor of {len(before)} bytes; positions reach 2^32: use xor")
    where = np.flatnonzero(before != after)
    places = np.concatenate([[len(where)], where]).astype("<u4")
    return np.concatenate([places.view(np.uint8), after[where]])


def _overwritten(before: Octets, body: Octets) -> Octets:
    count = int.from_bytes(body[:4].tobytes(), "little")
    if len(body) < 4 or len(body) != 4 + 5 * count:
        raise ValueError(f"{len(body)} bytes for {count} changes")
    where = body[4 : 4 + 4 * count].copy().view("<u4").astype(np.int64)
    if count and (where[-1] >= len(before) or not (np.diff(where) > 0).all()):
        raise ValueError(f"positions do not rise, or leave 0 .. {len(before) - 1}")
    after = before.copy()
    after[where] = body[4 + 4 * count :]
    return after


ENCODINGS: Mapping[str, Encoding] = {
    "xor": Encoding(_xor, _xor, lambda nbytes: nbytes),
    "overwrite": Encoding(_overwriting, _overwritten, lambda nbytes: 4 + 5 * nbytes),
}


def write_xor(
    folder: Path | str,
    before: State,
    after: State,
    dtypes: Mapping[str, str],
    *,
    version: int,
    base_version: int,
    encoding: str = "xor",
    checksum_format: str = "blake3",
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Write what leads from `before` to `after` to a new folder, whole or not at all; bytes of its safetensors files."""
    check_state(before, dtypes)
    check_pair(before, after)
    if encoding not in ENCODINGS:
        raise Refused(f"delta_encoding {encoding!r}; want one of {', '.join(ENCODINGS)}")
    frames: dict[str, Array] = {}
    sums: dict[str, str] = {}
    compressor = zstandard.ZstdCompressor(level=1)
    for name in sorted(after):
        old, new = (bits_of(state[name]).view(np.uint8) for state in (before, after))
        if not np.array_equal(old, new):
            frame = compressor.compress(ENCODINGS[encoding].encode(old, new).data)
            frames[name], sums[name] = np.frombuffer(frame, np.uint8), checksum(checksum_format, new)
    shards = split(frames, shard_bytes)
    names = shard_names(len(shards), first=0)
    total = 0
    with new_folder(folder) as staging:
        for name, members in zip(names, shards, strict=True):
            state, kinds = {n: frames[n] for n in members}, dict.fromkeys(members, "U8")
            total += write_tensors(staging / name, state, kinds, {n: sums[n] for n in members})
        metadata = {
            "version": f"{version:06d}",
            "base_version": f"{base_version:06d}",
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": checksum_format,
            "model_digest": state_digest(after, dtypes),
        }
        write_index(staging, metadata, {n: name for name, ns in zip(names, shards, strict=True) for n in ns})
    return total


def read_xor(
    folder: Path | str, before: State, dtypes: Mapping[str, str], *, base_version: int | None = None
) -> dict[str, Array]:
    """`before` with the change applied, in new arrays where something changed. BadFile when the change is damaged or not made
    for `before`.

    base_version: the version that `before` is; None = unknown, so that only checksums tell.
    """
    check_state(before, dtypes)
    folder = Path(folder)
    index = read_index(folder)
    encoding, kind = _known(folder, index, base_version)
    after = dict(before)
    for place, members in index.files.items():
        file = open_shard(folder, place, members)
        for name in file.tensors:
            if name not in before:
                raise BadFile(file.path, "the base has no such tensor", name)
            after[name] = _applied(file, name, before[name], encoding, kind)
    promised = index.metadata.get("model_digest")
    if promised is not None and promised != state_digest(after, dtypes):
        raise BadFile(folder, f"does not lead to model digest {promised}: tensors that it leaves alone differ")
    return after


def _known(folder: Path, index: Index, base_version: int | None) -> tuple[Encoding, str]:
    """Encoding and checksum of an index that can be read and fits the base."""

    def known(key: str, among: Mapping[str, Any]) -> str:
        value = index.metadata.get(key)
        if not isinstance(value, str) or value not in among:
            raise BadFile(folder, f"{key} is {value!r}; want one of {', '.join(among)}")
        return value

    known("compression_format", {"zstd": None})
    if base_version is not None:
        known("base_version", {f"{base_version:06d}": None})
    return ENCODINGS[known("delta_encoding", ENCODINGS)], known("checksum_format", CHECKSUMS)


def _applied(file: TensorFile, name: str, before: Array, encoding: Encoding, kind: str) -> Array:
    info = file.tensors[name]
    if info.dtype != "U8" or len(info.shape) != 1:
        raise BadFile(file.path, f"{info.dtype} of shape {info.shape}; want a frame as flat U8", name)
    if name not in file.metadata:
        raise BadFile(file.path, "no checksum in __metadata__", name)
    old = bits_of(before).view(np.uint8)
    try:
        new = encoding.decode(old, _inflated(file[name], encoding.largest(len(old))))
    except (ValueError, zstandard.ZstdError) as error:
        raise BadFile(file.path, f"its frame is damaged: {error}", name) from error
    if (found := checksum(kind, new)) != file.metadata[name]:
        raise BadFile(file.path, f"gives checksum {found[:16]} on this base, not {file.metadata[name][:16]}", name)
    return new.view(before.dtype).reshape(before.shape)


def _inflated(frame: Array, largest: int) -> Octets:
    """One zstd frame. What it claims is checked before anything is allocated."""
    claimed = zstandard.get_frame_parameters(frame.data).content_size
    if claimed > largest:  # a size that is not stated is the largest number
        raise ValueError(f"claims {claimed} bytes, at most {largest} are possible")
    body = zstandard.ZstdDecompressor().decompress(frame.data, max_output_size=max(claimed, 1), allow_extra_data=False)
    if len(body) != claimed:
        raise ValueError(f"holds {len(body)} bytes, {claimed} were claimed")
    return np.frombuffer(body, np.uint8)
