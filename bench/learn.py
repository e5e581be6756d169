"""Does RL learn? Three arms from one SFT start: RL with window 2, RL with window 0, and SFT continued for RL's time.

    twinmill bench learn --seeds 0,1,2

The task set is `unopened`: the start has seen experts who open the file in 30 % of their attempts and test in 10 %,
because they know the answer. Every arm is judged on the same held-out tasks (functions of families that no training ever
saw), each at its best temperature of {0, .3, .7, 1}. The gain is RL's over the better of the SFT start and continued SFT,
over all seeds, with a 95 % interval by bootstrap over tasks (paired). Runs are ordinary runs of recipes/learn.py in
runs/bench-learn.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from _result import finish
from twinmill.records import wire
from twinmill.rollout.evaluate import Score, interval, per_task

ROOT = Path(__file__).parents[1]
TWINMILL = (sys.executable, "-m", "twinmill.cli.main")
TEMPERATURES = (0.0, 0.3, 0.7, 1.0)


def run(folder: Path, name: str, *overrides: str) -> tuple[Path, float]:
    """One run of recipes/learn.py; (run folder, wall seconds). A finished run of that name is used again, one
    that was broken off is begun anew."""
    root = folder / name
    marker = root / "seconds"
    if not marker.exists():
        shutil.rmtree(root, ignore_errors=True)
        started = time.monotonic()
        sets = [word for item in overrides for word in ("--set", item)]
        command = [*TWINMILL, "run", str(ROOT / "recipes" / "learn.py"), "--root", str(root), *sets]
        with (folder / f"{name}.log").open("w") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
        marker.write_text(f"{time.monotonic() - started}\n")
    return next(p.parent for p in root.glob("*/run.json")), float(marker.read_text())


@contextmanager
def stopwatch(kept: Path) -> Iterator[Callable[[], float]]:
    """Counts seconds into a file, so that a benchmark that is broken off and begun again reports all of them."""
    started = time.monotonic()
    try:
        yield lambda: float(kept.read_text())
    finally:
        before = float(kept.read_text()) if kept.exists() else 0.0
        kept.write_text(f"{before + time.monotonic() - started}\n")


def materialized(run_folder: Path, version: int) -> Path:
    out = run_folder / "models" / f"v{version}"
    if not (out / "config.json").exists():
        command = [*TWINMILL, "weights", "materialize", str(version), str(out), "--run", str(run_folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


class Exam(NamedTuple):
    """What a model is asked for."""

    taskset: str
    tasks: int
    """the first ones of the held-out split"""
    attempts: int
    temperature: float


def exams(taskset: str, tasks: int, eight: bool) -> list[Exam]:
    """One attempt a task at every temperature; for pass@8 eight at temperature 1, on a quarter of the tasks: they take as
    long as all tasks at two temperatures."""
    found = [Exam(taskset, tasks, 1, temperature) for temperature in TEMPERATURES]
    return [*found, Exam(taskset, tasks // 4, 8, 1.0)] if eight else found


def scores(
    models: Mapping[str, Path], taskset: str, tasks: int, eight: Collection[str]
) -> dict[str, dict[Exam, Score]]:
    """name -> its scores; as many at once as there are cores, longest first. They are kept beside the models, and read from
    there the next time."""
    asked = [(name, exam) for name in models for exam in exams(taskset, tasks, name in eight)]

    def one(name: str, exam: Exam) -> Score:
        kept = models[name] / f"score-{exam.tasks}-{exam.attempts}-{exam.temperature}.json"
        if not kept.exists():
            words = [f"--{key}={value}" for key, value in exam._asdict().items()]
            aside = kept.with_suffix(".tmp")
            command = [*TWINMILL, "eval", str(models[name]), *words, "--machines=16", "--threads=1", f"--out={aside}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            aside.rename(kept)
        return wire.from_json(kept.read_bytes(), Score)

    asked.sort(key=lambda item: -item[1].tasks * item[1].attempts)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as room:
        done = list(room.map(lambda item: one(*item), asked))
    found: dict[str, dict[Exam, Score]] = {name: {} for name in models}
    for (name, exam), score in zip(asked, done, strict=True):
        found[name][exam] = score
    return found


def best(found: Mapping[Exam, Score]) -> tuple[float, Score]:
    """(temperature, score) of the best pass@1 of one attempt a task."""
    singles = ((exam.temperature, score) for exam, score in found.items() if exam.attempts == 1)
    return max(singles, key=lambda item: item[1].pass_at(1))


def pass_at_8(found: Mapping[Exam, Score]) -> float:
    return next(score.pass_at(8) for exam, score in found.items() if exam.attempts == 8)


def heldout_loss(run_folder: Path) -> dict[str, float]:
    lines = (run_folder / "metrics" / "trainer.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines if '"heldout"' in line]
    return {row["stage"]: row["loss"] for row in rows if row["kind"] == "heldout"}


def rl_seconds(run_folder: Path) -> float:
    """Wall seconds of the RL phase alone."""
    lines = (run_folder / "metrics" / "trainer.jsonl").read_text().splitlines()
    marks = {r["state"]: r["t"] for r in map(json.loads, lines) if r.get("kind") == "phase" and r.get("name") == "rl"}
    return marks["end"] - marks["start"]


def sft_steps_in(run_folder: Path, seconds: float) -> int:
    """How many SFT steps this machine does in `seconds`, by the steps of the start's own SFT."""
    lines = (run_folder / "metrics" / "trainer.jsonl").read_text().splitlines()
    times = [r["t"] for r in map(json.loads, lines) if r.get("kind") == "train" and r.get("source") == "sft"]
    return max(1, int(seconds / ((times[-1] - times[0]) / (len(times) - 1))))


