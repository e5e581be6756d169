"""The full configuration of a run, how a recipe makes one, and every check that can be made before the first second of
compute. An unknown key, an unused key, a wrong type and an impossible combination each give one line with the mend.

This module imports the trainer's blocks and so torch; torch-free processes read single blocks through `Blocks`.
"""

import difflib
import json
import runpy
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct

from twinmill.data.corpus import CorpusConfig
from twinmill.data.tasks.tinyrepo.expert import Style
from twinmill.engine.embedded import EngineConfig
from twinmill.engine.sync import SyncConfig
from twinmill.env.audit import AuditConfig
from twinmill.env.harness.loop import HarnessConfig
from twinmill.env.machine.remote.config import RemoteConfig
from twinmill.publish import CollectConfig, LeaseConfig, LinkConfig, MirrorConfig, PublishConfig
from twinmill.rollout.evaluate import EvalConfig
from twinmill.rollout.mill import RolloutConfig
from twinmill.store.blobs import StoreConfig
from twinmill.train.midtrain import Midtrain
from twinmill.train.rl import Rl
from twinmill.train.sft import Sft

from .blocks import ConfigError
from .checks import problems, without_effect


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure and bandwidth domain: one engine process with its subscriber and mirror, one rollout process."""

    name: str
    """letters, digits and dashes"""
    link: LinkConfig = LinkConfig()
    """how far away the bucket is"""
    mirror: MirrorConfig = MirrorConfig()
    """its copy of the weights"""
    lease: LeaseConfig = LeaseConfig()
    """what it says to the collector"""
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
    """what is attempted: tinyrepo:LEVEL, unopened, dbmigrate:KIND, humaneval, harbor:FOLDER"""
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
    audit: AuditConfig | None = AuditConfig()
    """what is done about attempts that cheat; None = nobody looks"""
    engine: EngineConfig = EngineConfig()
    sync: SyncConfig = SyncConfig()
    publish: PublishConfig = PublishConfig()
    collect: CollectConfig = CollectConfig()
    """what stays of old versions"""
    evaluation: EvalConfig | None = None
    machine: str = "namespace"
    """machine backend"""
    remote: RemoteConfig = RemoteConfig()
    """where machines are, with machine set to remote"""
    hang_s: float = 30.0
    """seconds without a sign of life after which a process counts as hanging and is started again; the evaluator gets
    twice and the trainer four times as long"""
    trainer_threads: int = 1
    """of the trainer process"""
    sinks: tuple[str, ...] = ()
    """where metrics go besides the run folder: tensorboard, wandb"""


def load_recipe(path: Path | str, overrides: Sequence[str] = (), off: Mapping[str, Any] | None = None) -> RunConfig:
    """Run the recipe file, lay `block.key=value` overrides over what its `recipe()` returns, and check the result.

    off: fields that a command which runs only some of the phases replaces at the end."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no recipe at {path}")
    config = msgspec.structs.replace(override(_made(path), overrides), **(off or {}))
    for problem in without_effect([item.partition("=")[0] for item in overrides], config):
        raise ConfigError(problem)
    return check(config)


def _made(path: Path) -> RunConfig:
    """What the recipe returns. A block that was given a key it does not have is named with the line of the recipe."""
    try:
        made = runpy.run_path(str(path)).get("recipe")
        if made is None:
            raise ConfigError(f"{path} defines no function recipe() that returns a RunConfig")
        config = made()
    except (TypeError, ValueError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
        if not lines or (isinstance(error, TypeError) and Path(frames[-1].filename) != path):
            raise  # a bug elsewhere
        raise ConfigError(f"{path}, line {lines[-1]}: {error}{_meant(str(error))}") from error
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{path}: recipe() returned {type(config).__name__}, not a RunConfig")
    return config


def _meant(message: str) -> str:
    """A hint for "Unexpected keyword argument 'stepss'"."""
    wrong = message.partition("keyword argument '")[2].rstrip("'")
    close = difflib.get_close_matches(wrong, sorted(_keys(RunConfig)), 1) if wrong else []
    return f": did you mean {close[0]}?" if close else ""


def _keys(block: Any) -> set[str]:
    """Names of all fields of a block and of the blocks within it."""
    if isinstance(block, type) and issubclass(block, Struct):
        fields = msgspec.structs.fields(block)
        return {field.name for field in fields} | {key for field in fields for key in _keys(field.type)}
    return {key for part in get_args(block) for key in _keys(part)}


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
    for problem in problems(config):
        raise ConfigError(problem)
    return config


def batch_slots(rl: Rl) -> int:
    """Slots of a whole run."""
    return rl.steps * rl.window.groups_per_step
