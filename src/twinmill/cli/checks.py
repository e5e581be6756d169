"""Every check of a configuration that can be made before the first second of compute, each one line with its mend.

`problems` looks at a whole config, `without_effect` at single keys that somebody has set. Both name the key first.
"""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from twinmill.batch.alarm import HackAlarm
from twinmill.data.render import open_renderer
from twinmill.data.tasks.base import TaskSet, open_taskset
from twinmill.engine.embedded.config import backend_of
from twinmill.env.machine import BACKENDS
from twinmill.env.machine.remote.config import RemoteConfig
from twinmill.model import core
from twinmill.model.config import ConfigError as ModelError
from twinmill.model.config import ModelConfig, Parity, read_config
from twinmill.publish.config import problems_of

from .makers import machine_maker

if TYPE_CHECKING:
    from .config import RunConfig

READ_BY = {
    "corpus": ("midtrain",),
    "taskset": ("experts", "rl"),
    "machine": ("experts", "rl"),
    "remote": ("experts", "rl"),
    "rollout": ("experts", "rl"),
    "harness": ("experts", "rl"),
    **dict.fromkeys(("split", "store", "engine", "sync", "publish", "audit"), ("rl",)),
}
"""block -> the blocks without which nobody reads it"""
AT_LEAST = {
    "trainer_threads": 1,
    "rl.steps": 1,
    "rollout.groups_in_flight": 1,
    "rollout.machines": 1,
    "rollout.losses": 1,
    "harness.turn_tokens": 1,
    "harness.turns": 1,
    "harness.engine_tries": 1,
    "evaluation.tasks": 1,
    "evaluation.between_tasks": 1,
    "evaluation.attempts": 1,
    "evaluation.machines": 1,
    "experts.episodes": 1,
}
"""key -> the least value that means anything"""
ABOVE_ZERO = ("hang_s", "rollout.beat_s", "rollout.poll_s", "harness.tool_s", "sync.poll_s", "sync.outage_s")
"""keys whose values are seconds, of which 0 would mean for ever or without a pause"""
SINKS = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""metrics sink -> the module it needs"""


def without_effect(keys: Iterable[str], config: "RunConfig") -> Iterator[str]:
    """Of keys that somebody has set, those that no part of this run reads."""
    for key in keys:
        readers = READ_BY.get(key.partition(".")[0], ())
        if readers and all(getattr(config, reader) is None for reader in readers):
            yield f"{key} has no effect: {' and '.join(readers)} {'are' if len(readers) > 1 else 'is'} off; leave it out"


def problems(config: "RunConfig") -> Iterator[str]:
    yield from _phases(config)
    yield from _numbers(config)
    yield from _model(config)
    for sink in config.sinks:
        if sink not in SINKS:
            yield f"sinks: there is no {sink!r}; choose of {', '.join(SINKS)}"
        elif importlib.util.find_spec(SINKS[sink]) is None:
            yield f"sinks: {sink} is not installed; pip install 'twinmill[{sink}]', or leave it out"
    if config.experts is not None or config.rl is not None:
        yield from _tasks(config)
    if config.rl is not None:
        yield from _rl(config)


def _phases(config: "RunConfig") -> Iterator[str]:
    """What is on needs what it stands on."""
    if config.midtrain is None and config.sft is None and config.rl is None:
        yield "nothing to do: midtrain, sft and rl are all off; switch one on"
    if config.sft is not None and config.experts is None:
        yield "sft is on but experts is off: there would be no transcripts; set experts, or sft to None"
    if config.experts is not None and config.sft is None:
        yield "experts is on but sft is off: nobody would read the transcripts; set experts to None"
    if config.experts is not None and config.taskset.partition(":")[0] not in ("tinyrepo", "unopened", "exploitable"):
        yield f"experts plays tinyrepo and unopened only, but taskset is {config.taskset}; set experts and sft to None"
    if config.rl is None and config.clusters:
        yield "clusters are given but rl is off: they would have nothing to do; set clusters to ()"
    if config.rl is None and config.evaluation is not None:
        yield "evaluation is on but rl is off: it looks at versions that RL publishes; set evaluation to None"


def _numbers(config: "RunConfig") -> Iterator[str]:
    for key, least in AT_LEAST.items():
        value = _value(config, key)
        if value is not None and value < least:
            yield f"{key} is {value}; it must be at least {least}"
    for key in ABOVE_ZERO:
        value = _value(config, key)
        if value is not None and value <= 0:
            yield f"{key} is {value}; it must be above 0, in seconds"


def _value(config: "RunConfig", key: str):  # type: ignore[no-untyped-def]
    """None = its block is off."""
    node: object = config
    for part in key.split("."):
        node = None if node is None else getattr(node, part)
    return node


def _model(config: "RunConfig") -> Iterator[str]:
    folder = Path(config.model)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            yield f"model: no Hugging Face folder at {folder} (it needs config.json, weights, tokenizer.json)"
            return
    try:
        model = read_config(folder)
        open_renderer(folder)
    except (ModelError, ValueError) as error:
        yield f"model: {error}"
        return
    if config.rl is not None:
        yield from _fits(config, model)


def _fits(config: "RunConfig", model: ModelConfig) -> Iterator[str]:
    assert config.rl is not None
    yield from _core(config, model)
    if config.rl.preparation.replay and not model.experts:
        yield "rl.preparation.replay is on but the model is dense: it has no experts to replay; set it to False"
    if config.engine.context_tokens > model.max_positions:
        yield (
            f"engine.context_tokens is {config.engine.context_tokens}, but the model has {model.max_positions} positions; "
            "set it to at most that"
        )


def _tasks(config: "RunConfig") -> Iterator[str]:
    yield from _machines(config)
    try:
        taskset = open_taskset(config.taskset)
    except (ValueError, ImportError, OSError) as error:
        yield f"taskset: {error}"
        return
    splits = {"split": config.split} if config.rl is not None else {}
    if config.evaluation is not None:
        splits["evaluation.split"] = config.evaluation.split
    for key, split in splits.items():
        yield from _split(config, taskset, key, split)


def _machines(config: "RunConfig") -> Iterator[str]:
    if config.machine not in BACKENDS:
        yield f"machine: there is no {config.machine!r}; choose one of {', '.join(BACKENDS)}"
    elif config.machine == "remote":
        try:
            machine_maker(config.machine, config.remote)
        except ValueError as error:
            yield str(error)
    elif config.remote != RemoteConfig():
        yield f"remote has no effect: machine is {config.machine}; set machine to remote, or leave remote out"


def _split(config: "RunConfig", taskset: TaskSet, key: str, split: str) -> Iterator[str]:
    try:
        ids = taskset.ids(split)
        first = taskset.load(ids[0]) if len(ids) else None
    except (ValueError, ImportError, OSError) as error:
        yield f"{key}: {error}"
        return
    if first is None:
        yield f"{key}: {config.taskset} has no task in {split}; choose another split"
    elif first.budget.context_tokens > config.engine.context_tokens:
        have, need = config.engine.context_tokens, first.budget.context_tokens
        yield f"engine.context_tokens is {have}, but tasks of {config.taskset} use up to {need}; set it to {need}"


def _rl(config: "RunConfig") -> Iterator[str]:
    rl, rollout, harness = config.rl, config.rollout, config.harness
    assert rl is not None
    if not config.clusters:
        yield "rl is on but clusters is empty: name at least one cluster"
    names = [cluster.name for cluster in config.clusters]
    if len(set(names)) != len(names) or not all(n.replace("-", "").isalnum() and n.isascii() for n in names):
        yield f"clusters: names must be different, of letters, digits and dashes; they are {', '.join(names)}"
    if rollout.group_size < 2:
        yield f"rollout.group_size is {rollout.group_size}: credit compares attempts with one another; use at least 2"
    if rl.compute.temperature != harness.temperature:
        yield (
            f"rl.compute.temperature is {rl.compute.temperature} and harness.temperature is {harness.temperature}: "
            "the trainer must score at the temperature that was sampled at; make them equal"
        )
    if harness.temperature <= 0:
        yield "harness.temperature is 0: greedy attempts are all alike and teach nothing; use 1"
    if rl.preparation.replay and not harness.experts:
        yield "rl.preparation.replay is on but harness.experts is off: no routes would be recorded; switch both"
    if rl.window.age_limit is not None and rl.window.policy == "in_order":
        yield "rl.window.age_limit has no effect with policy in_order: no token gets older than the window; set it to None"
    if rl.window.window == 0 and len(names) > 1 and rl.window.groups_per_step < len(names):
        yield "rl.window.groups_per_step is below the number of clusters: one would always stand still"
    yield from problems_of(config.publish)
    if config.audit is None and rl.alarm != HackAlarm():
        yield "rl.alarm has no effect: audit is off, so nobody flags a hack; set audit, or leave rl.alarm out"
    if (
        config.audit is not None
        and config.audit.canary_every
        and not config.taskset.startswith(("tinyrepo", "unopened"))
    ):
        yield f"audit.canary_every is on, but {config.taskset} has no split impossible (tinyrepo has); set it to 0"


def _core(config: "RunConfig", model: ModelConfig) -> Iterator[str]:
    """Who wants the native core needs one, at both ends: the processes of a run share one installation."""
    assert config.rl is not None
    wanted = {"engine.backend": config.engine.backend == "core", "rl.parity": config.rl.parity is Parity.CORE}
    for key, is_wanted in wanted.items():
        if is_wanted and not core.available():
            yield f"{key} is core, but this installation has no native core (see twinmill doctor); leave it out"
        elif is_wanted and (lacking := core.lacks(model)):
            yield f"{key} is core, but the native core has no {lacking}; leave it out, then torch computes"
    if config.rl.parity is Parity.CORE and backend_of(config.engine, model).backend != "core":
        yield "rl.parity is core, but engine.backend is torch: their bits differ; set rl.parity to strict, or the backend"


def switched_off(keep: Iterable[str]) -> Mapping[str, object]:
    """What a command that runs only the phases `keep` (of midtrain, sft, rl) changes in a config."""
    off: dict[str, object] = {name: None for name in ("midtrain", "sft", "rl") if name not in keep}
    if "sft" not in keep:
        off["experts"] = None
    if "rl" not in keep:
        off |= {"clusters": (), "evaluation": None}
    return off
