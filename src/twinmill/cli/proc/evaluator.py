"""Process role `evaluator`: held-out pass rate of chosen versions, on an engine of its own that follows the log.

It looks at version 0 and the last one with all tasks, and in between, every `evaluation.every` versions, with fewer.
Results are kept in the run folder (evals/<version>.json), so that a resumed run repeats none.
"""

import asyncio
import time

import torch

from twinmill.cli.config import RunConfig, from_json
from twinmill.data.render import open_renderer
from twinmill.data.tasks.base import open_taskset
from twinmill.engine.embedded import EmbeddedEngine
from twinmill.env.audit import Auditor
from twinmill.model.config import from_hf
from twinmill.publish.apply import Prepared
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.subscriber import Subscriber
from twinmill.records import wire
from twinmill.records.engines import KvPolicy
from twinmill.rollout.evaluate import Score, evaluate, gain, interval, per_task
from twinmill.rollout.mill import no_audit
from twinmill.rollout.play import Player

from .base import Role, perform

POLL_S = 0.5


async def main(role: Role) -> None:
    config = from_json(role.run.config_path.read_bytes())
    assert config.rl is not None and config.evaluation is not None
    blobs = role.blobs()
    log, run_id = WeightsLog(blobs), role.run.record.run_id
    subscriber = Subscriber(blobs, run_id, who="evaluator")
    engine: EmbeddedEngine | None = None
    for version, tasks in due(config):
        if _result_path(role, version).exists():
            continue
        while log.newest() < version:
            role.heart.beat()
            await asyncio.sleep(POLL_S)
        prepared = subscriber.prepare(version)
        while prepared is None:
            role.heart.beat()
            await asyncio.sleep(POLL_S)
            prepared = subscriber.prepare(version)
        if engine is None:
            engine = open_engine(config, blobs, prepared)
        await engine.stage(version, prepared.tensors)
        await engine.flip(KvPolicy.RECOMPUTE)
        subscriber.commit(prepared)
        await one(role, config, engine, version, tasks)
    if engine is not None:
        engine.close()


def due(config: RunConfig) -> list[tuple[int, int]]:
    """(version, number of tasks), in order."""
    assert config.rl is not None and config.evaluation is not None
    last, every, few = config.rl.steps, config.evaluation.every, config.evaluation.between_tasks
    between = [(v, few) for v in range(every, last - every // 2, every)] if every else []
    return [(0, config.evaluation.tasks), *between, (last, config.evaluation.tasks)]


def open_engine(config: RunConfig, blobs, prepared: Prepared) -> EmbeddedEngine:  # type: ignore[no-untyped-def]
    import json

    torch.set_num_threads(1)
    assert prepared.version.config is not None
    return EmbeddedEngine(
        from_hf(json.loads(blobs.get_ref(prepared.version.config))),
        config.engine,
        engine_id="evaluator",
        cluster="evaluator",
    )


async def one(role: Role, config: RunConfig, engine: EmbeddedEngine, version: int, tasks: int) -> None:
    """Evaluate the version that `engine` serves, and keep and show the result."""
    settings = config.evaluation
    assert settings is not None
    harness = _at(config, settings.temperature)
    renderer = open_renderer(config.model)
    player = Player(
        engine=engine,
        renderer=renderer,
        make_machine=role.make_machine(),
        harness=harness,
        cluster="evaluator",
    )
    started = time.time()
    score = await evaluate(
        open_taskset(config.taskset), player, settings, tasks=tasks, on_done=lambda reward: role.heart.beat(),
        audit=no_audit if config.audit is None else Auditor(config.audit, renderer.decode),
    )  # fmt: skip
    role.run.write(_result_path(role, version), wire.to_json(score))
    low, high = interval([v for v in per_task(score) if v == v])
    role.metrics.write(
        "eval", name="heldout", version=version, step=version, pass_at_1=score.pass_at(1), ci_low=low, ci_high=high,
        tasks=tasks, temperature=settings.temperature, split=settings.split,
        pass_at_8=score.pass_at(8) if settings.attempts >= 8 else None,
    )  # fmt: skip
    role.metrics.write("busy", lane="evaluator", start=started, end=time.time(), what="eval")
    text = f"held-out pass@1 at version {version}: {score.pass_at(1):.1%} [{low:.1%}, {high:.1%}] on {tasks} tasks"
    if version:
        first = wire.from_json(_result_path(role, 0).read_bytes(), Score)
        change, below, above = gain(first, score)
        role.metrics.write("gain", version=version, points=100 * change, ci_low=100 * below, ci_high=100 * above)
        text += f"; {100 * change:+.1f} points [{100 * below:+.1f}, {100 * above:+.1f}] since version 0, same tasks"
    print(text, flush=True)


def _at(config: RunConfig, temperature: float):  # type: ignore[no-untyped-def]
    import msgspec

    return msgspec.structs.replace(config.harness, temperature=temperature, experts=False)


def _result_path(role: Role, version: int):  # type: ignore[no-untyped-def]
    folder = role.run.path / "evals"
    folder.mkdir(exist_ok=True)
    return folder / f"{version:05d}.json"


if __name__ == "__main__":
    perform(lambda role: asyncio.run(main(role)))
