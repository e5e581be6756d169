"""Reads a GGUF file of a Llama: as much as is needed to have its weights as floats and its vocabulary as text.

Quantised tensors come with the width of one quantisation step of each element, so that a caller can put back the noise that
rounding took away. Names and the order of rows are Hugging Face's: GGUF stores the rows of q and k for interleaved RoPE.

Covered: F32, Q4_1, Q8_0, little endian, format 3. Anything else is refused by name.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twinmill.model.gguf import hf_name, unwoven

Floats = npt.NDArray[np.float32]


class NotGGUF(ValueError):
    """What the file has that this reader does not know, and what to do."""


class Spec(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUF:
    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._at = memoryview(data), 0
        if bytes(self._data[:4]) != b"GGUF" or (version := self._number("I", 4)) != 3:
            raise NotGGUF(f"the file begins with {bytes(self._data[:8])!r}; want a GGUF file of format 3")
        tensors, facts = self._number("Q"), self._number("Q")
        self.facts: dict[str, Any] = {}
        """key -> number, text or list, as the file says; format version included"""
        for _ in range(facts):
            name = self._text()
            self.facts[name] = self._value(self._number("I"))
        self.facts["version"] = version
        self._specs: dict[str, Spec] = {}
        for _ in range(tensors):
            name = self._text()
            shape = tuple(self._number("Q") for _ in range(self._number("I")))[::-1]
            self._specs[name] = Spec(shape, self._number("I"), self._number("Q"))
        align = self.facts.get("general.alignment", 32)
        self._first = -(-self._at // align) * align

    def tensors(self) -> Iterator[tuple[str, Floats, Floats]]:
        """(Hugging Face name, values, quantisation step of each) of every tensor."""
        heads = [self.facts[f"llama.attention.{name}"] for name in ("head_count", "head_count_kv")]
        for name, spec in self._specs.items():
            if spec.kind not in _KINDS:
                raise NotGGUF(f"tensor {name!r} is of type {spec.kind}; known are {', '.join(map(str, _KINDS))}")
            count = int(np.prod(spec.shape))
            block_size, block, read = _KINDS[spec.kind]
            blocks = np.frombuffer(self._data, block, count // block_size, self._first + spec.offset)
            values, steps = (array.reshape(spec.shape) for array in read(blocks))
            yield hf_name(name), unwoven(name, values, *heads), unwoven(name, steps, *heads)

    def _number(self, code: str, at: int | None = None) -> Any:
        self._at = self._at if at is None else at
        (found,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return found

    def _text(self) -> str:
        size = self._number("Q")
        self._at += size
        return bytes(self._data[self._at - size : self._at]).decode()

    def _value(self, kind: int) -> Any:
        if kind == 8:
            return self._text()
        if kind == 9:
            each = self._number("I")
            return [self._value(each) for _ in range(self._number("Q"))]
        if kind not in _NUMBERS:
            raise NotGGUF(f"a value of type {kind}; known are {', '.join(map(str, _NUMBERS))}, 8 and 9")
        return self._number(_NUMBERS[kind])


_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _f32(blocks: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    return blocks.astype(np.float32), np.zeros(blocks.shape, np.float32)


def _q8_0(blocks: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    step = blocks["step"].astype(np.float32)[:, None]
    return step * blocks["values"], np.broadcast_to(step, blocks["values"].shape)


def _q4_1(blocks: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    nibbles = np.concatenate([blocks["values"] & 15, blocks["values"] >> 4], axis=1)
    step = blocks["step"].astype(np.float32)[:, None]
    return step * nibbles + blocks["least"].astype(np.float32)[:, None], np.broadcast_to(step, nibbles.shape)


_Reader = Callable[[npt.NDArray[Any]], tuple[Floats, Floats]]
_KINDS: Mapping[int, tuple[int, np.dtype[Any], _Reader]] = {
    0: (1, np.dtype("<f4"), _f32),
    3: (32, np.dtype([("step", "<f2"), ("least", "<f2"), ("values", "u1", 16)]), _q4_1),
    8: (32, np.dtype([("step", "<f2"), ("values", "i1", 32)]), _q8_0),
}
"""type -> elements of a block, its bytes, how they are read"""
