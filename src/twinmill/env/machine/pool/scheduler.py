"""Who may start a machine where, and when: decisions only. No clock, no process, no await; time is an argument.

The node-local pool (local.py) and the simulator (simulator.py) run this same code, on the real clock and on a virtual one.

    ask() ──► a group's node ──► that node's queue ──► next(): Start ──► started() ──────────► ended()
               the one that has     first come,         while there is    │
               room, rather with    first served        room on it        └ failed() ──► later, elsewhere if need be; or lost
               the group's image

- Group affinity: all asks of a group go to one node, as long as it lives: they fork from one template.
- Admission by pressure: a node starts nothing while it has less memory free than `free_frac`, or more promised than it has.
  One machine may always start: a node with nothing on it cannot relieve itself.
- AIMD: creates in flight have a window of their own on each node. A create that was fast widens it by 1/window, one that was
  slow or failed halves it, at most once per `slow_s`.
- Retries are paid from a budget of `retry_frac` of all asks, so that a storm of failures never grows by itself.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from twinmill.records.base import Record


class PoolConfig(Record):
    """How a pool admits machines."""

    machines: int = 64
    """most alive at once, on each node"""
    creates: int = 32
    """most creates in flight, on each node: the bound of the AIMD window"""
    slow_s: float = 1.0
    """a create that takes longer is a sign of congestion"""
    free_frac: float = 0.1
    """share of memory that must be free for another machine to start"""
    tries: int = 3
    """creates of one ask, before it is lost"""
    retry_s: float = 0.2
    """before the second try; doubled before each further one"""
    retry_frac: float = 0.2
    """retries beyond this share of all asks (and RETRIES of them) are not made"""

    def __post_init__(self) -> None:
        for name in ("machines", "creates", "tries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; a pool needs at least 1")
        if not (0 <= self.free_frac < 1 and self.slow_s > 0 and self.retry_s >= 0 and self.retry_frac >= 0):
            raise ValueError("free_frac must be in [0, 1), slow_s above 0, retry_s and retry_frac at least 0")


FIRST_WINDOW = 4.0
RETRIES = 10
"""retries that even a small burst may make"""
AWAY = 0.25
"""by how much of its room a node may be fuller than another one and still be chosen for the image that it has"""


@dataclass(frozen=True)
class Ask:
    id: int
    group: str
    image: str = ""
    """what it is forked from; "" = nothing"""
    promised_bytes: int = 0
    """memory that it will need"""


@dataclass(frozen=True)
class Start:
    """Do it, and say started() or failed()."""

    ask: Ask
    node: str
    number: int
    """which try, from 1"""


@dataclass
class Node:
    name: str
    machines: int
    memory_bytes: int
    window: float = FIRST_WINDOW
    creating: int = 0
    alive: int = 0
    promised_bytes: int = 0
    free_frac: float = 1.0
    cut_at: float = -1.0
    """the window is not halved again before"""
    images: set[str] = field(default_factory=set)
    queue: deque[Ask] = field(default_factory=deque)

    @property
    def load(self) -> float:
        return (self.alive + self.creating + len(self.queue)) / self.machines


@dataclass
class _Held:
    """An ask that a node is working on or has a machine for."""

    ask: Ask
    node: Node
    begun: float
    number: int
    alive: bool = False


@dataclass
class _Home:
    """Where a group's asks go."""

    node: Node | None = None
    asks: int = 0
    """of it that have not ended"""


