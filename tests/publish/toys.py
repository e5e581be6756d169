"""A tiny model whose weights move as RL moves them, and the one way these tests publish it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twinmill.publish import PublishConfig
from twinmill.publish.publisher import Publisher
from twinmill.records.weights import WeightVersion
from twinmill.store.blobs import Blobs

SHAPES = {
    "model.embed_tokens.weight": ("BF16", (64, 16)),
    "model.layers.0.mlp.experts.0.up_proj.weight": ("BF16", (32, 16)),
    "model.layers.0.mlp.experts.1.up_proj.weight": ("BF16", (32, 16)),
    "model.norm.weight": ("F32", (16,)),
    "scale": ("F8_E4M3", (5,)),
    "step": ("F64", ()),
}
DTYPES = {name: dtype for name, (dtype, _) in SHAPES.items()}
_WIDTH = {"BF16": np.uint16, "F32": np.uint32, "F8_E4M3": np.uint8, "F64": np.uint64}
State = dict[str, npt.NDArray]


def first_state(seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, np.iinfo(_WIDTH[dtype]).max, shape, _WIDTH[dtype]).reshape(shape)
        for name, (dtype, shape) in SHAPES.items()
    }


def moved(state: State, seed: int, frac: float = 0.02) -> State:
    """`frac` of the bits of all but the second expert move by a few units in the last place."""
    rng = np.random.default_rng(seed)
    after = {name: array.copy() for name, array in state.items()}
    for name, array in after.items():
        if ".experts.1." in name:
            continue
        flat = array.reshape(-1)
        where = rng.choice(flat.size, max(1, int(flat.size * frac)), replace=False)
        flat[where] += rng.choice(np.array([1, -1, 2, -3]), len(where)).astype(flat.dtype)
    return after


class Trainer:
    """Publishes versions; remembers every state that it published."""

    def __init__(self, blobs: Blobs, full_every: int = 0, run_id: str = "run", **config: Any) -> None:
        self.publisher = Publisher(blobs, run_id, PublishConfig(**{"full_every": full_every, "threads": 1, **config}))
        self.states: list[State] = []

    def publish(self, slots: Sequence[int] = (), full: bool = False) -> WeightVersion:
        number = len(self.states)
        self.states.append(moved(self.states[-1], number) if number else first_state())
        return self.publisher.publish(
            self.states[-1],
            DTYPES,
            step=number,
            slots=slots,
            config=b'{"model_type": "toy"}' if not number else None,
            tokenizer=b"{}" if not number else None,
            created_at=0.0,
            full=full,
        )


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        one[name].tobytes() == other[name].tobytes() and one[name].shape == other[name].shape for name in one
    )
