"""A mixture of experts under RL, step by step: how small deltas are where a step brings most experts few tokens, or none.

    103M parameters from random bf16 values (median |w| 0.0135, as scale S), 384 experts in 6 layers, 4 of 64 for a token
    -> the rollouts, gradients and Adam of _material.py, one optimizer step after another, nothing is kept
    -> per step: changed, ratio of the publisher's objects; every `every` steps the bound h1, and what each expert did

Not a trained model: its router is nearly fair, so that use differs less between experts than in a real one.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from rich.progress import track

from _material import Adam, Floats, Rollouts, Set, Start, gradient, roll, step, to_bf16
from twinmill.model.config import ModelConfig
from twinmill.model.hf import dtypes, init_decoder, load_bits, named_views

MODEL = ModelConfig(
    family="qwen3_moe", vocab=8192, width=384, layers=6, heads=6, kv_heads=2, head_dim=64, experts=64, top_k=4,
    expert_intermediate=224, qk_norm=True, max_positions=512,
)  # fmt: skip
LEARNING_RATE = 1e-6
ROLLOUTS = Rollouts(prompts=4, samples=4, tokens=12, batch=4)


class Expert(NamedTuple):
    """What became of one expert of one layer in one step."""

    learned: float
    """share of the steps so far that brought it a gradient"""
    changed: float


class Update(NamedTuple):
    number: int
    pair: Set
    changed: float
    experts: list[Expert]


def updates(steps: int, model: ModelConfig = MODEL, plan: Rollouts = ROLLOUTS) -> Iterator[Update]:
    """One after another."""
    decoder = init_decoder(model, 0)
    views = named_views(decoder)
    names = list(views)
    shapes = {name: tuple(view.shape) for name, view in views.items()}
    masters = np.concatenate([view.numpy().reshape(-1) for view in views.values()])
    start = Start(model, [f"Ġ{i}" for i in range(model.vocab)], dict)
    places = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes.values())])
    cut = {name: slice(places[i], places[i + 1]) for i, name in enumerate(names)}
    groups: dict[str, list[str]] = {}
    for name in names:
        if ".experts." in name:
            groups.setdefault(name.rsplit(".", 2)[0], []).append(name)
    adam, learned = Adam(masters.size), dict.fromkeys(groups, 0)
    before, attempts = _state(masters, cut, shapes), []
    for number in track(range(steps), "mixture"):
        load_bits(decoder, before, dtypes(decoder))
        rollout, place = divmod(number * plan.batch, plan.prompts * plan.samples)
        if not place:
            attempts = asyncio.run(roll(start, before, plan, rollout))
        moved = gradient(decoder, attempts[place : place + plan.batch], names)
        for group, mine in groups.items():
            learned[group] += any(moved[cut[name]].any() for name in mine)
        step(masters, adam.direction(moved), LEARNING_RATE)
        after = _state(masters, cut, shapes)
        differs = {name: np.count_nonzero(before[name] != after[name]) for name in names}
        experts = [
            Expert(learned[group] / (number + 1), _share(differs, shapes, mine)) for group, mine in groups.items()
        ]
        yield Update(number, Set("mixture", before, after), _share(differs, shapes, names), experts)
        before = after


def _share(differs: dict[str, int], shapes: dict[str, tuple[int, ...]], names: list[str]) -> float:
    return sum(differs[name] for name in names) / sum(int(np.prod(shapes[name])) for name in names)


def _state(masters: Floats, cut: dict[str, slice], shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    bits = to_bf16(masters)
    return {name: bits[cut[name]].reshape(shape) for name, shape in shapes.items()}
