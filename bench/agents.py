"""Agents: servers of machines in network namespaces of their own, 2,000 machines at once over HTTP, one agent killed -9.

Every attempt grades a known change in a fresh machine, so its right reward is known: any other reward was made of a
failure of infrastructure. First all machines are started and stay; then they are used, and when an eighth of the attempts
is done one agent is killed with all its machines, and started again on its folder. The attempts that it held are lost (no
reward) and played again. At the end the journals are read: each lease must have ended exactly once, and no process, no
control group and no machine may be left of any life of any agent.

Namespaces are joined to this host by a pair of virtual Ethernet devices each. Where they cannot be made, the agents are
plain processes on the loopback, which is said aloud and in `namespaces`.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from _result import finish
from twinmill.env.machine.base import Machine
from twinmill.env.machine.leftovers import leftovers
from twinmill.env.machine.remote.client import RemoteMachine, status_of
from twinmill.env.machine.remote.config import RemoteConfig, Server
from twinmill.env.machine.remote.journal import read
from twinmill.env.reward.grading import grade
from twinmill.records.machines import LeaseEnd, LeaseEnded, LeaseOpened
from twinmill.records.tasks import Budget, Case, Grader, GraderKind, MachineSpec, Task

FULL = 2000
TOKEN_ENV = "TWINMILL_BENCH_AGENTS_TOKEN"
TOKEN = secrets.token_urlsafe(32)
TRIES = 10
"""of one attempt; each but the last may be lost to infrastructure"""
TASK = Task(
    id="bench", taskset="bench", messages=(), machine=MachineSpec(files={"main.py": "def f(n):\n    return n\n"}), tools=(),
    budget=Budget(),
    grader=Grader(
        kind=GraderKind.CASES,
        cases=tuple(Case(id=f"t{n}", module="main", call=f"f({n})", expect=str(n * n)) for n in range(3)),
        timeout_s=60.0,
    ),
)  # fmt: skip
CHANGES = {1.0: {"main.py": "def f(n):\n    return n * n\n"}, 0.0: {"main.py": "def f(n):\n    return n + n\n"}}
"""right reward -> what the attempt has made of the files"""
WRONG_EVERY = 8
"""most changes are right ones: a 0 that a failure has made stands out"""


@dataclass
class Namespace:
    """A network namespace, and this host's address of its only way out; name "" = none."""

    name: str
    host: str

    @property
    def enter(self) -> list[str]:
        """nsenter, not `ip netns exec`: that mounts a new /sys, without control groups."""
        return ["nsenter", f"--net=/run/netns/{self.name}"] if self.name else []


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def make_namespaces(count: int) -> list[Namespace]:
    """Raises OSError where this host lets nobody make them."""
    made: list[Namespace] = []
    try:
        for tool in ("ip", "nsenter"):
            if shutil.which(tool) is None:
                raise OSError(f"there is no program {tool} (apt-get install iproute2 util-linux)")
        for number in range(count):
            name, outside = f"twinmill-agent-{os.getpid()}-{number}", f"tm{os.getpid() % 10**7}x{number}"
            net = f"10.213.{os.getpid() % 250}.{number * 4}".rpartition(".")
            here, there = (f"{net[0]}.{int(net[2]) + n}" for n in (1, 2))
            _ip("netns", "add", name)
            made.append(Namespace(name, there))
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("addr", "add", f"{here}/30", "dev", outside)
            _ip("link", "set", outside, "up")
            _ip("-n", name, "addr", "add", f"{there}/30", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
    except OSError:
        remove_namespaces(made)
        raise
    return made


def remove_namespaces(made: list[Namespace]) -> None:
    """Their devices go with them."""
    for space in made:
        if space.name:
            with contextlib.suppress(OSError):
                _ip("netns", "del", space.name)


@dataclass
class Agent:
    """One server of machines, over all its lives."""

    space: Namespace
    folder: Path
    port: int = 0
    process: "subprocess.Popen[str] | None" = None
    pids: list[int] = field(default_factory=list)
    url: str = ""

    def start(self) -> None:
        tenants = self.folder / "tenants.toml"
        self.folder.mkdir(parents=True, exist_ok=True)
        tenants.write_text(f'[bench]\ntoken_env = "{TOKEN_ENV}"\nmachines = 4096\ncreates_per_minute = 1000000\n')
        serve = [sys.executable, "-m", "twinmill.cli.main", "machines", "serve", "--backend", "native"]
        serve += ["--host", self.space.host, "--port", str(self.port), "--folder", str(self.folder)]
        serve += ["--tenants", str(tenants), "--machines", "4096", "--drain-s", "5"]
        self.process = subprocess.Popen(
            [*self.space.enter, *serve], stdout=subprocess.PIPE, text=True,
            env={**os.environ, TOKEN_ENV: TOKEN, "COLUMNS": "300"},
        )  # fmt: skip
        assert self.process.stdout is not None
        while " at http" not in (line := self.process.stdout.readline()):
            if not line:
                raise RuntimeError(f"an agent did not start: it ended with status {self.process.wait()}")
        self.url = next(word for word in line.split() if word.startswith("http")).rstrip(";")
        self.port = int(self.url.rpartition(":")[2])
        self.pids.append(self.process.pid)

    def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(120)

    @property
    def server(self) -> Server:
        return Server(RemoteConfig(url=self.url, token_env=TOKEN_ENV, lease_s=30.0, patience_s=60.0), TOKEN)

    def ends(self) -> Counter[LeaseEnd]:
        """Reason -> leases that ended so, over all lives."""
        lines = [line.what for path in self.folder.glob("*.jsonl") for line in read(path)]
        return Counter(line.reason for line in lines if isinstance(line, LeaseEnded))

    def not_ended_once(self) -> tuple[int, int]:
        """(leases, those of them that have no end or more than one)."""
        opened, bad = 0, 0
        for path in self.folder.glob("*.jsonl"):
            lines = [line.what for line in read(path)]
            ends = Counter(line.lease for line in lines if isinstance(line, LeaseEnded))
            names = [line.lease for line in lines if isinstance(line, LeaseOpened)]
            opened += len(names)
            bad += sum(ends[name] != 1 for name in names) + len(set(ends) - set(names)) + len(names) - len(set(names))
        return opened, bad

    def left(self) -> list[str]:
        return [thing for pid in self.pids for thing in leftovers(pid)]


@dataclass
class Tally:
    """What became of the attempts."""

    done: int = 0
    lost: int = 0
    """tries without a reward, played again"""
    infra_rewards: int = 0
    starts_s: list[float] = field(default_factory=list)
    """from the request to the machine"""


class Gate:
    """Where machines wait until `count` of them are there and have been counted. `room`: so many start, and are used, at
    the same time."""

    def __init__(self, count: int, at_once: int) -> None:
        self._left, self.full, self.open = count, asyncio.Event(), asyncio.Event()
        self.room = asyncio.Semaphore(at_once)

    async def pass_through(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.full.set()
        await self.open.wait()


class Held(RemoteMachine):
    """Starts, waits until all are there, and has a place in the room from then until its end."""

    def __init__(self, spec: MachineSpec, server: Server, gate: Gate, tally: Tally) -> None:
        super().__init__(spec, server=server)
        self._gate, self._tally, self._placed = gate, tally, False

    async def start(self) -> None:
        async with self._gate.room:
            started = time.perf_counter()
            await super().start()
            self._tally.starts_s.append(time.perf_counter() - started)
        await self._gate.pass_through()
        await self._gate.room.acquire()
        self._placed = True

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._placed:
                self._placed = False
                self._gate.room.release()


async def attempt(number: int, agent: Agent, gate: Gate, tally: Tally) -> None:
    right = 0.0 if number % WRONG_EVERY == WRONG_EVERY - 1 else 1.0

    def make(spec: MachineSpec) -> Machine:
        return Held(spec, agent.server, gate, tally)

    for _ in range(TRIES):
        verdict = await grade(TASK, CHANGES[right], make, f"attempt-{number}")
        if verdict.reward is not None:
            tally.infra_rewards += verdict.reward != right
            tally.done += 1
            return
        tally.lost += 1
    raise RuntimeError(f"attempt {number} was lost {TRIES} times; the last time: {verdict.error}")


async def kill_one(agent: Agent, tally: Tally, at: int) -> int:
    """Kill it -9 in the middle of its work and start it again. Returns what was left of it then."""
    while tally.done < at:
        await asyncio.sleep(0.01)
    print(f"killing the agent at {agent.url} after {tally.done} attempts", flush=True)
    await asyncio.to_thread(agent.end, signal.SIGKILL)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(agent.start)
    found = leftovers(agent.pids[0])
    print(f"it is back, and of its first life there is left: {found or 'nothing'}", flush=True)
    return len(found)


async def alive(agents: list[Agent]) -> int:
    return sum([(await status_of(agent.server)).alive for agent in agents])


async def run(agents: list[Agent], count: int, at_once: int) -> dict[str, object]:
    for agent in agents:
        await asyncio.to_thread(agent.start)
    tally, gate, started = Tally(), Gate(count, at_once), time.perf_counter()
    killing = asyncio.create_task(kill_one(agents[0], tally, max(1, count // 8)))
    playing = [asyncio.create_task(attempt(n, agents[n % len(agents)], gate, tally)) for n in range(count)]
    filling = asyncio.create_task(gate.full.wait())
    try:
        await asyncio.wait({filling, *playing}, return_when=asyncio.FIRST_COMPLETED)
        alive_at_once, up_s = await alive(agents), time.perf_counter() - started
        gate.open.set()
        print(f"{alive_at_once} machines are up after {up_s:.0f} s", flush=True)
        await asyncio.gather(*playing)
        orphans = await killing
    finally:
        for task in (filling, killing, *playing):
            task.cancel()
        await asyncio.gather(filling, killing, *playing, return_exceptions=True)
    seconds = time.perf_counter() - started
    left = await alive(agents)
    codes = [await asyncio.to_thread(agent.end, signal.SIGTERM) for agent in agents]
    if any(codes):
        raise RuntimeError(f"agents that were told to end left with {codes}, not 0")
    orphans += left + sum(len(agent.left()) for agent in agents)
    leases, bad = (sum(column) for column in zip(*[agent.not_ended_once() for agent in agents]))
    ends = sum((agent.ends() for agent in agents), Counter[LeaseEnd]())
    percentiles = statistics.quantiles(tally.starts_s, n=100)
    return {
        "graded": tally.done, "alive_at_once": alive_at_once, "leases": leases, "tries_lost": tally.lost,
        "leases_killed": ends[LeaseEnd.KILLED], "up_s": up_s, "seconds": seconds,
        "start_p50_ms": percentiles[49] * 1e3, "start_p99_ms": percentiles[98] * 1e3,
        "leases_not_ended_once": bad, "orphans": orphans, "infra_rewards": tally.infra_rewards,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=FULL, help="at once, one for each attempt")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=16, help="machines that start, or are used, at the same time")
    parser.add_argument("--plain", action="store_true", help="agents on the loopback, without network namespaces")
    options = parser.parse_args()
    if options.machines < 2 * options.agents:
        parser.error(f"--machines must be at least {2 * options.agents}: two for each agent")
    spaces = [Namespace("", "127.0.0.1") for _ in range(options.agents)]
    if not options.plain:
        try:
            spaces = make_namespaces(options.agents)
        except OSError as error:
            print(f"NO NETWORK NAMESPACES HERE ({error}): the agents are plain processes on the loopback", flush=True)
    agents: list[Agent] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever ends this early gets what is below done, too
    with tempfile.TemporaryDirectory() as folder:
        try:
            agents += [Agent(space, Path(folder, str(n))) for n, space in enumerate(spaces)]
            measured = asyncio.run(run(agents, options.machines, options.at_once))
        finally:
            for agent in agents:
                if agent.process is not None and agent.process.poll() is None:
                    agent.end(signal.SIGKILL)
            remove_namespaces(spaces)
    measured = {"agents": len(agents), "namespaces": sum(bool(space.name) for space in spaces), **measured}
    must = {"leases_not_ended_once": "== 0", "orphans": "== 0", "infra_rewards": "== 0"}
    must |= {"graded": f">= {options.machines}", "alive_at_once": f">= {options.machines}", "leases_killed": ">= 1"}
    finish("agents", measured, must)


if __name__ == "__main__":
    main()
