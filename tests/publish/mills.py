"""Both mills in miniature: no model, no engine, but every durable write of the real ones in the real order.

A cluster admits slots inside the window, appends the attempts, closes. A trainer takes them in order and publishes.
Each knows only the store, so each can be killed at any moment and started again. As a program, this is one of them:

    python -m tests.publish.mills FOLDER cluster NAME VERSIONS
    python -m tests.publish.mills FOLDER trainer VERSIONS
"""

import sys
import time

from tests.store.toys import attempt
from twinmill.publish import PublishConfig
from twinmill.publish.mirror import Mirror
from twinmill.publish.publisher import Publisher
from twinmill.publish.subscriber import Subscriber
from twinmill.records.episodes import Admit, Close
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.ledger import EpisodesLog
from twinmill.store.log import Cursor

from .toys import DTYPES, first_state, moved

GROUP, SLOTS_PER_STEP, WINDOW = 2, 2, 1


def slots_of(version: int) -> range:
    """The slots that version (>= 1) is trained on, in order."""
    return range((version - 1) * SLOTS_PER_STEP, version * SLOTS_PER_STEP)


class ClusterMill:
    """Continues its own open slots first, then takes free ones while they are inside the window."""

    def __init__(self, blobs: Blobs, name: str, versions: int, mirror: str | None = None) -> None:
        self.name, self.last_slot = name, versions * SLOTS_PER_STEP - 1
        self.log = EpisodesLog(blobs)
        self.subscriber = Subscriber(Mirror(blobs, mirror) if mirror else blobs, "run")
        self.mine = [admit for admit in self.log.open_slots() if admit.cluster == name]
        self.free = 0

    def step(self) -> bool:
        """One slot, from admission to close; False when there is nothing to do now."""
        prepared = self.subscriber.prepare()
        if prepared is not None:
            self.subscriber.commit(prepared)
        admit = self.mine.pop(0) if self.mine else self._admit()
        if admit is None:
            return False
        done = self.log.attempts_of(self.name, [admit.slot])
        entries = []
        for index in range(GROUP):
            if (admit.slot, index) in done:
                entries.append(done[admit.slot, index][0])
            else:
                entry = attempt(admit.slot, index, versions=(self.subscriber.number,), cluster=self.name)
                entries.append(self.log.append(self.name, entry))
        assert self.log.close(Close(slot=admit.slot, task_id=admit.task_id, entries_G=tuple(entries)))
        return True

    def _admit(self) -> Admit | None:
        self.free = self.log.next_free_slot(self.free)
        serving = self.subscriber.number
        if self.free > self.last_slot or serving < max(0, self.free // SLOTS_PER_STEP - WINDOW):
            return None
        admit = Admit(slot=self.free, task_id=f"task/{self.free}", seed=self.free, cluster=self.name, version=serving)
        return admit if self.log.admit(admit) else None


class TrainerMill:
    """Version n is the state after n moves, so that a step that is done again gives the same bits."""

    def __init__(self, blobs: Blobs, versions: int) -> None:
        self.blobs, self.versions = blobs, versions
        self.log = EpisodesLog(blobs)
        self.publisher = Publisher(blobs, "run", PublishConfig(full_every=3))
        self.cursor = Cursor(blobs, "cursors/trainer")
        self.cursor.load()
        base = self.publisher.state()
        self.state = first_state() if base is None else dict(base.tensors)

    @property
    def number(self) -> int:
        return -1 if self.publisher.latest is None else self.publisher.latest.number

    @property
    def finished(self) -> bool:
        return self.number == self.versions

    def step(self) -> bool:
        """One version; False when its slots are not closed yet, or all versions are made."""
        number = self.number + 1
        slots = slots_of(number) if number else range(0)
        if self.finished or any(self.log.close_of(slot) is None for slot in slots):
            return False
        for slot in slots:
            close = self.log.close_of(slot)
            assert close is not None
            assert self.log.group_of(close).size == GROUP
        self.state = moved(self.state, number) if number else self.state
        self.blobs.put_ref("blobs", b"checkpoint of %d" % number)
        self.publisher.publish(self.state, DTYPES, step=number, slots=tuple(slots), created_at=0.0)
        self.cursor.save({"slots": number * SLOTS_PER_STEP})
        return True


def _main(folder: str, role: str, *rest: str) -> None:
    """Work until all versions are there, or for a minute."""
    blobs = open_blobs(folder)
    versions = int(rest[-1])
    mill: ClusterMill | TrainerMill
    if role == "cluster":
        mill = ClusterMill(blobs, rest[0], versions, mirror=f"{folder}-mirror-{rest[0]}")
    else:
        mill = TrainerMill(blobs, versions)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        mill.step()
        if isinstance(mill, TrainerMill) and mill.finished:
            return
        time.sleep(0.03)  # so that kills from outside fall into the work and not only into the start
    raise SystemExit("not finished within a minute")


if __name__ == "__main__":
    _main(*sys.argv[1:])
