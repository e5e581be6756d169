"""Core: the one ragged forward of the native kernels, for prefill, decoding, scoring and router replay alike.

A forward takes a table of rows. A row is one token of some sequence at some position; it sees the keys of its sequence up
to itself, which an earlier forward has written or rows before it in the table do. Nothing else about the table matters to
it: which rows there are besides, how a context was cut into chunks, how many threads compute changes no bit.

Asks are rows from which something is wanted at the head: the log-probability of a given token, or a sampled one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twinmill.model.config import ModelConfig

from . import native
from .weights import PackedWeights

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
KV_BLOCK = 64
"""positions per block of keys and values"""
_MASK = 2**64 - 1


def padded_dim(head_dim: int) -> int:
    """Numbers per position and head in the cache: whole vectors of 16."""
    return -(-head_dim // 16) * 16


class Kv(NamedTuple):
    """Keys and values in blocks. Strides count floats; block b of a layer and head begins at
    layer * strides[1] + b * strides[2] + head * strides[3], its values strides[0] behind its keys."""

    memory: npt.NDArray[np.float32]
    strides: tuple[int, int, int, int]


def new_kv(config: ModelConfig, blocks: int, layers: int | None = None) -> Kv:
    """Room for `blocks` blocks of KV_BLOCK positions; layers None = all of the model's."""
    each = KV_BLOCK * padded_dim(config.head_dim)
    memory = np.zeros((layers or config.layers, 2, blocks, config.kv_heads, each), np.float32)
    whole = blocks * config.kv_heads * each
    return Kv(memory, (whole, 2 * whole, config.kv_heads * each, each))


class Rows(NamedTuple):
    """Axis T."""

    token_ids: Ints
    sequence: Ints
    """row of `table`"""
    position: Ints
    table: Ints
    """[S, W]: the block that holds positions [KV_BLOCK * w, KV_BLOCK * (w + 1)) of a sequence"""


class Asks(NamedTuple):
    """Axis A, rows in rising order."""

    row: Ints
    target: Ints
    """score this token; -1 = sample one"""
    position: Ints
    """index in its context of the token to be"""
    temperature: Floats
    """0 = the most likely token, scored at temperature 1"""
    top_p: Floats
    seed: npt.NDArray[np.uint64]


class Result(NamedTuple):
    token_ids: Ints
    """[A]: sampled or given"""
    logprobs: Floats
    """[A]: of the distribution really sampled from, at the temperature and within top_p"""
    routes: npt.NDArray[np.int16]
    """[T, L, top_k]: the experts that were used; L = mixture layers"""
    hidden: Floats | None
    """[T, width], after the last norm"""
    replayed: int
    """(row, layer) pairs whose recorded experts were all used"""
    refused: int
    """(row, layer) pairs in which the plausibility filter replaced at least one"""
    version: int
    """of the weights that computed every row"""


def scoring(rows: Sequence[int], targets: Sequence[int], temperature: float = 1.0) -> Asks:
    """The log-probabilities of `targets`, each given the context that ends at its row."""
    n = len(rows)
    return Asks(
        np.asarray(rows, np.int32),
        np.asarray(targets, np.int32),
        np.zeros(n, np.int32),
        np.full(n, temperature, np.float32),
        np.ones(n, np.float32),
        np.zeros(n, np.uint64),
    )


def drawing(
    rows: Sequence[int],
    positions: Sequence[int],
    temperatures: Sequence[float],
    top_ps: Sequence[float],
    seeds: Sequence[int],
) -> Asks:
    """One sampled token after each row."""
    return Asks(
        np.asarray(rows, np.int32),
        np.full(len(rows), -1, np.int32),
        np.asarray(positions, np.int32),
        np.asarray(temperatures, np.float32),
        np.asarray(top_ps, np.float32),
        np.array([seed & _MASK for seed in seeds], np.uint64),
    )


class Core:
    """Threads, and the rotary table. One call computes at a time; more wait."""

    def __init__(self, config: ModelConfig, threads: int = 1, level: str = "") -> None:
        """level "" = the best of this processor. Raises core.CoreUnavailable."""
        self.config = config
        self.pool = native().Pool(threads, level)
        self._rope = np.zeros((2, 0, config.head_dim), np.float32)

    def forward(
        self,
        weights: PackedWeights,
        rows: Rows,
        kv: Kv,
        asks: Asks | None = None,
        experts: npt.NDArray[np.int16] | None = None,
        replay_floor: float = 0.0,
        want_hidden: bool = False,
    ) -> Result:
        """experts [T, L, top_k], -1 = choose freely; replay as in model.transformer.Decoder.forward."""
        config, count = self.config, len(rows.token_ids)
        routes = np.empty((count, len(config.moe_layers), config.top_k), np.int16)
        hidden = np.empty((count, config.width), np.float32) if want_hidden else None
        asked = 0 if asks is None else len(asks.row)
        tokens, logprobs = np.empty(asked, np.int32), np.empty(asked, np.float32)
        replayed, refused = weights.decoder.forward(  # type: ignore[union-attr]
            self.pool, rows.token_ids, rows.sequence, rows.position, rows.table, rows.table.shape[1], kv.memory,
            kv.strides, self.rope(int(rows.position.max(initial=0)) + 1), experts, routes, replay_floor, hidden,
            None if asks is None else (*asks, tokens, logprobs),
        )  # fmt: skip
        return Result(tokens, logprobs, routes, hidden, replayed, refused, weights.version)

    def rope(self, positions: int) -> Floats:
        """[2, at least `positions`, head_dim]: model/rope.py's table."""
        if positions > self._rope.shape[1]:
            from twinmill.model.rope import rope_table

            table = rope_table(self.config, max(positions, 2 * self._rope.shape[1], 256))
            self._rope = np.ascontiguousarray(table[:, :, 0].numpy())
        return self._rope
