"""A model's state: Hugging Face tensor name -> array of stored bits, beside a dtype name for each.

Bits are unsigned integers as wide as the stored dtype (BF16: uint16, F32: uint32), in the tensor's shape.
Nothing here ever computes with the values: a NaN payload and a negative zero are bits like any other.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from .errors import Refused

Array: TypeAlias = npt.NDArray[Any]
Bits: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
State: TypeAlias = Mapping[str, Array]

WIDTHS: Mapping[str, int] = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""safetensors dtype name -> bytes per element"""

_UNSIGNED: Mapping[int, np.dtype[Any]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
DIGEST_BYTES = 16


def unsigned(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that holds the bits of `dtype`."""
    return _UNSIGNED[WIDTHS[dtype]]


def bits_of(array: Array) -> Bits:
    """Flat unsigned view (a copy only when `array` is not contiguous)."""
    bits: Bits = np.ascontiguousarray(array).reshape(-1).view(_UNSIGNED[array.dtype.itemsize])
    return bits


def tensor_digest(array: Array) -> str:
    """128 bits of BLAKE3, as hex, over the stored bytes in C order. An engine checks its own memory with this."""
    return blake3(bits_of(array).view(np.uint8).data).hexdigest(length=DIGEST_BYTES)


def model_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    """One digest over all tensors: (name, dtype, shape, tensor digest) each, in any order."""
    lines = (f"{name}\0{dtype}\0{','.join(map(str, shape))}\0{digest}\n" for name, dtype, shape, digest in tensors)
    return blake3("".join(sorted(lines)).encode()).hexdigest()


def state_digest(state: State, dtypes: Mapping[str, str]) -> str:
    """The model_digest of a state in memory."""
    return model_digest((name, dtypes[name], array.shape, tensor_digest(array)) for name, array in state.items())


def check_state(state: State, dtypes: Mapping[str, str]) -> None:
    """Refused unless every tensor has a known dtype name and an array of that width."""
    if not state:
        raise Refused("a state without tensors cannot be published")
    odd = sorted(state.keys() ^ dtypes.keys())
    if odd:
        raise Refused(f"tensors and dtype names differ in {', '.join(odd[:5])}; give one dtype name per tensor")
    for name, array in state.items():
        if dtypes[name] not in WIDTHS:
            raise Refused(f"tensor {name!r}: unknown dtype {dtypes[name]!r}; want one of {', '.join(WIDTHS)}")
        if array.dtype.itemsize != WIDTHS[dtypes[name]]:
            raise Refused(f"tensor {name!r} is {dtypes[name]}, but its array holds {array.dtype} elements")


def safetensors_header(
    state: State, dtypes: Mapping[str, str], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """All of a safetensors file before its tensors, and where in the file each starts, in the order in which they lie.

    Written here because the offsets are wanted, and because the library's own entry point takes bfloat16
    only from frameworks. Wider dtypes come first, so that every tensor is aligned.
    """
    names = sorted(state, key=lambda name: (-WIDTHS[dtypes[name]], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + state[name].nbytes
        header[name] = {"dtype": dtypes[name], "shape": list(state[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    first = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {n: first + header[n]["data_offsets"][0] for n in names}


def pack_safetensors(state: State, dtypes: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """The bytes of a safetensors file, and where in them each tensor starts. Equal states give equal bytes."""
    head, starts = safetensors_header(state, dtypes, {"format": "pt"})
    return head + b"".join(bits_of(state[name]).tobytes() for name in starts), starts
