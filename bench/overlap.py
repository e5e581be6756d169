"""What does asynchrony buy? The same slots with window 0 and with window 2, bound by computing and by waiting tools.

    twinmill bench overlap

Both are ordinary runs of recipes/overlap.py; only `rl.window.window` and, for window 0, the threads differ. Synchronous
training may use every core for either mill in turn, so window 0 gets the best of all splits of threads between trainer
and engines, found by short runs; window 2 keeps the recipe's.

    compute    tinyrepo:2 with a model that knows nothing, all of whose 23M parameters every token uses, one turn an attempt:
               machines have next to nothing to do, what counts is model work. Turns end by chance, so that lengths
               spread as they do in reality: a tenth below 25 tokens, half below 200, a tenth above 780. Its steps are
               smaller than the other's and three times as many, so that filling and draining count for little, too
    waits      task set waiting:tinyrepo:0 at temperature 1: every call of a tool takes a declared lognormal time, p99/p50 =
               20. The trainer is the slower mill here (unshared prompts, a reference in the reward): whether it ever waits
               says something about the window only where it is not starved for lack of engines.

Speedups are of wall time from the first slot's admission to the last commit, so the pipeline's filling and draining count.
busy_frac is of the compute case, trainer_waiting_frac of the other, both while both mills have work: from the end of the
first step to the last step that ends before the last slot closes; what else is meant by the keys is said in _runs.py.
Everything is measured on one machine, one run each, in turn.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from _result import finish
from _runs import ROOT, Trace, play

RECIPE = ROOT / "recipes" / "overlap.py"
MUST = {
    "speedup_compute": ">= 1.1",
    "speedup_waits": ">= 1.4",
    "trainer_waiting_frac": "<= 0.05",
    "busy_frac": ">= 0.85",
    "staleness_max": "<= 2",
    "drop_bias_by_length": "== 0",
}
START_S = 60.0
"""what a run may take beside its RL: start, report, end"""
RESUMABLE = ("checkpoints", "clusters", "store")
"""of a run's folder: half a gigabyte, which is removed when its metrics were read; they and the report stay"""
HEAVY = {
    "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 4,
    "num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 3584, "max_position_embeddings": 4096,
}  # fmt: skip
"""what the compute case's model changes in models/nano. Every expert is always chosen: much work for few weights"""
ENDS_AFTER = 200.0
"""tokens after which a turn ends, on average, in contexts like those that the model is made for"""
TASKS = "tinyrepo:2"
STEPS = {"compute": 3, "waits": 1}
"""a case's steps for each of --steps"""
COMPUTE = (
    "taskset=" + TASKS,
    "model={model}",
    "engine.context_tokens=4096",
    "rl.window.groups_per_step=3",  # few attempts a step: window 0 waits for its longest one, as in reality
    "rollout.groups_in_flight=7",
    "rollout.poll_s=0.1",
    "harness.turns=1",
    "harness.turn_tokens=1024",
    "harness.temperature=1.0",
    "rl.compute.temperature=1.0",
    "rl.optimizer.lr=1e-8",  # versions differ, and all the same both windows' attempts are alike but for a few
)
WAITS = (
    "taskset=waiting:{median_s}:tinyrepo:0",
    "trainer_threads=1",
    "rl.window.groups_per_step=12",
    "rollout.groups_in_flight=18",
    "harness.temperature=1.0",
    "rl.compute.temperature=1.0",
    "harness.turn_tokens=64",
    "rl.preparation.tokens_per_episode=32",
    "rl.preparation.packing.share=false",
    "rl.preparation.credit.kl=0.001",
)


@dataclass(frozen=True)
class Split:
    """Threads of the trainer and of each engine."""

    trainer: int
    engine: int

    def overrides(self) -> list[str]:
        return [f"trainer_threads={self.trainer}", *(f"clusters.{i}.threads={self.engine}" for i in (0, 1))]

    def __str__(self) -> str:
        return f"trainer {self.trainer}, engines {self.engine}"


