"""Recorded experts as sets: every blob comes back, near the bound, and what is no set or no blob is refused by name."""

import re
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.store.routes import BadRoutes, Code, decode, encode, measure

FORMATS = Path(__file__).parents[2] / "docs" / "FORMATS.md"


def random_routes(positions: int, layers: int, top_k: int, experts: int, seed: int = 0) -> np.ndarray:
    """In random order, all sets equally likely."""
    shape = (positions, layers, experts)
    return np.argsort(np.random.default_rng(seed).random(shape), -1)[:, :, :top_k].astype(np.uint16)


@given(st.integers(0, 40), st.integers(0, 4), st.integers(1, 70), st.data())
@settings(max_examples=60)
def test_sets_come_back(positions: int, layers: int, experts: int, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, min(experts, 12)))
    routes = random_routes(positions, layers, top_k, experts)
    assert np.array_equal(decode(encode(routes, experts)), np.sort(routes, -1))
    assert np.array_equal(decode(encode(routes)), np.sort(routes, -1)), "without being told how many there are"


@pytest.mark.parametrize(("experts", "top_k"), [(384, 8), (512, 10), (32768, 2), (8, 8), (1, 1)])
def test_sets_of_real_models_come_back(experts: int, top_k: int) -> None:
    routes = random_routes(5, 3, top_k, experts)
    found = decode(encode(routes, experts))
    assert np.array_equal(found, np.sort(routes, -1)) and found.dtype == np.uint16


def test_places_are_those_of_the_list_of_all_sets() -> None:
    """A reader of its own, from docs/FORMATS.md: 8 experts of which 2, so 28 sets, 11 in a word of 53 bits."""
    every = sorted(combinations(range(8), 2), key=lambda s: s[::-1])
    data = encode(np.array(every)[:, None], 8)
    assert data[:4] == b"TWR1" and len(data) == 14 + -(-3 * 53 // 8)
    body = int.from_bytes(data[14:], "little")
    words = [body >> 53 * i & (1 << 53) - 1 for i in range(3)]
    places = [word // 28**j % 28 for word in words for j in range(11)]
    assert places[:28] == list(range(28))
    assert sum(comb(c, i + 1) for i, c in enumerate(every[17])) == 17


@pytest.mark.parametrize(
    ("experts", "top_k", "over"),
    [(384, 8, 0.015), (256, 8, 0.01), (128, 8, 0.016), (512, 10, 0.014), (8, 2, 0.003), (64, 6, 0.02)],
)
def test_bits_are_near_the_bound_of_uniform_routing(experts: int, top_k: int, over: float) -> None:
    code = Code(experts, top_k)
    assert code.bound_bits <= code.bits <= code.bound_bits * (1 + over)
    if experts <= 128:
        found = measure(random_routes(2000, 4, top_k, experts), experts)
        assert found.uniform == code.bound_bits and found.plain == 16 * top_k
        assert code.bits <= found.bits <= code.bits + 0.02, "as many bits as it says, and a head"


def test_eight_of_384_take_54_bits_where_53_is_the_bound() -> None:
    assert (round(Code(384, 8).bound_bits, 1), Code(384, 8).bits) == (53.3, 54.0)


def test_favourites_are_seen_in_the_entropy() -> None:
    routes = random_routes(4000, 1, 2, 8)
    routes[:3000] = routes[0]
    found = measure(routes, 8)
    assert found.entropy < 2.5 < found.uniform


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        ([[[1, 2]], [[3, 3]]], r"position 1, layer 0: \[3, 3\] is no set of 2 of 8"),
        ([[[1, 8]]], r"position 0, layer 0: \[1, 8\]"),
        ([[[-1, 2]]], r"\[-1, 2\] is no set"),
        ([[1, 2]], r"shape \(1, 2\)"),
    ],
)
def test_what_is_no_set_is_named(routes: list, words: str) -> None:
    with pytest.raises(BadRoutes, match=words):
        encode(np.array(routes), 8)


def test_damaged_bytes_are_refused() -> None:
    data = encode(random_routes(20, 2, 2, 8), 8)
    with pytest.raises(BadRoutes, match="cut, or damaged"):
        decode(data[:-1])
    with pytest.raises(BadRoutes, match="no recorded experts"):
        decode(b"\x93NUMPY" + data)
    with pytest.raises(BadRoutes, match="the head is damaged"):
        decode(data[:4] + b"\x01\x00" + data[6:])
    one = encode(np.array([[[6, 7]]]), 8)
    with pytest.raises(BadRoutes, match="numbers below 28: damaged"):
        decode(one[:-1] + b"\xff")


def test_the_layout_is_on_the_page() -> None:
    assert re.search(r"## Recorded experts.*TWR1", FORMATS.read_text(), re.DOTALL)
