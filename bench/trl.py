"""How fast is the whole loop against TRL's GRPOTrainer on the same CPU? Same model, prompts, groups, lengths and reward.

    twinmill bench trl                     (the first time it makes an environment for TRL: 1.2 GB, a few minutes)

Both sides turn the same prompts into single-turn completions of at most 64 tokens, 8 per prompt, 16 prompts a step, from
models/nano, score them by the same cheap function of token ids (_single_turn.py) and take one optimizer step. Every sample
is computed on either side, also where its advantage is 0. Prompts are equal by token id, which both sides check.

    ours    the shipped processes under the shipped supervisor: trainer, engine with its subscriber, rollout process; all
            logs, weight versions and records are written. Window 2, router replay on, one thread for the trainer and one
            for the engine. Only what plays an attempt is the benchmark's (_trl_rollout.py): there are no machines
    TRL     GRPOTrainer in one process, its generation by transformers, at the fastest setting of a sweep over threads,
            dtype and rows per pass, and then implementation of the experts; no reference, logs or checkpoints

samples/s = samples of a step over the median time of a step. Left out are the first steps of either side, and ours in which
no slots are left to be played. The sides are measured in turn, as often as --rounds says, all on one machine.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from statistics import median

import msgspec

from _result import finish
from _runs import ROOT, Trace
from _single_turn import GROUP, LEARNING_RATE, PROMPTS_PER_STEP, SAMPLES_PER_STEP, Problem, write
from _trl_env import python as trl_python
from _trl_rollout import PROBLEMS_FILE
from twinmill.cli.run import create, specs
from twinmill.data.curriculum import task_of
from twinmill.data.render import open_renderer
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.data.tasks.tinyrepo.expert import Style, plan
from twinmill.env.harness.tools import SPECS
from twinmill.launch.outcome import Ending
from twinmill.launch.supervisor import Supervisor

HERE = Path(__file__).parent
RECIPE = ROOT / "recipes" / "single_turn.py"
MODEL = ROOT / "models" / "nano"
SEED = 0
WARM_UP = 2
"""first steps of either side that do not count"""
TRL_S = 1800.0
"""deadline of one run of TRL"""


def problems(model: Path, steps: int) -> list[Problem]:
    """In the order of slots, which is the order of TRL's data set as well."""
    renderer, tinyrepo = open_renderer(model), TinyRepo(0)
    ids, tools = tinyrepo.ids("train"), list(SPECS.values())
    found = []
    for slot in range(steps * PROMPTS_PER_STEP):
        task = tinyrepo.load(task_of(slot, ids, SEED))
        prompt = renderer.open(task.messages, [])
        surely_right = Style(wrong_guess=0.0, tests=0.0)
        message, _ = plan(tinyrepo.broken(task.id), surely_right, random.Random(slot))[0]
        found.append(Problem(task.id, prompt, renderer.decode(prompt), renderer.assistant(message, tools)))
    return found


@dataclass(frozen=True)
class Setting:
    """One way to run TRL. `rows` = samples of one forward and backward pass."""

    threads: int
    dtype: str
    rows: int
    experts: str = "grouped_mm"

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.dtype}, {self.rows} rows, {self.experts}"


