"""The episodes log: it carries the rollout mill's work to the training mill; half of the ledger of slots.

    episodes/admit/<slot>              Admit: one cluster owns the slot         put-if-absent
    episodes/lanes/<cluster>/<index>   Attempt: one finished attempt            append, one writer per cluster
    episodes/close/<slot>              Close: the slot is over, and how         put-if-absent
    episodes/regrades/<lane>/<index>   Verdict: a later opinion on an episode   append; changes no closed slot
    episodes/beats/<cluster>           Beat: a cluster's sign of life           overwritten

Order for one slot: Admit, then its Attempts, then Close, each durable before the next. So whatever is
killed, a reader sees a prefix of that order; a restarted cluster continues its own open slots and runs only
the attempts that are missing. The other half of the ledger is the slot list of each weight version;
`audit.py` proves both.
"""

from collections.abc import Iterable, Iterator

from msgspec import structs

from twinmill.records import wire
from twinmill.records.episodes import Admit, Attempt, Close, Group, LogPos, Verdict
from twinmill.records.runs import Beat

from .blobs import Blobs, named_write
from .errors import Corrupt, NotFound
from .frame import R, seal_record, unseal_record
from .log import Lane, Log, first_free, index_of, indexed


def finished(attempt: Attempt) -> bool:
    """Is this attempt valid and graded? One that was lost to infrastructure is run again instead."""
    return attempt.episode.error is None and attempt.verdict.reward is not None


