"""All ranks of an engine go to a version together.

    each rank   prepare            nothing is touched; PREPARED(version, model digest)
    all agree   pause, commit      each scatters its own tiles; what broke off is scattered again, which changes nothing else
    one cannot  fence              it serves no more, until it has begun anew from nothing and stands where the others do
    no one did  take back          nobody has committed, so nobody moves

Here the ranks are objects of one process; between processes the same five words travel.
"""

from collections.abc import Callable, Mapping

from twinmill.store.errors import StoreError

from .apply import Prepared
from .errors import PublishError, Refused
from .subscriber import Subscriber


class Ranks:
    """The subscribers of an engine's ranks, by rank. Not thread-safe: one owner."""

    def __init__(self, subscribers: Mapping[int, Subscriber], *, tries: int = 2) -> None:
        """tries: times a rank may try to commit before it is fenced."""
        self._subscribers = dict(subscribers)
        self._tries = tries
        self.fenced: dict[int, str] = {}
        """ranks that must not serve, and why"""

    @property
    def serving(self) -> dict[int, int]:
        """Rank -> the version it holds, of those that are not fenced: one version in all."""
        return {rank: one.number for rank, one in self._subscribers.items() if rank not in self.fenced}

    def prepare(self) -> dict[int, Prepared] | None:
        """The newest version that every rank can be brought to; None = there is none yet. Refused when ranks disagree on
        what a version is."""
        found = {rank: self._subscribers[rank].prepare() for rank in self.serving}
        newest = {rank: one.version.number if one else self._subscribers[rank].number for rank, one in found.items()}
        target = min(newest.values(), default=-1)
        prepared = {}
        for rank, one in found.items():
            if one is None or one.version.number != target:
                held = self._subscribers[rank].number
                one = self._subscribers[rank].prepare(target) if held < target else None
            if one is None:
                return None  # it is there already, or cannot get there: the others wait for it
            prepared[rank] = one
        if len({one.token for one in prepared.values()}) > 1:
            raise Refused(f"ranks prepared different versions: { {rank: one.token for rank, one in prepared.items()} }")
        return prepared or None

    def commit(self, prepared: Mapping[int, Prepared], switch: Callable[[int], None] = lambda rank: None) -> None:
        """Bring every rank to what was prepared, while the engine pauses. `switch(rank)` makes a rank serve it.

        A rank that fails `tries` times is fenced; if all do, those that had moved are taken back, and the last error is raised.
        """
        problems: dict[int, Exception] = {}
        for rank, one in prepared.items():
            for _ in range(self._tries):
                try:
                    self._subscribers[rank].commit(one)
                    switch(rank)
                except (PublishError, StoreError, OSError, RuntimeError) as error:
                    problems[rank] = error
                else:
                    problems.pop(rank, None)
                    break
        if problems and len(problems) == len(prepared):
            for rank, one in prepared.items():
                if self._subscribers[rank].number == one.version.number:
                    self._subscribers[rank].take_back()
            raise next(reversed(problems.values()))
        self.fenced.update((rank, str(error)) for rank, error in problems.items())

    def readmit(self, rank: int) -> bool:
        """Build a fenced rank anew, from nothing, at the version of the others; True = it may serve again."""
        if rank not in self.fenced:
            return True
        target = max(self.serving.values(), default=None)
        subscriber = self._subscribers[rank]
        prepared = subscriber.prepare(target, afresh=True)
        if prepared is None:
            return False
        subscriber.commit(prepared)
        del self.fenced[rank]
        return True
