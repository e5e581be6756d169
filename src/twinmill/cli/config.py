"""The full configuration of a run, how a recipe makes one, and every check that can be made before the first second of
compute. An unknown key, an unused key, a wrong type and an impossible combination each give one line with the mend.

This module imports the trainer's blocks and so torch; torch-free processes read single blocks through `Blocks`.
"""

import difflib
import json
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from twinmill.data.corpus import CorpusConfig
from twinmill.data.tasks.tinyrepo.expert import Style
from twinmill.engine.embedded import EngineConfig
from twinmill.engine.sync import SyncConfig
from twinmill.env.harness.loop import HarnessConfig
from twinmill.publish import LinkConfig, PublishConfig
from twinmill.rollout.evaluate import EvalConfig
from twinmill.rollout.mill import RolloutConfig
from twinmill.store.blobs import StoreConfig
from twinmill.train.midtrain import Midtrain
from twinmill.train.rl import Rl
from twinmill.train.sft import Sft

from .blocks import ConfigError


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure and bandwidth domain: one engine process with its subscriber and mirror, one rollout process."""

    name: str
    """letters, digits and dashes"""
    link: LinkConfig = LinkConfig()
    """how far away the bucket is"""
    threads: int = 1
    """of its engine"""


class Experts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The transcripts that SFT learns from: a scripted expert plays tasks in the real harness and machine."""

    episodes: int = 256
    """transcripts"""
    style: Style = Style()
    """the expert's habits"""
    only_right: bool = False
    """keep only transcripts that end in a passing repository"""
    first: int = 0
    """number of the first training task that it plays; RL takes others only by chance"""


class RunConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a run depends on. An absent block (None) switches that part off."""

    name: str
    """of the run; its folder is runs/<name>-<date>"""
    model: str
    """Hugging Face folder of the base model"""
    seed: int = 0
    """of everything that is random"""
    taskset: str = "tinyrepo:0"
    """what is attempted: tinyrepo:LEVEL, humaneval, harbor:FOLDER"""
    split: str = "train"
    """split of the task set that RL draws from"""
    store: StoreConfig = StoreConfig()
    """where the logs and objects lie: a folder or s3://...; url "" = inside the run folder"""
    corpus: CorpusConfig = CorpusConfig()
    midtrain: Midtrain | None = None
    experts: Experts | None = None
    sft: Sft | None = None
    rl: Rl | None = None
    clusters: tuple[Cluster, ...] = ()
    rollout: RolloutConfig = RolloutConfig()
    harness: HarnessConfig = HarnessConfig()
    engine: EngineConfig = EngineConfig()
    sync: SyncConfig = SyncConfig()
    publish: PublishConfig = PublishConfig()
    evaluation: EvalConfig | None = None
    machine: str = "namespace"
    """machine backend"""
    hang_s: float = 30.0
    """seconds without a sign of life after which a process counts as hanging and is started again; the evaluator gets
    twice and the trainer four times as long"""
    trainer_threads: int = 1
    """of the trainer process"""
    sinks: tuple[str, ...] = ()
    """where metrics go besides the run folder: tensorboard, wandb"""


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Run the recipe file and lay `block.key=value` overrides over what its `recipe()` returns."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no recipe at {path}")
    made = runpy.run_path(str(path)).get("recipe")
    if made is None:
        raise ConfigError(f"{path} defines no function recipe() that returns a RunConfig")
    config = made()
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{path}: recipe() returned {type(config).__name__}, not a RunConfig")
    return check(override(config, overrides))


def override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    raw = json.loads(msgspec.json.encode(config))
    for item in overrides:
        key, eq, value = item.partition("=")
        if not eq:
            raise ConfigError(f"{item!r} is no override: write block.key=value")
        _set(raw, key, _value(value))
    return from_raw(raw)


def from_raw(raw: dict[str, Any]) -> RunConfig:
    try:
        return msgspec.convert(raw, RunConfig, strict=True)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(_friendly(str(error))) from error