def splits(cores: int) -> list[Split]:
    """All splits worth trying: both mills never work at once, so each may have one core, half of them or all; a trainer
    also more, for its microbatches are not all of one length."""
    some = sorted({1, max(1, cores // 2), cores})
    return [Split(trainer, engine) for trainer, engine in product([*some, 2 * cores], some)]


def random_model(folder: Path) -> Path:
    """A model folder like models/nano, but for HEAVY, with random weights that end a turn by chance: the row of END in the
    output is the mean hidden state of random text behind a task's prompt, so that it fits any context, some more than others."""
    import torch

    from twinmill.data.render import open_renderer
    from twinmill.data.render.nano import END
    from twinmill.data.tasks.base import open_taskset
    from twinmill.env.harness.tools import SPECS
    from twinmill.model import hf
    from twinmill.model.config import from_hf

    nano = ROOT / "models" / "nano"
    config = json.loads((nano / "config.json").read_bytes()) | HEAVY
    decoder = hf.init_decoder(from_hf(config), 0)
    tasks = open_taskset(TASKS)
    prompt = open_renderer(nano).open(tasks.load(tasks.ids("train")[0]).messages, tuple(SPECS.values()))
    said = torch.randint(END + 1, config["vocab_size"], (400,), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([torch.tensor(prompt), said])
    with torch.no_grad():
        hidden = decoder(ids, torch.arange(len(ids)), [len(ids)]).hidden[len(prompt) :]
        mean = hidden.mean(0)
        logit = (hidden @ decoder.embed.T).logsumexp(-1).mean() - math.log(ENDS_AFTER)
        decoder.embed[END] = logit * mean / (mean @ mean)  # tied: the output's row, too
    folder.mkdir(parents=True)
    hf.save_folder(decoder, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(nano / "tokenizer.json", folder)
    return folder


@dataclass(frozen=True)
class Case:
    """One shape of work, run by run."""

    name: str
    overrides: tuple[str, ...]
    folder: Path
    deadline_s: float

    def run(
        self, label: str, steps: int, window: int, more: Sequence[str] = (), deadline_s: float | None = None
    ) -> Trace:
        """subprocess.TimeoutExpired when it takes longer than `deadline_s` (None = the case's own)."""
        overrides = [*self.overrides, f"rl.steps={steps}", f"rl.window.window={window}", *more]
        folder = self.folder / self.name / label.replace(" ", "-").replace(",", "")
        run = play(RECIPE, folder, overrides, deadline_s or self.deadline_s)
        trace = Trace.read(run)
        for part in RESUMABLE:
            shutil.rmtree(run / part)
        print(
            f"{self.name}, {label}: {trace.wall_s:.1f} s, {trace.step_s:.2f} s a step, trainer waits "
            f"{trace.waiting_frac_to_the_end:.1%}, {trace.sampled_tokens / len(trace.attempts):.0f} tokens an attempt",
            flush=True,
        )
        return trace

    def both(self, steps: int, probe_steps: int) -> tuple[Trace, Trace, Split]:
        """(window 0 at its best split, window 2, that split)."""
        best = self.best_split(probe_steps)
        return self.run("window 0", steps, 0, best.overrides()), self.run("window 2", steps, 2), best

    def best_split(self, steps: int) -> Split:
        """The split whose short run of window 0 is fastest. One that takes three times as long as another is given up:
        where other work shares the cores, threads that wait for one another can be slower by far."""
        walls: dict[Split, float] = {}
        for split in splits(cores_here()):
            limit = START_S + 3 * min(walls.values()) if walls else self.deadline_s
            try:
                walls[split] = self.run(f"probe {split}", steps, 0, split.overrides(), limit).wall_s
            except subprocess.TimeoutExpired:
                print(f"{self.name}, probe {split}: given up after {limit:.0f} s", flush=True)
        return min(walls, key=walls.__getitem__)


def cores_here() -> int:
    return len(os.sched_getaffinity(0))


def measured(compute: tuple[Trace, Trace, Split], waits: tuple[Trace, Trace, Split]) -> dict[str, object]:
    """The figures, from (window 0, window 2, split of window 0) of either case."""
    biases = [trace.drop_bias_by_length for trace in (compute[1], waits[1])]
    return {
        "speedup_compute": compute[0].wall_s / compute[1].wall_s,
        "speedup_waits": waits[0].wall_s / waits[1].wall_s,
        "trainer_waiting_frac": waits[1].waiting_frac,
        "busy_frac": compute[1].busy_frac(cores_here()),
        "staleness_max": max(compute[1].staleness_max, waits[1].staleness_max),
        "drop_bias_by_length": max(biases, key=lambda bias: (bias != bias, abs(bias))),
        "trainer_waiting_frac_to_the_end": waits[1].waiting_frac_to_the_end,
        "trainer_waiting_frac_compute": compute[1].waiting_frac_to_the_end,
        "trainer_waiting_frac_window_0": waits[0].waiting_frac_to_the_end,
        "busy_frac_window_0": compute[0].busy_frac(cores_here()) if len(compute[0].steps) > 2 else None,
        "split_compute": str(compute[2]),
        "split_waits": str(waits[2]),
        "tokens_ratio_compute": compute[1].sampled_tokens / compute[0].sampled_tokens,
        "tokens_ratio_waits": waits[1].sampled_tokens / waits[0].sampled_tokens,
        "tool_s_per_attempt": sum(line["machine_s"] for line in waits[1].attempts) / len(waits[1].attempts),
        "slots": len(compute[1].steps) * len(compute[1].steps[0]["slots"]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of each measured run")
    parser.add_argument("--probe-steps", type=int, default=2, help="steps of the runs that look for the best split")
    parser.add_argument("--wait-s", type=float, default=0.13, help="median wait of a tool's call, seconds")
    parser.add_argument("--set", action="append", default=[], help="override of every run, as in twinmill run")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bench-overlap")
    parser.add_argument("--deadline-s", type=float, default=900.0, help="of one run")
    args = parser.parse_args(arguments)
    folder = args.folder / time.strftime("%Y%m%d-%H%M%S")
    waits = tuple(item.format(median_s=args.wait_s) for item in WAITS)
    heavy = random_model(folder / "model")
    shapes = {"compute": tuple(item.format(model=heavy) for item in COMPUTE), "waits": waits}
    found = {
        name: Case(name, (*overrides, *args.set), folder, args.deadline_s).both(
            STEPS[name] * args.steps, args.probe_steps
        )
        for name, overrides in shapes.items()
    }
    finish("overlap", measured(found["compute"], found["waits"]), MUST)


if __name__ == "__main__":
    main()
