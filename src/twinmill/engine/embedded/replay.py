"""Replay: an episode computed again from its version list and its seed, and where it first comes out otherwise.

A token is a pure function of (weights, prefix, seed, position), and in strict parity the forward knows nothing of the batch.
So every token is drawn again behind the recorded ones before it, many rows in one forward; what follows a difference is
compared all the same.

The weights behind a token are those that compute its row, and those that computed the keys it sees. Under KvPolicy.KEEP the
latter may be older ones: Turn.kv_runs says which, position by position. Under RECOMPUTE all keys are of the token's own
version; where they were computed anew in the middle of a turn, kv_runs has only the newest, and the turn is
computed once for each version that sampled in it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twinmill.model.config import ModelConfig
from twinmill.model.core.weights import Bits
from twinmill.records.engines import Sampling
from twinmill.records.episodes import Episode, Segment, Turn, segment_seed, versions_of

from .compute import Chunk, Draw, Work, open_compute
from .config import EngineConfig

ROWS = 512
"""rows of one forward"""
BitsOf = Callable[[int], Mapping[str, Bits]]
"""stored bits of a version"""
Routes = npt.NDArray[np.integer]


class ReplayError(ValueError):
    """An episode that does not say enough to be replayed: which turn, and what is missing."""


class Difference(NamedTuple):
    """Example: Difference("log-probability", 5, 412, 1, "-0.25", "-0.2500001"): the turn's token 5, position 412 of its context."""

    what: str
    """token, log-probability or experts"""
    token: int
    """of the turn's sampled ids; -1 = a position of what the turn appended (experts alone)"""
    position: int
    version: int
    """that sampled the token, or computed the position"""
    recorded: str
    replayed: str


class TurnReplay(NamedTuple):
    segment: int
    turn: int
    tokens: int
    """that were drawn again"""
    routed: int
    """positions whose experts were compared"""
    versions: tuple[int, ...]
    """whose weights were needed, in rising order"""
    difference: Difference | None
    """the first one; None = the same bits"""


class _Pass(NamedTuple):
    """Rows [0, len(versions)) of a context, each under a version; positions in `draws` are drawn after the row before."""

    versions: list[int]
    draws: range