def from_json(data: bytes) -> RunConfig:
    try:
        return from_raw(json.loads(data))
    except json.JSONDecodeError as error:
        raise ConfigError(f"config is not JSON: {error}") from error


def to_json(config: RunConfig) -> bytes:
    return msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"None": None, "True": True, "False": False}.get(text, text)


def _set(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key that exists; a key below a block that is off is an error, not a silent nothing."""
    *path, last = key.split(".")
    node: Any = raw
    for i, part in enumerate(path):
        node = _step(node, part, ".".join(path[: i + 1]))
        if node is None:
            raise ConfigError(f"{key} has no effect: {'.'.join(path[: i + 1])} is off in this recipe")
    _step(node, last, key)
    if isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value


def _step(node: Any, part: str, so_far: str) -> Any:
    if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
        return node[int(part)]
    if isinstance(node, dict) and part in node:
        return node[part]
    known = [k for k in node if k != "record"] if isinstance(node, dict) else []
    close = difflib.get_close_matches(part, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known) or 'no keys here'}"
    raise ConfigError(f"unknown key {so_far}: {hint}")


def _friendly(message: str) -> str:
    """msgspec's words, with our path: "Expected `int`, got `str` - at `$.rl.steps`" -> "rl.steps: expected ..."."""
    what, at, path = message.partition(" - at `$")
    if not at:
        return message
    return f"{path.strip('`').lstrip('.')}: {what[0].lower()}{what[1:]}"


def check(config: RunConfig) -> RunConfig:
    """All cross-field checks. Raises ConfigError with the first problem."""
    for problem in _problems(config):
        raise ConfigError(problem)
    return config


def _problems(config: RunConfig) -> Iterator[str]:
    rl, rollout = config.rl, config.rollout
    if config.midtrain is None and config.sft is None and rl is None:
        yield "nothing to do: midtrain, sft and rl are all off; switch one on"
    if not (Path(config.model) / "config.json").is_file():
        yield f"model: no Hugging Face folder at {config.model} (it needs config.json, weights, tokenizer.json)"
    if config.hang_s <= 0:
        yield f"hang_s is {config.hang_s}: a process that hangs would never be noticed; use 30"
    if config.sft is not None and config.experts is None:
        yield "sft is on but experts is off: there would be no transcripts; set experts, or sft to None"
    if config.experts is not None and config.sft is None:
        yield "experts is on but sft is off: nobody would read the transcripts; set experts to None"
    if rl is None:
        if config.clusters:
            yield "clusters are given but rl is off: they would have nothing to do; set clusters to ()"
        return
    if not config.clusters:
        yield "rl is on but clusters is empty: name at least one cluster"
    names = [cluster.name for cluster in config.clusters]
    if len(set(names)) != len(names) or not all(n.replace("-", "").isalnum() for n in names):
        yield f"clusters: names must be different, of letters, digits and dashes; they are {', '.join(names)}"
    if rollout.group_size < 2:
        yield f"rollout.group_size is {rollout.group_size}: credit compares attempts with one another; use at least 2"
    if rl.compute.temperature != config.harness.temperature:
        yield (
            f"rl.compute.temperature is {rl.compute.temperature} and harness.temperature is {config.harness.temperature}: "
            "the trainer must score at the temperature that was sampled at; make them equal"
        )
    if config.harness.temperature <= 0:
        yield "harness.temperature is 0: greedy attempts are all alike and teach nothing; use 1"
    if rl.preparation.replay and not config.harness.experts:
        yield "rl.preparation.replay is on but harness.experts is off: no routes would be recorded; switch both"
    if rl.window.age_limit is not None and rl.window.policy == "in_order":
        yield "rl.window.age_limit has no effect with policy in_order: no token gets older than the window; set it to None"
    if rl.window.window == 0 and len(config.clusters) > 1 and rl.window.groups_per_step < len(config.clusters):
        yield "rl.window.groups_per_step is below the number of clusters: one would always stand still"


def batch_slots(rl: Rl) -> int:
    """Slots of a whole run."""
    return rl.steps * rl.window.groups_per_step
