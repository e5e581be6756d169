"""A full Hugging Face folder: one model.safetensors, or shards with model.safetensors.index.json.

The digest of the whole model travels in the index's metadata (in the file's own where there is one), under `model_digest`, where
other readers ignore it; a folder of theirs has none, and is then as sound as its lengths are.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadFile, Refused
from ..tensors import Array, State, check_state, state_digest
from .files import TensorFile, whole_file, write_tensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5_000_000_000
"""of the largest shard, as the hub's own writers have it"""


class Index(NamedTuple):
    """What the index says: which file holds which tensor."""

    metadata: dict[str, Any]
    weight_map: dict[str, str]

    @property
    def files(self) -> dict[str, set[str]]:
        """File name -> the tensors in it, in order of file name."""
        found: dict[str, set[str]] = {}
        for name, place in sorted(self.weight_map.items(), key=lambda item: item[1]):
            found.setdefault(place, set()).add(name)
        return found


class Folder(NamedTuple):
    state: dict[str, Array]
    dtypes: dict[str, str]


def write_folder(
    folder: Path | str,
    state: State,
    dtypes: Mapping[str, str],
    *,
    files: Mapping[str, bytes] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Write `state` to a new folder, which appears whole or not at all; names of the safetensors files.

    files: contents of further files by name (config.json, tokenizer.json). A tensor larger than a shard gets its own.
    Raises FileExistsError when the folder is there already.
    """
    check_state(state, dtypes)
    digest = {"model_digest": state_digest(state, dtypes)}
    shards = split(state, shard_bytes)
    names = shard_names(len(shards), first=1) if len(shards) > 1 else [SINGLE]
    with new_folder(folder) as staging:
        for name, members in zip(names, shards, strict=True):
            metadata = {"format": "pt"} | (digest if len(shards) == 1 else {})
            write_tensors(staging / name, {n: state[n] for n in members}, {n: dtypes[n] for n in members}, metadata)
        if len(shards) > 1:
            total = {"total_size": sum(array.nbytes for array in state.values())}
            places = {member: name for name, members in zip(names, shards, strict=True) for member in members}
            write_index(staging, total | digest, places)
        for name, content in (files or {}).items():
            with whole_file(staging / _plain(name, staging)) as file:
                file.write(content)
    return names


def read_folder(folder: Path | str) -> Folder:
    """All tensors of a folder, in memory. BadFile when it is damaged, incomplete, or holds pickles instead."""
    folder = Path(folder)
    state: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    for file in tensor_files(folder):
        metadata |= file.metadata
        for name, info in file.tensors.items():
            state[name], dtypes[name] = file[name].copy(), info.dtype
    if (folder / INDEX).exists():
        metadata = read_index(folder).metadata
    promised = metadata.get("model_digest")
    if promised is not None and promised != state_digest(state, dtypes):
        raise BadFile(folder, f"its tensors are not those of model digest {promised}")
    return Folder(state, dtypes)


def tensor_files(folder: Path | str) -> Iterator[TensorFile]:
    """The safetensors files of a folder, each checked against the index (where there is one) when it is reached."""
    folder = Path(folder)
    if not (folder / INDEX).exists():
        yield TensorFile(_single(folder))
        return
    for name, members in read_index(folder).files.items():
        yield open_shard(folder, name, members)


def open_shard(folder: Path, name: str, members: set[str]) -> TensorFile:
    """One file of an index. BadFile unless it is there and holds exactly `members`."""
    if not (folder / name).exists():
        raise BadFile(folder, f"the index names {name}, which is not there")
    file = TensorFile(folder / name)
    if odd := sorted(file.tensors.keys() ^ members):
        raise BadFile(file.path, "file and index disagree on whether it is here", odd[0])
    return file


def read_index(folder: Path) -> Index:
    """model.safetensors.index.json. BadFile unless it is one, and names nothing but safetensors files beside it."""
    path = folder / INDEX
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BadFile(path, "there is no index") from error
    except (ValueError, RecursionError) as error:
        raise BadFile(path, f"no sound JSON: {error}") from error
    metadata = found.get("metadata", {}) if isinstance(found, dict) else None
    weight_map = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(metadata, dict) or not isinstance(weight_map, dict):
        raise BadFile(path, "want an object with weight_map and metadata")
    for name, place in weight_map.items():
        if not isinstance(place, str) or not place.endswith(".safetensors"):
            raise BadFile(path, f"is in {place!r}; only safetensors files are read", name)
        _plain(place, path)
    return Index(metadata, weight_map)


def write_index(folder: Path, metadata: Mapping[str, Any], weight_map: Mapping[str, str]) -> None:
    text = json.dumps({"metadata": dict(metadata), "weight_map": dict(sorted(weight_map.items()))}, indent=2)
    with whole_file(folder / INDEX) as file:
        file.write(text.encode() + b"\n")


def split(state: State, shard_bytes: int) -> list[list[str]]:
    """Names by shard: filled in order of name, none above `shard_bytes` unless by a single tensor."""
    if shard_bytes <= 0:
        raise Refused(f"shard_bytes is {shard_bytes}; want a number > 0")
    shards: list[list[str]] = []
    room = 0
    for name in sorted(state):
        if not shards or state[name].nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= state[name].nbytes
    return shards


def shard_names(count: int, first: int) -> list[str]:
    """As the hub numbers them from 1, and slime from 0."""
    return [f"model-{number + first:05d}-of-{count:05d}.safetensors" for number in range(count)]


@contextmanager
def new_folder(folder: Path | str) -> Iterator[Path]:
    """A folder to fill, which takes its name once it is complete. FileExistsError when there is one."""
    folder = Path(folder).absolute()
    if folder.exists():
        raise FileExistsError(f"{folder} exists; name a new folder")
    staging = folder.with_name(f"{folder.name}#{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        yield staging
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _single(folder: Path) -> Path:
    path = folder / SINGLE
    if path.exists():
        return path
    pickles = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".pkl"))
    if pickles:
        raise BadFile(folder, f"has only pickles ({', '.join(pickles[:3])}); those can run code and are never read")
    raise BadFile(folder, f"has neither {SINGLE} nor {INDEX}")


def _plain(name: str, where: Path) -> str:
    if Path(name).name != name or name in ("", ".", ".."):
        raise BadFile(where, f"{name!r} is no plain file name")
    return name
