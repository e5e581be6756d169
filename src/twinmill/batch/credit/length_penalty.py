"""The concave length penalty of Composer 2 (arXiv 2603.24477, section 4.2), subtracted from the reward.

    C_{k,q}(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q)),   x = sum_m w_m n_m

Its slope is 1 at x = 0 whatever k and q, and falls as (1 + k x)^-q: an easy task pays for every token, a hard
one is not stopped from thinking long. q -> 0 is linear, q -> 1 is ln(1 + k x) / k, q > 1 saturates at 1 / (k
(q - 1)). The weights, k, q and the scale that were used are not published: the defaults below are ours.
"""

import math
from typing import NamedTuple

from msgspec import Struct

from twinmill.records.episodes import Episode, Turn


class LengthPenalty(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scale: float = 0.1
    """reward lost per unit of C; 0 = no penalty"""
    k: float = 0.01
    """how soon the slope falls, per unit of x; above 0"""
    q: float = 1.0
    """how fast the slope falls; 0 = linear"""
    thinking: float = 0.0
    """weight of a thinking token; counted between think_ids"""
    tool_call: float = 0.01
    """weight of a sampled token of a turn that calls tools"""
    tool_output: float = 0.0
    """weight of a token that a tool answered"""
    final: float = 0.01
    """weight of a sampled token of a turn that calls no tool"""
    calls: float = 0.0
    """weight of one tool call"""
    turns: float = 0.0
    """weight of one turn"""
    think_ids: tuple[int, int] | None = None
    """token ids that open and close thinking; None = the model has none and no token counts as thinking"""

    def __post_init__(self) -> None:
        if self.k <= 0 or self.q < 0 or self.scale < 0:
            raise ValueError(f"k must be above 0, q and scale at least 0; got {self.k}, {self.q}, {self.scale}")


class Counts(NamedTuple):
    """The six counts of one episode."""

    thinking: int
    tool_call: int
    tool_output: int
    final: int
    calls: int
    turns: int


def penalty(x: float, k: float, q: float) -> float:
    """C_{k,q}(x) for x >= 0, k > 0, q >= 0."""
    if x < 0 or k <= 0 or q < 0:
        raise ValueError(f"length penalty needs x >= 0, k > 0, q >= 0; got x={x}, k={k}, q={q}")
    if math.isclose(q, 1.0):
        return math.log1p(k * x) / k
    return math.expm1((1 - q) * math.log1p(k * x)) / (k * (1 - q))


def counts(episode: Episode, think_ids: tuple[int, int] | None) -> Counts:
    """What the episode spent. The input of a segment's first turn is its prompt (or summary), not a tool's
    output.
    """
    turns = [turn for segment in episode.segments for turn in segment.turns]
    thinking = {id(turn): _thinking(turn, think_ids) for turn in turns}
    return Counts(
        thinking=sum(thinking.values()),
        tool_call=sum(len(t.sampled_ids) - thinking[id(t)] for t in turns if t.tool_calls),
        tool_output=sum(len(t.input_ids) for segment in episode.segments for t in segment.turns[1:]),
        final=sum(len(t.sampled_ids) - thinking[id(t)] for t in turns if not t.tool_calls),
        calls=sum(len(t.tool_calls) for t in turns),
        turns=len(turns),
    )


def length_penalty(episode: Episode, config: LengthPenalty) -> float:
    """What the episode's reward loses; at least 0."""
    n = counts(episode, config.think_ids)
    x = sum(getattr(config, name) * value for name, value in n._asdict().items())
    return config.scale * penalty(x, config.k, config.q)


def _thinking(turn: Turn, think_ids: tuple[int, int] | None) -> int:
    """Sampled tokens from an opening to its closing id, both included; to the turn's end if it is never
    closed.
    """
    if think_ids is None:
        return 0
    inside, total = False, 0
    for token in turn.sampled_ids:
        inside = inside or token == think_ids[0]
        total += inside
        inside = inside and token != think_ids[1]
    return total
