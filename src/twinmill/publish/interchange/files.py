"""One safetensors file. Read by mapping it, so that a model larger than memory can be looked through.

Not the library's reader, because this one gives the stored bits of every dtype without a framework, and refuses what does not
add up by name. It reads what the library writes and the other way round; tests/publish/test_interchange.py does both.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadFile
from ..tensors import WIDTHS, Array, State, bits_of, check_state, safetensors_header, unsigned

LONGEST_HEADER = 100_000_000
"""bytes; the library's own limit"""
MOST_DIMENSIONS = 32
_UNSAFE = {
    b"PK\x03\x04": "an archive as torch.save writes them",
    b"ARC3_ENVELOPE": "an arc_v3 envelope, which holds pickles",
    **{bytes([0x80, protocol]): "a pickle" for protocol in range(2, 6)},
}
"""first bytes of what runs code when it is loaded"""


class TensorInfo(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    start: int
    """in the file"""
    bytes: int


class TensorFile:
    """A mapped safetensors file whose header adds up. BadFile when it does not.

    Its arrays are read-only views of the mapping: they stay valid for as long as they live, but show what is in the file,
    so copy what must not change.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        size = self.path.stat().st_size
        with open(self.path, "rb") as file:
            self._refuse_unsafe(file.read(16))
        if size < 8:
            raise BadFile(self.path, f"{size} bytes are no safetensors file")
        self._map = np.memmap(self.path, np.uint8, "r")
        header, first = self._header(size)
        self.metadata: dict[str, str] = self._metadata(header.pop("__metadata__", {}))
        self.tensors = {name: self._info(name, entry, first) for name, entry in header.items()}
        self._check_places(first, size)

    @property
    def dtypes(self) -> dict[str, str]:
        return {name: info.dtype for name, info in self.tensors.items()}

    def __getitem__(self, name: str) -> Array:
        """The stored bits of a tensor, in its shape."""
        info = self.tensors[name]
        octets: Array = self._map[info.start : info.start + info.bytes]
        if info.start % WIDTHS[info.dtype]:
            octets = octets.copy()  # others do not align
        array = octets.view(np.ndarray).view(unsigned(info.dtype)).reshape(info.shape)
        array.flags.writeable = False
        return array

    def _refuse_unsafe(self, head: bytes) -> None:
        """By name. Nothing is lost where a header of 640 bytes begins like a pickle: what is no header is refused below."""
        if head[8:9] == b"{":
            return
        for magic, what in _UNSAFE.items():
            if head.startswith(magic):
                raise BadFile(self.path, f"this is {what}; those can run code and are never read: want safetensors")

    def _header(self, size: int) -> tuple[dict[str, Any], int]:
        length = int.from_bytes(self._map[:8].tobytes(), "little")
        if length > LONGEST_HEADER or 8 + length > size:
            raise BadFile(self.path, f"header of {length} bytes in a file of {size}: truncated, or no safetensors file")
        try:
            header = json.loads(self._map[8 : 8 + length].tobytes(), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise BadFile(self.path, f"its header is no sound JSON: {error}") from error
        if not isinstance(header, dict):
            raise BadFile(self.path, "its header is no JSON object")
        return header, 8 + length

    def _metadata(self, found: Any) -> dict[str, str]:
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise BadFile(self.path, "__metadata__ must map names to strings")
        return found

    def _info(self, name: str, entry: Any, first: int) -> TensorInfo:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise BadFile(self.path, "want exactly dtype, shape and data_offsets", name)
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in WIDTHS:
            raise BadFile(self.path, f"unknown dtype {dtype!r}; want one of {', '.join(WIDTHS)}", name)
        if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and len(shape) <= MOST_DIMENSIONS):
            raise BadFile(self.path, f"shape {shape!r:.100} or data_offsets {offsets!r:.100} are no sizes", name)
        nbytes = prod(shape) * WIDTHS[dtype]
        if offsets[1] - offsets[0] != nbytes:
            raise BadFile(self.path, f"{offsets[1] - offsets[0]} bytes for a tensor of {nbytes}", name)
        return TensorInfo(dtype, tuple(shape), first + offsets[0], nbytes)

    def _check_places(self, first: int, size: int) -> None:
        """Tensors lie one behind the other, without holes, from the header to the end."""
        end = first
        for name, info in sorted(self.tensors.items(), key=lambda item: (item[1].start, item[1].bytes)):
            if info.start != end:
                raise BadFile(self.path, f"starts at byte {info.start}, the one before ends at {end}", name)
            end += info.bytes
        if end != size:
            raise BadFile(self.path, f"its tensors end at byte {end}, the file at {size}: truncated, or not all of it")


def _are_sizes(found: Any) -> bool:
    return isinstance(found, list) and all(type(size) is int and 0 <= size < 1 << 62 for size in found)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def write_tensors(path: Path | str, state: State, dtypes: Mapping[str, str], metadata: Mapping[str, str]) -> int:
    """Write a safetensors file, whole or not at all, over whatever is there; its size in bytes. No tensors are allowed."""
    if state:
        check_state(state, dtypes)
    head, starts = safetensors_header(state, dtypes, metadata)
    with whole_file(path) as file:
        file.write(head)
        for name in starts:
            file.write(bits_of(state[name]).data)
        return int(file.tell())


@contextmanager
def whole_file(path: Path | str) -> Iterator[Any]:
    """A binary file to write, which takes its name once it is complete and on the disk."""
    path = Path(path)
    staging = path.with_name(f"{path.name}#{os.getpid()}")
    try:
        with open(staging, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, path)
    finally:
        staging.unlink(missing_ok=True)