def seed_arms(folder: Path, start: Path, seed: int, taskset: str, tasks: int) -> dict[str, Any]:
    """The three arms of one seed, judged."""
    on_start = (f"model={start}", "midtrain=null", "sft=null", "experts=null", f"seed={seed}")
    fast, fast_s = run(folder, f"window2-{seed}", *on_start)
    slow, slow_s = run(folder, f"window0-{seed}", *on_start, "rl.window.window=0")
    steps = sft_steps_in(start.parents[1], rl_seconds(fast))
    more, more_s = run(
        folder, f"sft-{seed}", f"model={start}", "midtrain=null", "rl=null", "clusters=[]", "evaluation=null",
        f"sft.steps={steps}", f"seed={seed}", "experts.first=200000", f"experts.episodes={min(24 * steps, 1200)}",
    )  # fmt: skip
    last = json.loads((fast / "config.json").read_bytes())["rl"]["steps"]
    models = {
        "rl": materialized(fast, last),
        "sync": materialized(slow, last),
        "sft_more": more / "models" / "sft",
    }
    with stopwatch(folder / f"scoring-{seed}") as scoring_s:
        found = scores(models, taskset, tasks, eight={"rl"})
    return {
        "best": {name: best(value) for name, value in found.items()},
        "pass_at_8": pass_at_8(found["rl"]),
        "seconds": fast_s + slow_s + more_s + scoring_s(),
        "rl_seconds": rl_seconds(fast),
        "sync_seconds": rl_seconds(slow),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bench-learn")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)

    prepared, _ = run(args.folder, "start", "rl=null", "clusters=[]", "evaluation=null")
    start = prepared / "models" / "sft"
    taskset = json.loads((prepared / "config.json").read_bytes())["taskset"]
    start_scores = scores({"start": start}, taskset, args.tasks, eight={"start"})["start"]
    start_best = best(start_scores)
    print(f"SFT start: pass@1 {start_best[1].pass_at(1):.1%} at temperature {start_best[0]}", flush=True)

    gains, gain_rows, rows = [], [], []
    for seed in map(int, args.seeds.split(",")):
        found = seed_arms(args.folder, start, seed, taskset, args.tasks)
        arms = found["best"]
        base = max((start_best, arms["sft_more"]), key=lambda item: item[1].pass_at(1))[1]
        difference = [a - b for a, b in zip(per_task(arms["rl"][1]), per_task(base)) if not math.isnan(a - b)]
        gains.append(100 * sum(difference) / len(difference))
        gain_rows.append(difference)
        rows.append(found)
        shown = ", ".join(f"{name} {score.pass_at(1):.1%} (T={t:g})" for name, (t, score) in arms.items())
        print(f"seed {seed}: {shown}; gain {gains[-1]:+.1f} points; {found['seconds']:.0f} s", flush=True)

    per_task_gain = [sum(values) / len(values) for values in zip(*gain_rows)]
    low, _ = interval(per_task_gain)
    loss = heldout_loss(prepared)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    measured = {
        "pass_at_1_sft": start_best[1].pass_at(1),
        "pass_at_1_sft_continued": mean([r["best"]["sft_more"][1].pass_at(1) for r in rows]),
        "pass_at_1_rl": mean([r["best"]["rl"][1].pass_at(1) for r in rows]),
        "pass_at_1_rl_sync": mean([r["best"]["sync"][1].pass_at(1) for r in rows]),
        "gain_points": mean(gains),
        "gain_ci95_low": 100 * low,
        "gain_by_seed": [round(g, 2) for g in gains],
        "window_cost_points": 100
        * mean([r["best"]["sync"][1].pass_at(1) - r["best"]["rl"][1].pass_at(1) for r in rows]),
        "pass_at_8_sft": pass_at_8(start_scores),
        "pass_at_8_rl": mean([r["pass_at_8"] for r in rows]),
        "seconds_per_seed": max(r["seconds"] for r in rows),
        "rl_seconds": mean([r["rl_seconds"] for r in rows]),
        "rl_sync_seconds": mean([r["sync_seconds"] for r in rows]),
        "tasks": args.tasks,
        "heldout_loss_before": loss["before"],
        "heldout_loss_after": loss["after"],
    }
    finish(
        "learn",
        measured,
        {"gain_points": ">= 10", "gain_ci95_low": "> 0", "seconds_per_seed": "<= 900", "tasks": ">= 200"},
    )


if __name__ == "__main__":
    main()
