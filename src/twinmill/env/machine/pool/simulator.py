"""A burst on a virtual clock: the scheduler that pools run, nodes that are modelled, costs that were measured.

    a machine     ask ──► (wait) ──► make ──► run ──► work ──► first output ──► hold ──► end
    a node        `cores` processors, first come, first served; memory; a link over which images are fetched, one by one

What a stage took alone (MachineCosts) is split: the part that many at once share processors for, which their rate tells,
and the rest, which is waiting and costs nothing. Deterministic: equal arguments give equal outcomes.

Faults that can be injected: creates that fail, or time out and succeed later (nobody holds such a machine: it must be
ended), a node that is lost half-way. Not modelled: that work slows down with its neighbours' cache misses; a network.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from twinmill.records.base import Record
from twinmill.records.burst import BurstOutcome, BurstPlan, MachineCosts

from .scheduler import Ask, PoolConfig, Scheduler, Start

SENSE_S = 0.5


class Faults(Record):
    """Shares of all creates."""

    failing_frac: float = 0.0
    """fail at once"""
    late_frac: float = 0.0
    """count as failed after `late_s`, and succeed after twice that"""
    late_s: float = 20.0
    lose_node_at_s: float = 0.0
    """the first node is gone from then on; 0 = never"""


@dataclass
class _Host:
    """Processors as the times at which they are free: who comes first is served first, so an end is known at once."""

    free: list[float]
    link_free: float = 0.0
    images: dict[str, float] = field(default_factory=dict)
    """image -> when it has arrived"""
    used_bytes: int = 0
    busy_s: float = 0.0

    def compute(self, now: float, cpu_s: float) -> float:
        done = max(now, heapq.heappop(self.free)) + cpu_s
        heapq.heappush(self.free, done)
        self.busy_s += cpu_s
        return done

    def fetch(self, now: float, image: str, seconds: float) -> float:
        if image not in self.images:
            self.link_free = self.images[image] = max(now, self.link_free) + seconds
        return max(now, self.images[image])


@dataclass(frozen=True)
class _Stage:
    """What it costs a processor, and samples of the waiting beside that."""

    cpu_s: float
    waits: Sequence[float]

    def wait(self, rng: random.Random) -> float:
        """Between two quantiles, linearly."""
        at = rng.random() * (len(self.waits) - 1)
        low = int(at)
        return self.waits[low] + (at - low) * (self.waits[min(low + 1, len(self.waits) - 1)] - self.waits[low])


def stages(costs: MachineCosts) -> list[_Stage]:
    """make, run, end."""
    alone = [costs.make_s, costs.run_s, costs.end_s]
    means = [sum(quantiles) / len(quantiles) for quantiles in alone]
    cycle_s = min(costs.cores / costs.cycles_per_s, sum(means))
    shares = [cycle_s * mean / sum(means) for mean in means]
    return [_Stage(cpu, [max(0.0, q - cpu) for q in quantiles]) for cpu, quantiles in zip(shares, alone)]


def simulate(
    plan: BurstPlan, costs: MachineCosts, config: PoolConfig, *, seed: int = 0, faults: Faults | None = None
) -> BurstOutcome:
    return _Run(plan, costs, config, seed, faults or Faults()).outcome()


class _Run:
    def __init__(self, plan: BurstPlan, costs: MachineCosts, config: PoolConfig, seed: int, faults: Faults) -> None:
        self.plan, self.costs, self.faults, self.rng = plan, costs, faults, random.Random(seed)
        names = [f"node{i:04d}" for i in range(plan.nodes)]
        self.scheduler = Scheduler(dict.fromkeys(names, plan.memory_bytes), config)
        self.hosts = {name: _Host([0.0] * plan.cores) for name in names}
        self.make, self.run, self.end = stages(costs)
        self.events: list[tuple[float, int, str, Start]] = []
        self.made = 0
        self.asked = [plan.arrive_s * i / plan.machines for i in range(plan.machines)]
        self.first: list[float] = []
        self.alive = self.most_alive = self.ended = self.lost = self.tries = self.orphans = self.late = 0
        self.last = 0.0
        self.full = dict.fromkeys(("memory", "machines"), 0)

    def at(self, when: float, what: str, start: Start) -> None:
        self.made += 1
        heapq.heappush(self.events, (when, self.made, what, start))

    def outcome(self) -> BurstOutcome:
        nobody = Start(Ask(-1, ""), "", 0)
        for i, when in enumerate(self.asked):
            group = i // self.plan.group
            image = f"image{group % self.plan.images}" if self.plan.image_bytes else ""
            self.at(when, "ask", Start(Ask(i, str(group), image, self.costs.idle_bytes + self.plan.grown_bytes), "", 0))
        self.at(SENSE_S, "sense", nobody)
        if self.faults.lose_node_at_s:
            self.at(self.faults.lose_node_at_s, "lose", nobody)
        now = 0.0
        while self.events and (self.ended + self.lost < self.plan.machines or self.orphans or self.late):
            now, _, what, start = heapq.heappop(self.events)
            getattr(self, f"on_{what}")(now, start)
            while self.events and self.events[0][0] == now and self.events[0][2] == what == "ask":
                self.on_ask(now, heapq.heappop(self.events)[3])
            for begun in self.scheduler.next(now):
                self.begin(now, begun)
            if (wake := self.scheduler.wake()) is not None and (not self.events or wake < self.events[0][0]):
                self.at(wake, "nothing", nobody)
        first = sorted(self.first) or [float("nan")]
        return BurstOutcome(
            makespan_s=self.last, p50_s=first[len(first) // 2], p99_s=first[min(len(first) - 1, int(0.99 * len(first)))],
            most_alive=self.most_alive, ended=self.ended, lost=self.lost, tries=self.tries, orphans=self.orphans,
            bottleneck=self.bottleneck(),
        )  # fmt: skip

    def begin(self, now: float, start: Start) -> None:
        self.tries += 1
        host, draw = self.hosts[start.node], self.rng.random()
        ready = now
        if start.ask.image:
            ready = host.fetch(now, start.ask.image, self.plan.image_bytes / self.plan.link_bytes_s)
        done = host.compute(ready, self.make.cpu_s) + self.make.wait(self.rng)
        if draw < self.faults.failing_frac:
            self.at(done, "failed", start)
        elif draw < self.faults.failing_frac + self.faults.late_frac:
            self.at(now + self.faults.late_s, "failed", start)
            self.at(now + 2 * self.faults.late_s, "late", start)
            self.late += 1
        else:
            self.at(done, "made", start)

    # ---- events ----

    def on_nothing(self, now: float, start: Start) -> None:
        """A retry is due."""

    def on_ask(self, now: float, start: Start) -> None:
        self.scheduler.ask(start.ask)

    def on_sense(self, now: float, start: Start) -> None:
        for name, host in self.hosts.items():
            if name in self.scheduler.nodes:
                self.scheduler.sense(name, 1 - host.used_bytes / self.plan.memory_bytes)
                node = self.scheduler.nodes[name]
                if node.queue:
                    crowded = node.alive + node.creating >= node.machines
                    self.full["machines" if crowded else "memory"] += crowded or not self.fits(node.promised_bytes)
        self.at(now + SENSE_S, "sense", start)

    def fits(self, promised: int) -> bool:
        return promised + self.costs.idle_bytes + self.plan.grown_bytes <= self.plan.memory_bytes

    def on_lose(self, now: float, start: Start) -> None:
        if len(self.scheduler.nodes) < 2:
            return
        name = min(self.scheduler.nodes)
        died = self.scheduler.lose(name)
        self.alive -= len(died)
        self.ended += len(died)  # their leases end with the node; their attempts are run again by whoever held them
        self.last = now

    def on_failed(self, now: float, start: Start) -> None:
        if start.node in self.scheduler.nodes and not self.scheduler.failed(start, now):
            self.lost += 1
            self.last = now

    def on_late(self, now: float, start: Start) -> None:
        """Alive after all, and nobody's: whoever makes machines asks the scheduler, and ends it."""
        self.late -= 1
        if start.node in self.scheduler.nodes and not self.scheduler.started(start, now):
            self.orphans += 1
            self.at(self.hosts[start.node].compute(now, self.end.cpu_s), "gone", start)

    def on_gone(self, now: float, start: Start) -> None:
        self.orphans -= 1

    def on_made(self, now: float, start: Start) -> None:
        if start.node not in self.scheduler.nodes:
            return  # it went down with its node, and is asked for elsewhere
        assert self.scheduler.started(start, now)
        host = self.hosts[start.node]
        host.used_bytes += self.costs.idle_bytes + self.plan.grown_bytes
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        cpu_s = self.run.cpu_s + self.plan.work_s * self.costs.work_frac
        self.at(host.compute(now, cpu_s) + self.run.wait(self.rng), "output", start)

    def on_output(self, now: float, start: Start) -> None:
        if start.node in self.scheduler.nodes:
            self.first.append(now - self.asked[start.ask.id])
            hold = self.rng.expovariate(1 / self.plan.hold_s) if self.plan.hold_s else 0.0
            self.at(now + hold, "held", start)

    def on_held(self, now: float, start: Start) -> None:
        if start.node in self.scheduler.nodes:
            host = self.hosts[start.node]
            self.at(host.compute(now, self.end.cpu_s) + self.end.wait(self.rng), "ended", start)

    def on_ended(self, now: float, start: Start) -> None:
        if start.node in self.scheduler.nodes:
            self.scheduler.ended(start.ask.id)
            self.hosts[start.node].used_bytes -= self.costs.idle_bytes + self.plan.grown_bytes
            self.alive -= 1
            self.ended += 1
            self.last = now

    def bottleneck(self) -> str:
        cores = sum(host.busy_s for host in self.hosts.values()) / max(
            1e-9, self.plan.nodes * self.plan.cores * self.last
        )
        link = max(host.link_free for host in self.hosts.values()) / max(1e-9, self.last)
        if cores > 0.85:
            return "processors"
        if link > 0.5:
            return "link"
        most = max(self.full, key=lambda name: self.full[name])
        return most if self.full[most] * SENSE_S > 0.2 * self.last * self.plan.nodes else "waiting"
