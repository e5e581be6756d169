"""A run as its metric lines would tell it: eight minutes, two clusters, one restart, one repaired version.

Nothing here is measured; it is what the views are drawn from in tests. The same seed gives the same lines.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

START = 1_750_000_000.0
CLUSTERS = ("east", "west")
FULL_BYTES = 13_400_000


def lines(*, seed: int = 0, steps: int = 60, until: float = math.inf, by_attempts: bool = True) -> list[dict[str, Any]]:
    """All lines by time, up to `until` seconds after the start; "process" names the file that each belongs to.
    `by_attempts`: rollout processes tell of every attempt; else only of their sums and of what kept them busy."""
    run = _Run(seed, by_attempts)
    run.midtrain(50)
    run.sft(45)
    run.rl(steps)
    found = [line for line in run.lines if line["t"] - START <= until]
    return sorted(found, key=lambda line: line["t"])


def write(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """The lines as metrics/<process>.jsonl in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    all_lines = lines(**settings)
    for line in all_lines:
        fields = {key: value for key, value in line.items() if key != "process"}
        with (folder / f"{line['process']}.jsonl").open("a") as file:
            file.write(json.dumps(fields) + "\n")
    return all_lines


class _Run:
    def __init__(self, seed: int, by_attempts: bool) -> None:
        self.by_attempts = by_attempts
        self.random = random.Random(seed)
        self.now = START
        self.version = 0
        self.lines: list[dict[str, Any]] = []

    def put(self, process: str, kind: str, t: float | None = None, **fields: Any) -> None:
        self.lines.append({"t": self.now if t is None else t, "kind": kind, "process": process, **fields})

    def span(self, lane: str, start: float, seconds: float, what: str) -> float:
        process = "trainer" if lane == "train" else lane.replace("/", "-")
        self.put(process, "busy", start + seconds, lane=lane, start=start, end=start + seconds, what=what)
        return start + seconds

    def train(self, seconds: float, what: str) -> None:
        self.now = self.span("train", self.now, seconds, what)

    def step(self, source: str, step: int, **fields: Any) -> None:
        base = dict(step=step, version=self.version, source=source, samples=16, tokens=8192, grad_norm=0.8, lr=3e-4)
        self.put("trainer", "train", **{**base, "seconds": {}, **fields})

    def midtrain(self, steps: int) -> None:
        self.put("trainer", "phase", name="midtrain", state="start", steps=steps)
        self.train(1.4, "eval")
        self.put("trainer", "heldout", stage="before", loss=2.61)
        for step in range(steps):
            self.train(0.72, "forward")
            self.train(0.11, "optimizer")
            loss = 1.93 + 0.66 * math.exp(-step / 12) + self.random.gauss(0, 0.03)
            self.step(
                "corpus", step, loss={"cross_entropy": loss, "aux": 0.01}, seconds={"forward": 0.72, "optimizer": 0.11}
            )
        self.train(1.4, "eval")
        self.put("trainer", "heldout", stage="after", loss=1.97)
        self.put("trainer", "phase", name="midtrain", state="end")

    def sft(self, steps: int) -> None:
        self.put("trainer", "phase", name="sft", state="start", steps=steps)
        for step in range(steps):
            self.train(0.68, "forward")
            self.train(0.11, "optimizer")
            loss = 0.21 + 0.9 * math.exp(-step / 9) + self.random.gauss(0, 0.015)
            self.step(
                "chats", step, loss={"cross_entropy": loss, "aux": 0.01}, seconds={"forward": 0.68, "optimizer": 0.11}
            )
        self.publish(FULL_BYTES)
        self.put("trainer", "phase", name="sft", state="end")
        self.eval("sft", 200, 20.0, 0.41)

    def rl(self, steps: int) -> None:
        self.put("trainer", "phase", name="rl", state="start", steps=steps)
        begun = self.now
        self.train(4.0, "wait")
        for step in range(steps):
            self.rl_step(step, steps)
            if step % 15 == 14:
                pass_at_1 = 0.41 + 0.15 * (step + 1) / steps
                self.eval(f"rl-{step + 1}", 100, 0.0, pass_at_1)
        self.clusters(begun, self.now)
        self.put("trainer", "phase", name="rl", state="end")
        self.eval("rl", 200, 20.0, 0.565)

    def rl_step(self, step: int, steps: int) -> None:
        wait = max(0.0, self.random.gauss(0.12, 0.2))
        forward = self.random.gauss(2.7, 0.2)
        self.train(wait, "wait")
        for _ in range(4):
            self.train(forward / 4, "forward")
        self.train(0.24, "optimizer")
        if step % 10 == 9:
            self.train(0.5, "checkpoint")
        progress = step / steps
        reward = 0.36 + 0.2 * progress + self.random.gauss(0, 0.035)
        age_1, age_2 = self.random.uniform(0.45, 0.6), self.random.uniform(0.08, 0.25)
        tokens = 7600
        ages = {"0": int(tokens * (1 - age_1 - age_2)), "1": int(tokens * age_1), "2": int(tokens * age_2)}
        noise = math.exp(self.random.gauss(0, 0.3))
        self.version += 1
        self.step(
            "groups",
            step,
            loss={"policy": self.random.gauss(-0.02, 0.01)},
            reward=reward,
            groups=8,
            samples=64,
            tokens=tokens,
            varied_frac=min(1.0, max(0.0, 0.72 - 0.2 * progress + self.random.gauss(0, 0.07))),
            fresh=dict(tokens=ages["0"], k1=1e-6, k3=8e-7 * noise, max_ratio=1.01, max_abs=0.011, ess=0.9999),
            stale=dict(tokens=ages["1"] + ages["2"], k1=2e-3, k3=1.4e-3 * noise, max_ratio=3.2, max_abs=1.16, ess=0.98),
            clipped_frac=0.004 * noise,
            replayed_frac=1.0 - 0.0006 * noise,
            refused_frac=0.0006 * noise,
            staleness=ages,
            seconds={"wait": wait, "forward": forward, "optimizer": 0.24, "publish": 0.36},
            dropped={"infrastructure": 1} if step == 41 else {},
            slots=list(range(8 * step, 8 * step + 8)),
        )
        changed = 0.14 * math.exp(-progress) + self.random.uniform(0, 0.01)
        self.publish(int(FULL_BYTES * changed * 0.55), changed)

    def publish(self, delta_bytes: int, changed: float | None = None) -> None:
        self.train(0.36, "publish")
        self.put("trainer", "publish", version=self.version, delta_bytes=delta_bytes, full_bytes=FULL_BYTES,
                 seconds=0.36, changed_frac=changed)  # fmt: skip
        for cluster, far in (("east", 0.25), ("west", 0.8)):
            fetch = far + delta_bytes / 8e6
            repaired = cluster == "west" and self.version == 37
            self.put(f"engine-{cluster}", "swap", self.now + fetch, cluster=cluster, engine="0", version=self.version,
                     pause_s=abs(self.random.gauss(0.003, 0.001)) * (4 if repaired else 1), swap_s=0.06, fetch_s=fetch,
                     bytes=delta_bytes, repaired=repaired)  # fmt: skip
            if repaired:
                self.put(f"engine-{cluster}", "event", self.now + fetch, level="warning", what="repair",
                         text=f"engine/{cluster}: v37 did not match its digest, taken from the full one")  # fmt: skip

    def eval(self, name: str, tasks: int, seconds: float, pass_at_1: float) -> None:
        half = 1.96 * math.sqrt(pass_at_1 * (1 - pass_at_1) / tasks)
        if seconds:
            self.put("trainer", "phase", name="eval", state="start", seconds=seconds)
            for cluster in CLUSTERS:
                self.generate(cluster, self.now, self.now + seconds)
            self.now += seconds
            self.put("trainer", "phase", name="eval", state="end")
        self.put("trainer", "eval", name=name, version=self.version, step=self.version, pass_at_1=pass_at_1,
                 ci_low=pass_at_1 - half, ci_high=pass_at_1 + half, tasks=tasks, temperature=0.7, split="heldout",
                 pass_at_8=min(1.0, pass_at_1 + 0.22))  # fmt: skip

    def clusters(self, begun: float, ended: float) -> None:
        for cluster in CLUSTERS:
            self.generate(cluster, begun, ended)
            if self.by_attempts:
                self.play(cluster, begun + 0.5, ended)
            crash = begun + 130 if cluster == "west" else math.inf
            sampled = episodes = 0
            for t in (begun + 2 + 2 * n for n in range(int((ended - begun - 2) / 2))):
                if crash <= t < crash + 2:
                    sampled = 0
                    self.put("supervisor", "event", t, level="error", what="restarting",
                             text="engine/west: killed by SIGKILL, restart 1 of 5 in 0.5 s")  # fmt: skip
                sampled += int(self.random.gauss(1700, 100))
                episodes += 13
                serving = max((line["version"] for line in self.lines if line["kind"] == "swap"
                               and line["cluster"] == cluster and line["t"] <= t), default=0)  # fmt: skip
                self.put(f"engine-{cluster}", "engine", t, cluster=cluster, engine="0", serving=serving, busy_frac=0.9,
                         in_flight=self.random.randint(20, 32), sampled_tokens=sampled,
                         tokens_per_s=self.random.gauss(850, 30))  # fmt: skip
                if self.by_attempts:
                    self.put(f"rollout-{cluster}", "cpu", t, lane=f"rollout/{cluster}", cpu_s=0.31 * (t - begun),
                             wall_s=t - begun)  # fmt: skip
                    continue
                lost = 3 if t >= crash else 0
                self.put(f"rollout-{cluster}", "rollout", t, cluster=cluster, in_flight=32, open_slots=4,
                         episodes=episodes, reward_mean=0.5, infra_failures=lost, lost=lost,
                         machine_s=episodes * 0.4, engine_wait_s=episodes * 2.0)  # fmt: skip

    def play(self, cluster: str, begun: float, ended: float) -> None:
        """Sixteen attempts in flight all the time; three are lost in the crash of an engine."""
        crash = begun + 130 if cluster == "west" else math.inf
        taken = 0
        for seat in range(16):
            t = begun + 0.05 * seat
            while t < ended:
                seconds = min(12.0, self.random.lognormvariate(0.7, 0.5))
                lost = t < crash < t + seconds and seat < 3
                end = min(t + seconds, crash) if lost else t + seconds
                slot = taken // 8 * 2 + (cluster == "west")
                if taken % 8 == 0:
                    self.put(f"rollout-{cluster}", "slot", t, slot=slot, cluster=cluster, event="admit")
                    self.put(f"rollout-{cluster}", "slot", t + 8, slot=slot, cluster=cluster, event="close")
                if end < ended:
                    failure = "engine: EngineError: connection lost" if lost else None
                    right = self.random.random() < 0.36 + 0.2 * (t - begun) / (ended - begun)
                    reward = None if lost else float(right)
                    self.put(
                        f"rollout-{cluster}", "attempt", end, cluster=cluster, slot=slot, attempt=taken % 8, start=t,
                        end=end, reward=reward, stop="error" if lost else "finished", turns=3, sampled=120,
                        engine_s=0.8 * (end - t), machine_s=0.2 * (end - t), finished=not lost, failure=failure,
                    )  # fmt: skip
                taken += 1
                t = end + self.random.uniform(0.01, 0.1)

    def generate(self, cluster: str, begun: float, ended: float) -> None:
        t = begun
        while t < ended:
            t = self.span(f"engine/{cluster}", t, self.random.uniform(0.03, 0.12), "prefill")
            t = self.span(f"engine/{cluster}", t, self.random.uniform(0.3, 1.2), "decode")
            t += max(0.0, self.random.gauss(0.03, 0.05))
        if self.by_attempts:
            return
        t = begun + 0.5
        while t < ended:
            t = self.span(f"rollout/{cluster}", t, self.random.uniform(0.05, 0.25), "tools")
            t += self.random.expovariate(4.0)
            if self.random.random() < 0.3:
                t = self.span(f"rollout/{cluster}", t, self.random.uniform(0.1, 0.3), "grade")
