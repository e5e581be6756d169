"""PackedWeights: one set of weights as the core computes with it.

Packing permutes the stored bits (BF16 stays two bytes; products widen it on the fly, which is exact), so the digests of a
set are taken from the very memory that is computed with.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twinmill.model.config import ModelConfig

from . import native

Bits = npt.NDArray[np.unsignedinteger]
KINDS = {2: "BF16", 4: "F32"}
"""bytes of a stored number -> dtype; F16 is not told apart from BF16 by its bits, and is not taken"""


class Misfit(ValueError):
    """Tensors that do not fit the model: which one, what was expected, what was found."""


class Inexact(ValueError):
    """Memory holds values that the stored dtype cannot: it is not what was packed."""


class Place(NamedTuple):
    """Where an on-disk tensor lies: rows [first, first + shape[0]) of matrix `index` of a part, or of a vector."""

    part: str
    shape: tuple[int, ...]
    first: int = 0
    index: int = 0


def _stack(part: str, names: Mapping[str, int], *rest: int, index: int = 0) -> Iterator[tuple[str, Place]]:
    """Tensors that lie below one another in one part: name -> rows."""
    first = 0
    for name, rows in names.items():
        yield name, Place(part, (rows, *rest), first, index)
        first += rows


def _mlp(prefix: str, part: str, inner: int, width: int, index: int = 0) -> Iterator[tuple[str, Place]]:
    names = {f"{prefix}.gate_proj.weight": inner, f"{prefix}.up_proj.weight": inner}
    yield from _stack(f"{part}gate_up", names, width, index=index)
    yield f"{prefix}.down_proj.weight", Place(f"{part}down", (width, inner), 0, index)


def _attention(config: ModelConfig) -> Iterator[tuple[str, Place]]:
    heads, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    sizes = {"q": heads, "k": kv, "v": kv}
    yield from _stack("qkv", {f"self_attn.{n}_proj.weight": rows for n, rows in sizes.items()}, config.width)
    if config.qkv_bias:
        yield from _stack("qkv_bias", {f"self_attn.{n}_proj.bias": rows for n, rows in sizes.items()})
    if config.qk_norm:
        for name in "qk":
            yield f"self_attn.{name}_norm.weight", Place(f"{name}_norm", (config.head_dim,))
    yield "self_attn.o_proj.weight", Place("out", (config.width, heads))
    if config.out_bias:
        yield "self_attn.o_proj.bias", Place("out_bias", (config.width,))


def _mixture(config: ModelConfig) -> Iterator[tuple[str, Place]]:
    width, shared = config.width, config.shared_intermediate
    yield "mlp.gate.weight", Place("router", (config.experts, width))
    for e in range(config.experts):
        yield from _mlp(f"mlp.experts.{e}", "expert_", config.expert_intermediate, width, e)
    if shared:
        yield from _mlp("mlp.shared_expert", "shared_", shared, width)
        yield "mlp.shared_expert_gate.weight", Place("shared_gate", (1, width))


def places(config: ModelConfig) -> dict[str, Place]:
    """On-disk name -> place; parts of layer i are called "i.part"."""
    found = {"model.embed_tokens.weight": Place("embed", (config.vocab, config.width))}
    found["model.norm.weight"] = Place("norm", (config.width,))
    if not config.tied:
        found["lm_head.weight"] = Place("head", (config.vocab, config.width))
    for i in range(config.layers):
        parts = {
            "input_layernorm.weight": Place("attn_norm", (config.width,)),
            "post_attention_layernorm.weight": Place("mlp_norm", (config.width,)),
            **dict(_attention(config)),
            **dict(_mixture(config) if i in config.moe_layers else _mlp("mlp", "", config.intermediate, config.width)),
        }
        found |= {f"model.layers.{i}.{n}": p._replace(part=f"{i}.{p.part}") for n, p in parts.items()}
    return dict(sorted(found.items()))


_LAYER = (
    "attn_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias", "mlp_norm", "gate_up", "down", "router",
    "choice_bias", "expert_gate_up", "expert_down", "shared_gate_up", "shared_down", "shared_gate",
)  # fmt: skip
"""the order in which python_decoder.c takes the parts of a layer"""


class PackedWeights:
    """Memory for one set. `load` fills it; nothing may compute with the set meanwhile."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.version = -1
        """stamp of every row that is computed with this set"""
        self.places = places(config)
        self.kinds: dict[str, str] = {}
        """on-disk dtype by tensor name"""
        self._parts: dict[str, object] = {}
        self.decoder = None
        """the extension's Decoder over this memory"""

    def load(self, bits: Mapping[str, Bits]) -> None:
        """Pack stored bits under on-disk names (all tensors). Raises Misfit before anything is written."""
        self._check(bits)
        kinds = {name: KINDS[array.itemsize] for name, array in bits.items()}
        if kinds != self.kinds:
            self.kinds = kinds
            self._allocate()
        for name, place in self.places.items():
            part = self._parts[place.part]
            if isinstance(part, np.ndarray):
                part[place.first : place.first + place.shape[0]] = _widened(bits[name]).view(np.float32)
            else:
                stored = np.ascontiguousarray(bits[name])
                part.pack(_widened(stored) if part.shape[3] == 0 else stored, place.first, place.index)

    def bits(self, name: str) -> Bits:
        """The stored bits of a tensor, read back. Raises Inexact where the dtype cannot hold what is there."""
        place, kind = self.places[name], self.kinds[name]
        part = self._parts[place.part]
        if isinstance(part, np.ndarray):
            return _narrowed(part[place.first : place.first + place.shape[0]].view(np.uint32), kind, name)
        whole = np.empty(place.shape, np.uint32 if part.shape[3] == 0 else np.uint16)
        part.unpack(whole, place.first, place.index)
        return whole if whole.itemsize == 2 else _narrowed(whole, kind, name)

    def part(self, name: str):  # type: ignore[no-untyped-def]
        """A Matrix of the extension, or a vector: "embed", "3.qkv", ..."""
        return self._parts[name]

    def _check(self, bits: Mapping[str, Bits]) -> None:
        for problem, names in (
            ("missing", self.places.keys() - bits.keys()),
            ("not part of this model", bits.keys() - self.places.keys()),
        ):
            if names:
                raise Misfit(f"{len(names)} tensors are {problem}, the first is {min(names)}")
        for name, place in self.places.items():
            array = bits[name]
            if array.dtype.kind != "u" or array.itemsize not in KINDS:
                raise Misfit(f"{name}: {array.dtype} bits; stored bits are uint16 or uint32")
            if array.shape != place.shape:
                raise Misfit(f"{name}: shape {array.shape} where the model has {place.shape}")

    def _allocate(self) -> None:
        """A matrix is BF16 where all tensors in it are, else F32; vectors are F32."""
        core = native()
        inside: dict[str, list[tuple[str, Place]]] = {}
        for name, place in self.places.items():
            inside.setdefault(place.part, []).append((name, place))
        self._parts = {}
        for part, members in inside.items():
            rows = max(place.first + place.shape[0] for _, place in members)
            shape, count = members[0][1].shape, max(place.index for _, place in members) + 1
            if len(shape) == 1:
                self._parts[part] = np.zeros(rows, np.float32)
            else:
                narrow = all(self.kinds[name] == "BF16" for name, _ in members)
                self._parts[part] = core.Matrix(rows, shape[1], core.BF16 if narrow else core.F32, count)
        self.decoder = core.Decoder(_sizes(self.config), self._ends(), self._layers())

    def _ends(self) -> tuple[object, ...]:
        return self._parts["embed"], self._parts["norm"], self._parts.get("head", self._parts["embed"])

    def _layers(self) -> tuple[tuple[object, ...], ...]:
        return tuple(tuple(self._parts.get(f"{i}.{name}") for name in _LAYER) for i in range(self.config.layers))


def _sizes(config: ModelConfig) -> tuple[int | float, ...]:
    """In the order of python_decoder.c; softmax gating over all experts in one group."""
    return (
        config.width, config.layers, config.heads, config.kv_heads, config.head_dim, config.vocab, config.experts,
        config.top_k, config.expert_intermediate, config.shared_intermediate, config.intermediate, 0,
        int(config.norm_topk), 1, 1, config.norm_eps, 1.0,
    )  # fmt: skip


def _widened(bits: Bits) -> npt.NDArray[np.uint32]:
    """Stored bits as those of fp32."""
    return bits.astype(np.uint32) << 16 if bits.itemsize == 2 else np.ascontiguousarray(bits)


def _narrowed(bits: npt.NDArray[np.uint32], kind: str, name: str) -> Bits:
    if kind == "F32":
        return bits.copy()
    if (bits & 0xFFFF).any():
        raise Inexact(name)
    return (bits >> 16).astype(np.uint16)