def sweep(cores: int) -> list[Setting]:
    threads, rows = sorted({1, cores}), (SAMPLES_PER_STEP // 4, SAMPLES_PER_STEP)
    return [Setting(*each) for each in product(threads, ("fp32", "bf16"), rows)]


@dataclass(frozen=True)
class Side:
    """What one side did: seconds of the steps that count, and what it sampled."""

    step_s: list[float]
    tokens: float
    """mean of a completion"""
    reward: float

    @property
    def samples_per_s(self) -> float:
        return SAMPLES_PER_STEP / median(self.step_s)


def run_trl(interpreter: Path, folder: Path, model: Path, setting: Setting, steps: int, label: str) -> Side:
    write(folder / PROBLEMS_FILE, problems(model, steps))
    out = folder / label
    out.mkdir(parents=True)
    settings = {**asdict(setting), "steps": steps, "model": str(model), "out": str(out)}
    (out / "settings.json").write_text(json.dumps({**settings, "problems": str(folder / PROBLEMS_FILE)}))
    alone = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    alone |= {"OMP_NUM_THREADS": str(setting.threads), "HF_HOME": str(out / "hf"), "TOKENIZERS_PARALLELISM": "false"}
    command = [str(interpreter), str(HERE / "_trl_side.py"), str(out / "settings.json")]
    with (out / "errors.txt").open("w") as errors:
        done = subprocess.run(
            command, env={**os.environ, **alone}, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=TRL_S
        )
    if done.returncode:
        raise RuntimeError(f"TRL ended with {done.returncode} at {setting}; see {out / 'errors.txt'}\n{done.stdout}")
    facts = json.loads(done.stdout.splitlines()[-1])
    side = Side(facts["step_s"][WARM_UP:], facts["tokens"], facts["reward"])
    print(f"TRL, {setting}: {side.samples_per_s:.1f} samples/s, {side.tokens:.1f} tokens each", flush=True)
    return side


def overrides(model: Path, steps: int) -> tuple[str, ...]:
    """What makes the recipe a side of this comparison."""
    return (
        f"model={model}",
        f"seed={SEED}",
        f"rl.steps={steps}",
        f"rl.window.groups_per_step={PROMPTS_PER_STEP}",
        f"rl.optimizer.lr={LEARNING_RATE}",
        f"rollout.group_size={GROUP}",
    )


def run_ours(folder: Path, model: Path, steps: int) -> Side:
    """`twinmill run` of the recipe, with another rollout role."""
    run = create(RECIPE, folder, overrides(model, steps), ("rl",))
    write(run.path / PROBLEMS_FILE, problems(model, steps))
    processes, main_process = specs(run)
    role = str(HERE / "_trl_rollout.py")
    ours = [
        msgspec.structs.replace(spec, argv=(sys.executable, role, *spec.argv[-2:]))
        if spec.name.startswith("rollout/")
        else spec
        for spec in processes
    ]
    outcome = Supervisor(ours, main=main_process, log_dir=run.path / "logs", environment=os.environ).run()
    if outcome.ending is not Ending.DONE:
        raise RuntimeError(f"our run {outcome.ending.value}: {outcome.reason}; see {run.path / 'logs'}")
    side = side_of(Trace.read(run.path))
    print(f"ours: {side.samples_per_s:.1f} samples/s, {side.tokens:.1f} tokens each", flush=True)
    return side


def side_of(trace: Trace) -> Side:
    """The steps between warm-up and the last slot's close."""
    closed = max(line["t"] for line in trace.slots if line["event"] == "close")
    times = [line["t"] for line in trace.steps[WARM_UP - 1 :] if line["t"] <= closed]
    if len(times) < 3:
        raise ValueError(f"too few steps: {len(times)} ended while slots were still played; use more --steps")
    if any(line["samples"] != SAMPLES_PER_STEP for line in trace.steps):
        raise ValueError("a step of ours had fewer samples than it should: see the run's report")
    return Side(
        [b - a for a, b in pairwise(times)],
        trace.sampled_tokens / len(trace.attempts),
        sum(line["reward"] for line in trace.attempts) / len(trace.attempts),
    )


def fastest(interpreter: Path, folder: Path, model: Path, steps: int, cores: int) -> tuple[Setting, dict[str, float]]:
    """The best setting, and the samples/s of all."""
    speeds: dict[Setting, float] = {}

    def best(settings: Sequence[Setting]) -> Setting:
        for setting in settings:
            side = run_trl(interpreter, folder, model, setting, steps, f"sweep-{len(speeds)}")
            speeds[setting] = side.samples_per_s
        return max(speeds, key=speeds.__getitem__)

    best([replace(best(sweep(cores)), experts="eager")])
    return max(speeds, key=speeds.__getitem__), {str(setting): speed for setting, speed in speeds.items()}


def measured(ours: Sequence[Side], theirs: Sequence[Side]) -> dict[str, object]:
    """The figures of all rounds together."""
    us, them = (
        Side(
            [s for side in sides for s in side.step_s],
            sum(side.tokens for side in sides) / len(sides),
            sum(side.reward for side in sides) / len(sides),
        )
        for sides in (ours, theirs)
    )
    return {
        "ratio_wall": us.samples_per_s / them.samples_per_s,
        "samples_per_s": us.samples_per_s,
        "trl_samples_per_s": them.samples_per_s,
        "tokens": us.tokens,
        "trl_tokens": them.tokens,
        "reward": us.reward,
        "trl_reward": them.reward,
        "steps": len(us.step_s),
        "trl_steps": len(them.step_s),
        "samples_per_step": SAMPLES_PER_STEP,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=24, help="steps of each of our runs")
    parser.add_argument("--trl-steps", type=int, default=8, help="steps of each measured run of TRL")
    parser.add_argument("--sweep-steps", type=int, default=4, help="steps of TRL at each setting of the sweep")
    parser.add_argument("--rounds", type=int, default=2, help="how often each side is measured, in turn")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bench-trl")
    args = parser.parse_args(arguments)
    if min(args.trl_steps, args.sweep_steps) <= WARM_UP:
        parser.error(f"the first {WARM_UP} steps do not count: --trl-steps and --sweep-steps must be above that")
    folder = args.folder / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    interpreter = trl_python()
    cores = len(os.sched_getaffinity(0))
    setting, speeds = fastest(interpreter, folder, args.model, args.sweep_steps, cores)
    ours, theirs = [], []
    for i in range(args.rounds):
        ours.append(run_ours(folder, args.model, args.steps))
        theirs.append(run_trl(interpreter, folder, args.model, setting, args.trl_steps, f"round-{i}"))
    figures = {**measured(ours, theirs), "trl_setting": str(setting), "trl_sweep": speeds}
    finish("trl", figures, {"ratio_wall": ">= 1.3"})


if __name__ == "__main__":
    main()
