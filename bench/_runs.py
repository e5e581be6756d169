"""Runs as benchmarks see them: `twinmill run` in a process of its own, and what its metrics say afterwards.

All times are of one clock, the machine's. `Trace` holds what was written; its methods are pure.
"""

import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from twinmill.store.metrics import read_metrics
from twinmill.store.runs import RunFolder

ROOT = Path(__file__).parents[1]

Line = dict[str, Any]
"""one line of the metrics: t, kind, process, and the fields of its kind"""


def play(recipe: Path, root: Path, overrides: list[str], deadline_s: float) -> Path:
    """One `twinmill run` of `recipe` below `root`, to its end; its run folder. RuntimeError says where its output is."""
    root.mkdir(parents=True, exist_ok=True)
    sets = [word for item in overrides for word in ("--set", item)]
    command = [sys.executable, "-m", "twinmill.cli.main", "run", str(recipe), "--root", str(root), *sets]
    output = root / "output.txt"
    with output.open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, timeout=deadline_s)
    if done.returncode:
        raise RuntimeError(f"twinmill run ended with {done.returncode}; its output is in {output}")
    return RunFolder.latest(root).path


@dataclass(frozen=True)
class Trace:
    """What the RL phase of one run wrote. Every list is in the order of time."""

    steps: list[Line]
    """kind "train", one per optimizer step"""
    trainer_cpu: list[Line]
    """kind "cpu" of the trainer, one per step, written with it"""
    engines: dict[str, list[Line]]
    """engine -> its lines of kind "engine", about one a second"""
    slots: list[Line]
    attempts: list[Line]

    @classmethod
    def read(cls, run: Path) -> "Trace":
        """ValueError for a run that was interrupted: its times would say nothing."""
        lines = read_metrics(run / "metrics")
        by_kind = {kind: [line for line in lines if line["kind"] == kind] for kind in {line["kind"] for line in lines}}
        steps = [line for line in by_kind.get("train", []) if line["source"] == "rl"]
        cpu = [line for line in by_kind.get("cpu", []) if line["lane"] == "trainer"]
        if [line["step"] for line in steps] != list(range(len(steps))) or not steps or len(cpu) != len(steps):
            raise ValueError(f"{run}: no uninterrupted RL phase in its metrics")
        engines: dict[str, list[Line]] = {}
        for line in by_kind.get("engine", []):
            engines.setdefault(line["engine"], []).append(line)
        return cls(steps, cpu, engines, by_kind.get("slot", []), by_kind.get("attempt", []))

    @property
    def wall_s(self) -> float:
        """From the first slot's admission to the last step's commit: the pipeline's filling and draining included."""
        return self.steps[-1]["t"] - min(line["t"] for line in self.slots if line["event"] == "admit")

    @property
    def step_s(self) -> float:
        """Median seconds of a step, the first one left out."""
        times = [line["t"] for line in self.steps]
        return median(b - a for a, b in pairwise(times))

    @property
    def sampled_tokens(self) -> int:
        return sum(line["sampled"] for line in self.attempts)

    @property
    def last_overlapped(self) -> int:
        """The last step that ends before the last slot closes. From the end of the first step to the end of this one both
        mills have work, whatever the setting; before and after, no setting has anything to overlap with. ValueError: none."""
        closed = max(line["t"] for line in self.slots if line["event"] in ("close", "drop"))
        last = max(i for i, line in enumerate(self.steps) if i == 0 or line["t"] <= closed)
        if last == 0:
            raise ValueError("too few steps: no step ended while slots were still played")
        return last

    @property
    def overlapped_s(self) -> float:
        return self.steps[self.last_overlapped]["t"] - self.steps[0]["t"]

    @property
    def waiting_frac(self) -> float:
        """Share of time in which the trainer had nothing to train on, while both mills have work."""
        steps = self.steps[1 : self.last_overlapped + 1]
        return sum(line["seconds"]["wait"] for line in steps) / self.overlapped_s

    @property
    def waiting_frac_to_the_end(self) -> float:
        """The same from the end of the first step to the end of the run: the last slots' stragglers are waited for, too."""
        return sum(line["seconds"]["wait"] for line in self.steps[1:]) / (self.steps[-1]["t"] - self.steps[0]["t"])

    @property
    def staleness_max(self) -> int:
        """Versions between sampling and training, of the oldest trained token."""
        return max(int(age) for line in self.steps for age, tokens in line["staleness"].items() if tokens)

    def busy_frac(self, cores: int) -> float:
        """Processor seconds of model work (engines' forwards; the trainer's passes and update) over cores x time, while
        both mills have work."""
        start, end = self.steps[0]["t"], self.steps[self.last_overlapped]["t"]
        spent = sum(_between(lines, "busy_s", start, end) for lines in self.engines.values())
        spent += sum(self._model_cpu_s(i) for i in range(1, self.last_overlapped + 1))
        return spent / (cores * self.overlapped_s)

    def _model_cpu_s(self, i: int) -> float:
        """The trainer's processor seconds of step i, without its share of reading and committing."""
        seconds = {phase: s for phase, s in self.steps[i]["seconds"].items() if phase != "wait"}
        model = (seconds["compute"] + seconds["update"]) / sum(seconds.values())
        return model * (self.trainer_cpu[i]["cpu_s"] - self.trainer_cpu[i - 1]["cpu_s"])

    @property
    def dropped(self) -> dict[str, int]:
        """What reached the trainer and carried no gradient, by reason."""
        total: dict[str, int] = {}
        for line in self.steps:
            for reason, n in line["dropped"].items():
                total[reason] = total.get(reason, 0) + n
        return total

    @property
    def drop_bias_by_length(self) -> float:
        """Share of attempts that were not trained, among those that took longer than the median minus the others. NaN
        when the trainer left out something that the rollout mills had delivered."""
        trained = {line["slot"] for line in self.slots if line["event"] == "train"}
        seconds: dict[tuple[int, int], float] = {}
        lost: dict[tuple[int, int], bool] = {}
        for line in self.attempts:  # an attempt that was lost and run again is judged by its last try
            which = line["slot"], line["attempt"]
            seconds[which] = line["end"] - line["start"]
            lost[which] = not line["finished"] or line["reward"] is None or line["slot"] not in trained
        middle = median(seconds.values())
        sides: dict[bool, list[bool]] = {True: [], False: []}
        for which, s in seconds.items():
            sides[s > middle].append(lost[which])
        if self.dropped and not any(lost.values()):
            return float("nan")
        long, short = (sum(sides[side]) / max(len(sides[side]), 1) for side in (True, False))
        return long - short


def _between(lines: list[Line], field: str, start: float, end: float) -> float:
    """By how much a counter grew between two times, interpolated."""
    t, value = [line["t"] for line in lines], [line[field] for line in lines]
    return float(np.interp(end, t, value) - np.interp(start, t, value))