class EpisodesLog:
    """One process's view of the episodes log. Appending to a lane makes this object its one writer."""

    def __init__(self, blobs: Blobs, prefix: str = "episodes") -> None:
        self._blobs = blobs
        self._admits = f"{prefix}/admit"
        self._closes = f"{prefix}/close"
        self._beats = f"{prefix}/beats"
        self._attempts = Log(blobs, f"{prefix}/lanes")
        self._regrades = Log(blobs, f"{prefix}/regrades")
        self._writers: dict[str, Lane] = {}
        self._regrade_writers: dict[str, Lane] = {}

    # Slots

    def admit(self, admit: Admit) -> bool:
        """Take slot `admit.slot` for `admit.cluster`; False when it is taken. Fills in `lane_from`."""
        key = indexed(self._admits, admit.slot)
        admit = structs.replace(admit, lane_from=self._writer(admit.cluster).next)
        with named_write("ledger.admit"):
            if self._blobs.put_new(key, seal_record(key, admit)):
                return True
        # Our own Admit, when its answer was lost and it is tried again; the lane may have grown in between.
        there = self._read(key, Admit)
        return there is not None and structs.replace(there, lane_from=admit.lane_from) == admit

    def admit_of(self, slot: int) -> Admit | None:
        return self._read(indexed(self._admits, slot), Admit)

    def close(self, close: Close) -> bool:
        """End slot `close.slot`; False when somebody else has ended it, whose Close then stands."""
        key = indexed(self._closes, close.slot)
        with named_write("ledger.close"):
            return self._blobs.claim(key, seal_record(key, close))

    def close_of(self, slot: int) -> Close | None:
        return self._read(indexed(self._closes, slot), Close)

    def open_slots(self, since: int = 0) -> list[Admit]:
        """Admits of slots >= since that have no Close, in slot order. Lists the log: not for fast polling."""
        closed = set(self.closed_slots(since))
        found = (self.admit_of(slot) for slot in self._slots(self._admits, since) if slot not in closed)
        return [admit for admit in found if admit is not None]

    def closed_slots(self, since: int = 0) -> list[int]:
        """Numbers of the closed slots >= since, in order."""
        return self._slots(self._closes, since)

    def next_free_slot(self, hint: int = 0) -> int:
        """The lowest slot >= hint that nobody has admitted. `hint`: all below it are known to be taken."""
        return first_free(lambda slot: self._blobs.exists(indexed(self._admits, slot)), hint)

    # Attempts

    def append(self, lane: str, attempt: Attempt) -> LogPos:
        """Write one attempt to `lane` (by custom the cluster's name), whole or not at all."""
        return self._writer(lane).append(wire.pack(attempt))

    def attempt(self, pos: LogPos) -> Attempt:
        return self._unpack(pos, self._attempts.read(pos), Attempt)

    def tail(self, lane: str, start: int = 0) -> Iterator[tuple[LogPos, Attempt]]:
        """Attempts of `lane` from index `start` to its present end."""
        for pos, data in self._attempts.tail(lane, start):
            yield pos, self._unpack(pos, data, Attempt)

    def lanes(self) -> list[str]:
        return self._attempts.lanes()

    def attempts_of(self, cluster: str, slots: Iterable[int]) -> dict[tuple[int, int], tuple[LogPos, Attempt]]:
        """(slot, attempt) -> its first finished attempt in the cluster's lane: those are not run again."""
        wanted = set(slots)
        admits = [admit for slot in wanted if (admit := self.admit_of(slot)) is not None]
        if not admits:
            return {}
        found: dict[tuple[int, int], tuple[LogPos, Attempt]] = {}
        for pos, attempt in self.tail(cluster, min(admit.lane_from for admit in admits)):
            if attempt.slot in wanted and finished(attempt):
                found.setdefault((attempt.slot, attempt.attempt), (pos, attempt))
        return found

    def group_of(self, close: Close) -> Group:
        """The group that `close` closed, from its lane entries. Corrupt when an entry belongs elsewhere."""
        attempts = [self.attempt(pos) for pos in close.entries_G]
        for index, (pos, attempt) in enumerate(zip(close.entries_G, attempts)):
            if (attempt.slot, attempt.attempt) != (close.slot, index):
                raise Corrupt(
                    f"{pos.lane}/{pos.index}",
                    f"Close of slot {close.slot} names it as attempt {index}, but it holds attempt "
                    f"{attempt.attempt} of slot {attempt.slot}",
                )
        return Group(
            slot=close.slot,
            task_id=close.task_id,
            size=len(attempts),
            episodes_G=tuple(attempt.episode for attempt in attempts),
            verdicts_G=tuple(attempt.verdict for attempt in attempts),
            drop=close.drop,
            findings_G=tuple(attempt.findings for attempt in attempts),
        )

    # Re-grades and beats

    def append_verdict(self, lane: str, verdict: Verdict) -> LogPos:
        """Record a re-grade. It never changes a closed slot."""
        if lane not in self._regrade_writers:
            self._regrade_writers[lane] = self._regrades.lane(lane)
        return self._regrade_writers[lane].append(wire.pack(verdict))

    def regrades(self) -> Iterator[tuple[LogPos, Verdict]]:
        """All re-grades, lane by lane."""
        for lane in self._regrades.lanes():
            for pos, data in self._regrades.tail(lane):
                yield pos, self._unpack(pos, data, Verdict)

    def put_beat(self, beat: Beat) -> None:
        key = f"{self._beats}/{beat.cluster}"
        self._blobs.put(key, seal_record(key, beat))

    def drop_beat(self, cluster: str) -> None:
        """The cluster ended in order: nobody need watch for its signs of life."""
        self._blobs.delete(f"{self._beats}/{cluster}")

    def beats(self) -> dict[str, Beat]:
        """cluster -> its last beat."""
        found = (self._read(key, Beat) for key in self._blobs.list(self._beats))
        return {beat.cluster: beat for beat in found if beat is not None}

    def _writer(self, lane: str) -> Lane:
        if lane not in self._writers:
            self._writers[lane] = self._attempts.lane(lane)
        return self._writers[lane]

    def _read(self, key: str, kind: type[R]) -> R | None:
        try:
            return unseal_record(key, self._blobs.get(key), kind)
        except NotFound:
            return None

    def _slots(self, prefix: str, since: int) -> list[int]:
        after = indexed(prefix, since - 1) if since > 0 else ""
        return [index_of(key) for key in self._blobs.list(prefix, after=after)]

    def _unpack(self, pos: LogPos, data: bytes, kind: type[R]) -> R:
        try:
            return wire.unpack(data, kind)
        except wire.WireError as error:
            raise Corrupt(f"{pos.lane}/{pos.index}", str(error)) from error
