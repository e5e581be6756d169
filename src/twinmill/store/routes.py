"""Recorded experts as one blob: which experts every position used in every mixture layer, as sets.

The order in which a router chose is not kept (model/mixture.py puts it back by its own scores), so a choice is one of C(E, k)
sets, and cannot take fewer than log2 C(E, k) bits where all are equally likely: 53.3 for 8 of 384. A set is written as
its place in the list of all of them (the combinatorial number system), and as many places as fit well share a
word of up to 64 bits: 53.3 become 54. Routers have favourites, which this code does not use: for them see docs/LOG.md.

The layout is in docs/FORMATS.md. Sets of which there are 2^63 or more (10 of 512) take Python's integers, which is slow.
"""

from functools import cache
from math import ceil, comb, log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

MAGIC = b"TWR1"
_HEAD = np.dtype([("magic", "S4"), ("experts", "<u2"), ("top_k", "<u2"), ("layers", "<u2"), ("positions", "<u4")])
MOST_EXPERTS = 1 << 15
"""indices fit an int16"""

Routes = npt.NDArray[np.uint16]
Integers = npt.NDArray[np.integer]


class BadRoutes(ValueError):
    """Recorded experts that are no sets of experts, or bytes that are no recorded experts: what, and where."""


class Code(NamedTuple):
    """How sets of `top_k` of `experts` are written."""

    experts: int
    top_k: int

    @property
    def sets(self) -> int:
        return comb(self.experts, self.top_k)

    @property
    def bound_bits(self) -> float:
        """Of one set, where all are equally likely."""
        return log2(self.sets)

    @property
    def together(self) -> int:
        """Sets per word: of those that 64 bits hold, the number that wastes least."""
        most = max(1, int(64 // max(self.bound_bits, 1e-9))) if self.sets > 1 else 1
        return min(range(1, min(most, 64) + 1), key=lambda n: (self.word_bits(n) / n, n))

    def word_bits(self, together: int) -> int:
        return int(self.sets**together - 1).bit_length()

    @property
    def bits(self) -> float:
        """Of one set, as it is written."""
        return self.word_bits(self.together) / self.together


def encode(routes: Integers, experts: int | None = None) -> bytes:
    """routes [positions, layers, top_k], the experts of each in any order. experts: how many there are; None = as far as is
    seen here. BadRoutes names the position and layer at which there is no set."""
    if routes.ndim != 3 or routes.shape[2] < 1:
        raise BadRoutes(f"recorded experts of shape {routes.shape}; want [positions, layers, top_k]")
    chosen = np.sort(routes.astype(np.int64), -1)
    count = int(chosen.max(initial=routes.shape[2] - 1)) + 1 if experts is None else experts
    _check(chosen, count)
    code = Code(count, chosen.shape[2])
    head = np.array([(MAGIC, count, code.top_k, chosen.shape[1], chosen.shape[0])], _HEAD)
    return head.tobytes() + _packed(_ranks(chosen.reshape(-1, code.top_k), code), code)


def decode(data: bytes) -> Routes:
    """[positions, layers, top_k], each set in rising order. BadRoutes where `data` is cut, or no blob of this kind."""
    if len(data) < _HEAD.itemsize or data[:4] != MAGIC:
        raise BadRoutes(
            f"{len(data)} bytes that do not begin with {MAGIC.decode()}: no recorded experts, or of an older layout"
        )
    _, experts, top_k, layers, positions = np.frombuffer(data, _HEAD, 1)[0].tolist()
    if not 1 <= top_k <= experts <= MOST_EXPERTS:
        raise BadRoutes(f"recorded experts say {top_k} of {experts} experts; the head is damaged")
    code, sets = Code(experts, top_k), positions * layers
    body = data[_HEAD.itemsize :]
    if len(body) != (want := _body_bytes(code, sets)):
        raise BadRoutes(
            f"{len(body)} bytes for {positions} positions and {layers} layers, want {want}: cut, or damaged"
        )
    return _sets(_unpacked(body, code, sets), code).reshape(positions, layers, top_k)


class RouteBits(Struct, frozen=True, kw_only=True):
    """Bits of one (position, layer). Example: 8 of 384, random: bits 54.0, uniform 53.3, plain 128."""

    bits: float
    """as written, head included"""
    uniform: float
    """the bound for a router that likes all sets equally"""
    entropy: float
    """of the sets as often as each layer chose them: what a code that knew these shares would need. Says little where most
    sets were seen once"""
    plain: float
    """as indices of 16 bits"""


def measure(routes: Integers, experts: int) -> RouteBits:
    """What the code makes of these routes, against its bounds."""
    positions, layers, top_k = routes.shape
    ranks = _ranks(np.sort(routes.astype(np.int64), -1).reshape(-1, top_k), Code(experts, top_k))
    shares = [np.unique(column, return_counts=True)[1] / positions for column in ranks.reshape(positions, layers).T]
    return RouteBits(
        bits=8 * len(encode(routes, experts)) / (positions * layers),
        uniform=Code(experts, top_k).bound_bits,
        entropy=float(np.mean([-(p * np.log2(p)).sum() for p in shares])),
        plain=16.0 * top_k,
    )


def _check(chosen: npt.NDArray[np.int64], experts: int) -> None:
    """chosen: rising"""
    if not chosen.shape[2] <= experts <= MOST_EXPERTS:
        raise BadRoutes(
            f"{chosen.shape[2]} of {experts} experts; want at most {MOST_EXPERTS}, and no more chosen than there are"
        )
    wrong = (chosen[..., 0] < 0) | (chosen[..., -1] >= experts) | (np.diff(chosen, axis=-1) == 0).any(-1)
    if wrong.any():
        position, layer = np.argwhere(wrong)[0].tolist()
        found, of = chosen[position, layer].tolist(), f"{chosen.shape[2]} of {experts} experts"
        raise BadRoutes(f"position {position}, layer {layer}: {found} is no set of {of}")


@cache
def _binomials(experts: int, top_k: int) -> npt.NDArray[np.generic]:
    """[top_k, experts + 1]: row i - 1 holds C(c, i) of every c."""
    table = [[comb(c, i) for c in range(experts + 1)] for i in range(1, top_k + 1)]
    return np.array(table, np.uint64 if comb(experts, top_k) < 1 << 63 else object)


def _ranks(chosen: npt.NDArray[np.int64], code: Code) -> npt.NDArray[np.generic]:
    """The place of c1 < c2 < ... < ck in the list of all sets: C(c1, 1) + C(c2, 2) + ... + C(ck, k)."""
    table = _binomials(code.experts, code.top_k)
    places: npt.NDArray[np.generic] = table[0][chosen[:, 0]]
    for i in range(1, code.top_k):
        places = places + table[i][chosen[:, i]]
    return places


def _sets(ranks: npt.NDArray[np.generic], code: Code) -> Routes:
    """The set at a place: from the largest expert down, each is the largest c with C(c, i) <= what is left."""
    table = _binomials(code.experts, code.top_k)
    chosen = np.empty((len(ranks), code.top_k), np.uint16)
    left = ranks.copy()
    for i in reversed(range(code.top_k)):
        found = np.searchsorted(table[i], left, side="right") - 1
        chosen[:, i] = found
        left = left - table[i][found]
    return chosen


def _body_bytes(code: Code, sets: int) -> int:
    words = ceil(sets / code.together)
    return ceil(words * code.word_bits(code.together) / 8)


def _packed(ranks: npt.NDArray[np.generic], code: Code) -> bytes:
    """Words of `together` places, the first one lowest, bit behind bit from the lowest on."""
    n, width = code.together, code.word_bits(code.together)
    digits = np.zeros((ceil(len(ranks) / n), n), ranks.dtype)
    digits.flat[: len(ranks)] = ranks
    words = digits[:, -1]
    for j in reversed(range(n - 1)):
        words = words * np.array(code.sets, ranks.dtype) + digits[:, j]
    octets = _octets(words, ceil(width / 8))
    bits = np.unpackbits(octets, axis=1, bitorder="little")[:, :width]
    return np.packbits(bits.ravel(), bitorder="little").tobytes()


def _unpacked(body: bytes, code: Code, sets: int) -> npt.NDArray[np.generic]:
    n, width = code.together, code.word_bits(code.together)
    count = ceil(sets / n)
    bits = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")[: count * width].reshape(count, width)
    octets = np.packbits(bits, axis=1, bitorder="little")
    words = _words(octets, _binomials(code.experts, code.top_k).dtype)
    digits = np.empty((count, n), words.dtype)
    for j in range(n):
        words, digits[:, j] = words // code.sets, words % code.sets
    if words.any():
        raise BadRoutes(f"word {int(words.argmax())} holds more than {n} numbers below {code.sets}: damaged")
    return digits.ravel()[:sets]


def _octets(words: npt.NDArray[np.generic], width: int) -> npt.NDArray[np.uint8]:
    """Little-endian bytes, [words, width]."""
    if words.dtype == object:
        return np.frombuffer(b"".join(int(w).to_bytes(width, "little") for w in words), np.uint8).reshape(-1, width)
    return np.ascontiguousarray(words.astype("<u8")).view(np.uint8).reshape(-1, 8)[:, :width]


def _words(octets: npt.NDArray[np.uint8], dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    if np.dtype(dtype) == object:
        return np.array([int.from_bytes(row.tobytes(), "little") for row in octets], object)
    whole = np.zeros((len(octets), 8), np.uint8)
    whole[:, : octets.shape[1]] = octets
    return whole.view("<u8").ravel().astype(np.uint64)