class Replayer:
    """Computes as the engine of `config` does, on one slot."""

    def __init__(self, model: ModelConfig, config: EngineConfig, bits_of: BitsOf) -> None:
        single = EngineConfig(
            backend=config.backend, parity=config.parity, context_tokens=config.context_tokens, slots=1, batch=1
        )
        self._compute, self._bits_of, self._room = open_compute(model, single), bits_of, config.context_tokens
        self._serving, self._staged = -1, 0
        self._have: list[int] = []
        """version that computed the keys of each position in the slot"""

    def episode(
        self, episode: Episode, sampling: Sampling, experts: Callable[[Segment], Routes | None]
    ) -> Iterator[TurnReplay]:
        """Turn by turn. `sampling`: temperature and top_p of the run; the seed is the episode's own.

        experts: recorded choices of a segment [positions, layers, top_k], None = they are not compared. ReplayError.
        """
        for segment in episode.segments:
            self._have = []
            recorded = experts(segment)
            ids: list[int] = []
            for turn in segment.turns:
                first = max(len(ids) - 1, 0)
                ids += [*turn.input_ids, *turn.sampled_ids]
                _check(episode.id, segment, turn, len(ids), self._room)
                known = None if recorded is None else recorded[first : len(ids) - 1]
                seed = segment_seed(episode.seed, segment.index)
                seeded = Sampling(temperature=sampling.temperature, top_p=sampling.top_p, seed=seed)
                yield self._turn(segment.index, turn, ids, seeded, known, first)

    def _turn(
        self, segment: int, turn: Turn, ids: Sequence[int], sampling: Sampling, known: Routes | None, first: int
    ) -> TurnReplay:
        begin = len(ids) - len(turn.sampled_ids)
        tokens, kv = versions_of(turn.version_runs), versions_of(turn.kv_runs)
        drawn: dict[int, tuple[int, float]] = {}
        routes: dict[int, Routes] = {}
        for each in _passes(begin, tokens, kv):
            got, routed = self._run(ids, each, min(first, begin - 1), sampling)
            # a row from which a token was drawn keeps the experts of that time, any other has the newest
            routes |= {row: found for row, found in routed.items() if row + 1 not in drawn}
            drawn |= {position: got[position] for position in each.draws}
        versions = tuple(sorted({*tokens, *kv[min(first, begin - 1) :]}))
        difference = self._difference(turn, begin, tokens, drawn)
        if known is not None:
            difference = _earlier(difference, _other_experts(known, routes, first, begin, kv))
        return TurnReplay(
            segment, turn.index, len(tokens), 0 if known is None else len(known), versions, difference
        )  # fmt: skip

    def _run(
        self, ids: Sequence[int], each: _Pass, first: int, sampling: Sampling
    ) -> tuple[dict[int, tuple[int, float]], dict[int, Routes]]:
        """Tokens and log-probabilities by position, and experts by row, of the rows that had to be computed."""
        same = next((i for i, (a, b) in enumerate(zip(self._have, each.versions)) if a != b), len(self._have))
        row = min(same, first, len(each.versions))
        drawn: dict[int, tuple[int, float]] = {}
        routes: dict[int, Routes] = {}
        while row < len(each.versions):
            version = each.versions[row]
            stop = min(row + ROWS, len(each.versions))
            stop = next((i for i in range(row, stop) if each.versions[i] != version), stop)
            self._serve(version)
            wanted = [p for p in each.draws if row <= p - 1 < stop]
            draws = [Draw(p - 1 - row, p, sampling) for p in wanted]
            done = self._compute.step(Work(ids[row:stop], range(row, stop), [], [Chunk(0, row, stop - row)], draws))
            drawn |= dict(zip(wanted, zip(done.sampled_ids, done.logprobs)))
            routes |= dict(zip(range(row, stop), done.routes))
            row = stop
        self._have = list(each.versions)
        return drawn, routes

    def _serve(self, version: int) -> None:
        if version == self._serving:
            return
        self._staged += 1  # weights are staged under numbers that rise, whatever the versions are
        self._compute.weights.stage(self._staged, self._bits_of(version))
        self._compute.weights.flip()
        self._serving = version

    def _difference(
        self, turn: Turn, begin: int, versions: Sequence[int], drawn: Mapping[int, tuple[int, float]]
    ) -> Difference | None:
        for i, (token, logprob) in enumerate(zip(turn.sampled_ids, turn.logprobs)):
            got, scored = drawn[begin + i]
            if got != token:
                return Difference("token", i, begin + i, versions[i], f"{token}", f"{got}")
            if scored != logprob:
                return Difference("log-probability", i, begin + i, versions[i], f"{logprob!r}", f"{scored!r}")
        return None


def _passes(begin: int, tokens: Sequence[int], kv: Sequence[int]) -> Iterator[_Pass]:
    """The tokens of a turn from position `begin` on, sampled under `tokens`; keys in the end computed under `kv`."""
    done = begin
    for version, same in groupby(tokens):
        end = done + len(list(same))
        if kv[done - 1] != version:
            # the keys of that time were of this version, all of them, and were computed anew later
            yield _Pass([version] * (end - 1), range(done, end))
            done = end
        else:
            break
    yield _Pass(list(kv), range(done, begin + len(tokens)))


def _other_experts(
    known: Routes, routes: Mapping[int, Routes], first: int, begin: int, kv: Sequence[int]
) -> Difference | None:
    """Of positions first, first + 1, ...: the first whose experts are another set in some layer."""
    for position, want in enumerate(known, first):
        got = routes[position]
        if (np.sort(want.astype(np.int64), -1) != np.sort(got.astype(np.int64), -1)).any():
            token = position + 1 - begin
            return Difference("experts", max(token, -1), position, kv[position], f"{want.tolist()}", f"{got.tolist()}")
    return None


def _earlier(one: Difference | None, other: Difference | None) -> Difference | None:
    """What comes first: the experts of a position before the token that is drawn after it."""
    if one is None or other is None:
        return one or other
    return other if other.position < one.position else one


def _check(episode_id: str, segment: Segment, turn: Turn, length: int, room: int) -> None:
    where = f"episode {episode_id}, segment {segment.index}, turn {turn.index}"
    if not turn.kv_runs:
        raise ReplayError(
            f"{where} does not say which versions computed its keys (Turn.kv_runs): its engine is none that can be "
            "replayed, or the run is older than that record"
        )
    if (said := sum(run.count for run in turn.kv_runs)) != length - 1:
        raise ReplayError(f"{where}: kv_runs covers {said} positions of {length - 1}; the record contradicts itself")
    if length > room:
        raise ReplayError(
            f"{where} has {length} tokens, and engine.context_tokens is {room}: is this the run's config?"
        )