class Scheduler:
    def __init__(self, nodes: Mapping[str, int], config: PoolConfig) -> None:
        """`nodes`: name -> its memory in bytes."""
        self.config = config
        self.nodes = {name: Node(name, config.machines, size) for name, size in nodes.items()}
        self.asked = self.retried = 0
        self._waiting: deque[Ask] = deque()
        """no node yet"""
        self._held: dict[int, _Held] = {}
        self._tries: dict[int, int] = {}
        self._later: list[tuple[float, int, Ask]] = []
        self._homes: dict[str, _Home] = {}
        self._stirred: set[str] = set()
        """nodes on which something may have become possible"""

    # ---- what happened ----

    def ask(self, ask: Ask) -> None:
        if ask.id in self._tries:
            raise ValueError(f"ask {ask.id} was made before")
        self.asked += 1
        self._tries[ask.id] = 0
        self._homes.setdefault(ask.group, _Home()).asks += 1
        self._waiting.append(ask)

    def withdraw(self, id: int) -> None:
        """Nobody waits for it any more. Only what has not begun; a create in flight ends as started() and ended()."""
        for queue in (self._waiting, *(node.queue for node in self.nodes.values())):
            for ask in [ask for ask in queue if ask.id == id]:
                queue.remove(ask)
                self._forget(ask)
        for entry in [entry for entry in self._later if entry[2].id == id]:
            self._later.remove(entry)
            heapq.heapify(self._later)
            self._forget(entry[2])

    def started(self, start: Start, now: float) -> bool:
        """False = this try has failed before, and another one may be on its way: the caller must end the machine."""
        held = self._held.get(start.ask.id)
        if held is None or held.alive or held.number != start.number:
            return False
        node, held.alive = held.node, True
        node.creating -= 1
        node.alive += 1
        node.images.add(held.ask.image)
        if now - held.begun <= self.config.slow_s:
            node.window = min(float(self.config.creates), node.window + 1 / node.window)
        else:
            self._cut(node, now)
        self._stirred.add(node.name)
        return True

    def failed(self, start: Start, now: float, retry_after_s: float = 0.0) -> bool:
        """Whether it will be tried again."""
        held = self._held.pop(start.ask.id)
        held.node.creating -= 1
        self._leave(held)
        self._cut(held.node, now)
        return self._again(held.ask, now, retry_after_s)

    def ended(self, id: int) -> None:
        held = self._held.pop(id)
        held.node.alive -= 1
        self._leave(held)
        self._forget(held.ask)

    def sense(self, node: str, free_frac: float) -> None:
        """How much of its memory is free now."""
        self.nodes[node].free_frac = free_frac
        self._stirred.add(node)

    def lose(self, node: str) -> list[int]:
        """A node is gone. Its asks are placed anew; what was alive on it is returned and has ended."""
        gone = self.nodes.pop(node)
        self._stirred.discard(node)
        died = []
        for id, held in [(id, held) for id, held in self._held.items() if held.node is gone]:
            del self._held[id]
            if held.alive:
                died.append(id)
                self._forget(held.ask)
            else:
                self._waiting.append(held.ask)  # no failure of its own
        self._waiting.extend(gone.queue)
        return died

    # ---- what to do ----

    def next(self, now: float) -> Iterator[Start]:
        """What may start now. To be asked after anything has happened, and at wake()."""
        while self._later and self._later[0][0] <= now:
            self._waiting.append(heapq.heappop(self._later)[2])
        while self._waiting and self.nodes:
            ask = self._waiting.popleft()
            node = self._home(ask)
            node.queue.append(ask)
            self._stirred.add(node.name)
        stirred, self._stirred = self._stirred, set()
        for name in sorted(stirred):
            node = self.nodes[name]
            while node.queue and self._room(node, node.queue[0]):
                ask = node.queue.popleft()
                self._tries[ask.id] += 1
                node.creating += 1
                node.promised_bytes += ask.promised_bytes
                self._held[ask.id] = _Held(ask, node, now, self._tries[ask.id])
                yield Start(ask, name, self._tries[ask.id])

    def wake(self) -> float | None:
        """When next() may have something that nothing announces; None = never."""
        return self._later[0][0] if self._later else None

    # ---- how ----

    def _room(self, node: Node, ask: Ask) -> bool:
        if node.creating + node.alive == 0:
            return True
        return (
            node.creating < int(node.window)
            and node.creating + node.alive < node.machines
            and node.free_frac >= self.config.free_frac
            and node.promised_bytes + ask.promised_bytes <= node.memory_bytes
        )

    def _home(self, ask: Ask) -> Node:
        home = self._homes[ask.group]
        if home.node is None or home.node.name not in self.nodes:
            home.node = min(self.nodes.values(), key=lambda n: (n.load + AWAY * (ask.image not in n.images), n.name))
        return home.node

    def _leave(self, held: _Held) -> None:
        held.node.promised_bytes -= held.ask.promised_bytes
        if held.node.name in self.nodes:
            self._stirred.add(held.node.name)

    def _again(self, ask: Ask, now: float, retry_after_s: float) -> bool:
        affordable = self.retried < RETRIES + self.config.retry_frac * self.asked
        if self._tries[ask.id] >= self.config.tries or not affordable:
            self._forget(ask)
            return False
        self.retried += 1
        wait = max(retry_after_s, self.config.retry_s * 2 ** (self._tries[ask.id] - 1))
        heapq.heappush(self._later, (now + wait, ask.id, ask))
        return True

    def _cut(self, node: Node, now: float) -> None:
        if now >= node.cut_at:
            node.window = max(1.0, node.window / 2)
            node.cut_at = now + self.config.slow_s

    def _forget(self, ask: Ask) -> None:
        del self._tries[ask.id]
        home = self._homes[ask.group]
        home.asks -= 1
        if not home.asks:
            del self._homes[ask.group]
