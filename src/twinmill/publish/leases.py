"""What readers still need, so that nobody removes it under their hands.

    weights/leases/<who>      WeightsLease, sealed; its reader writes over it (a beat)
    weights/collected/<n>     Collection, sealed; create-if-absent; the collector's ledger (collect.py)

Why a reader that has taken a version never misses one of its objects, however the two are interleaved: it writes its lease
first, then looks at the newest Collection, then whether the objects are there. The collector removes only what a Collection
condemned that was durable before the collector listed the leases. So either the collector saw the lease, and spares; or
the lease came later, and then the reader sees the object condemned, or gone, and does not count on it. A lease that runs
out is no different from one that was never there. Clocks only decide when that is; they may differ by collect.skew_s.
"""

import re
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

from twinmill.records.base import Ref
from twinmill.records.weights import Collection, WeightsLease
from twinmill.store.blobs import Blobs, named_write
from twinmill.store.errors import NotFound
from twinmill.store.flight import TransferConfig
from twinmill.store.frame import seal_record, unseal_record
from twinmill.store.log import first_free, indexed
from twinmill.store.transfer import absent

from .config import LeaseConfig
from .errors import Collected, Refused
from .manifest import WeightsLog

_WHO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Needs: TypeAlias = Callable[[Iterable[int]], set[Ref]]
"""version numbers -> every object that it takes to rebuild each of them. What a reader's names, its collector's must name too."""


class Paths:
    """The Needs of a log: each version's parents, back to the full version, and the shortcuts between them.

    A skip or an anchor may be missing without harm, so a reader need not count on it (`chains`); what a collector spares
    is everything: a reader may be on any of these ways.
    """

    def __init__(self, log: WeightsLog) -> None:
        self._log = log
        self._known: dict[int, tuple[int | None, frozenset[Ref]]] = {}

    def __call__(self, numbers: Iterable[int]) -> set[Ref]:
        """All of `chains`, and the parts of every skip and anchor that lead from a version of them to another."""
        seen, refs = self._walk(numbers)
        self._log.look_for_shortcuts()
        for number in seen:
            for shortcut in self._log.shortcuts_to(number):
                if shortcut.parent is None or shortcut.parent in seen:
                    refs.update(part.object for part in shortcut.parts)
        return refs

    def chains(self, numbers: Iterable[int]) -> set[Ref]:
        """Every part, the tensor table, config and tokenizer of each version and its parents."""
        return self._walk(numbers)[1]

    def is_full(self, number: int) -> bool:
        return self._own(number)[0] is None

    def _walk(self, numbers: Iterable[int]) -> tuple[set[int], set[Ref]]:
        refs: set[Ref] = set()
        seen: set[int] = set()
        for number in numbers:
            at: int | None = number
            while at is not None and at not in seen:
                seen.add(at)
                at, own = self._own(at)
                refs |= own
        return seen, refs

    def _own(self, number: int) -> tuple[int | None, frozenset[Ref]]:
        """Parent and objects of one version. A manifest never changes, so it is read once."""
        if number not in self._known:
            version = self._log.get(number)
            single = (version.table, version.config, version.tokenizer)
            refs = [part.object for part in version.parts] + [ref for ref in single if ref is not None]
            self._known[number] = version.parent, frozenset(refs)
        return self._known[number]


class Removals:
    """The ledger of what the collector condemned and removed."""

    def __init__(self, blobs: Blobs, prefix: str = "weights") -> None:
        self._blobs = blobs
        self._prefix = f"{prefix}/collected"
        self._next = 0

    def latest(self) -> Collection | None:
        """The newest entry; None = nothing was ever collected."""
        self._next = first_free(lambda n: self._blobs.exists(indexed(self._prefix, n)), self._next)
        return self.get(self._next - 1) if self._next else None

    def get(self, number: int) -> Collection:
        key = indexed(self._prefix, number)
        return unseal_record(key, self._blobs.get(key), Collection)

    def append(self, entry: Collection) -> None:
        """Refused when another collector has written an entry of that number."""
        key = indexed(self._prefix, entry.number)
        with named_write("weights.collect"):
            mine = self._blobs.claim(key, seal_record(key, entry))
        if not mine:
            raise Refused(
                f"entry {entry.number} of the removals was written by another process: a second collector is at work "
                "on this log; nothing was removed here: stop one of them"
            )


class Leases:
    """All leases of a log, by who holds them."""

    def __init__(self, blobs: Blobs, prefix: str = "weights") -> None:
        self._blobs = blobs
        self._prefix = f"{prefix}/leases"

    def all(self) -> dict[str, WeightsLease]:
        """Expired ones, too. Corrupt when one cannot be read: then nobody knows what it holds."""
        found = {}
        for key in self._blobs.list(self._prefix):
            try:
                lease = unseal_record(key, self._blobs.get(key), WeightsLease)
            except NotFound:
                continue  # dropped a moment ago
            found[lease.who] = lease
        return found

    def put(self, lease: WeightsLease) -> None:
        key = f"{self._prefix}/{lease.who}"
        with named_write("weights.lease"):
            self._blobs.put(key, seal_record(key, lease))

    def drop(self, who: str) -> None:
        self._blobs.delete(f"{self._prefix}/{who}")


class Lease:
    """One reader's. Take versions before reading them, beat while they are needed. Not thread-safe: one owner."""

    def __init__(
        self,
        log: WeightsLog,
        who: str,
        *,
        needs: Needs | None = None,
        config: LeaseConfig | None = None,
        transfer: TransferConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """who: unlike every other reader of this log, and the same after a restart."""
        if not _WHO.fullmatch(who):
            raise Refused(f"{who!r} cannot name a lease; want up to 100 letters, digits, dots, dashes, underlines")
        self._config = config or LeaseConfig()
        if self._config.ttl_s <= 0:
            raise Refused(f"lease.ttl_s is {self._config.ttl_s}; want seconds > 0")
        self._log = log
        self._who = who
        self._needs = needs or Paths(log).chains
        self._transfer = transfer
        self._clock = clock
        self._leases = Leases(log.blobs)
        self._removals = Removals(log.blobs)
        self._refs: set[Ref] = set()
        self._written_at = 0.0
        self.held: frozenset[int] = frozenset()
        """the versions that are kept for this reader, as long as `valid`"""

    @property
    def valid(self) -> bool:
        """Do the versions held count? Not once the last beat is too long ago: then `beat` looks what is left of them."""
        return bool(self.held) and self._clock() < self._written_at + self._config.ttl_s

    def keys(self) -> set[str]:
        """Objects that the versions held need: what a mirror must not let go."""
        return {ref.key for ref in self._refs}

    def take(self, numbers: Iterable[int]) -> None:
        """Hold these versions from now on, and no others. Collected when one of them is not to be had any more; then
        what was held before still is."""
        wanted = frozenset(numbers)
        before, had = (self.held, self._refs) if self.valid else (frozenset[int](), set[Ref]())
        refs = self._needs(wanted)
        self._write(wanted | before)
        try:
            self._check(refs - had)
        except Collected:
            self._settle(before, had)
            raise
        self.held, self._refs = wanted, refs

    def beat(self) -> None:
        """Call often: says that the versions held are still needed, when it is time to. Collected (and nothing is held any
        more) when the last beat was so long ago that some of them are gone."""
        if not self.held or self._clock() < self._written_at + self._config.ttl_s / 3:
            return
        unbroken = self.valid
        self._write(self.held)
        if not unbroken:
            try:
                self._check(self._refs)
            except Collected:
                self._settle(frozenset(), set())
                raise

    def drop(self) -> None:
        """Nothing is needed any more."""
        self._settle(frozenset(), set())

    def _settle(self, held: frozenset[int], refs: set[Ref]) -> None:
        self.held, self._refs = held, refs
        if held:
            self._write(held)
        else:
            self._leases.drop(self._who)

    def _write(self, versions: frozenset[int]) -> None:
        now = self._clock()  # before the write, which may take long: it counts from here
        self._leases.put(
            WeightsLease(who=self._who, versions=tuple(sorted(versions)), at=now, expires_at=now + self._config.ttl_s)
        )
        self._written_at = now

    def _check(self, refs: set[Ref]) -> None:
        """Collected unless all of `refs` are there to stay."""
        last = self._removals.latest()
        condemned = {one.key for one in last.condemned} if last else set[str]()
        lost = [ref.key for ref in refs if ref.key in condemned]
        if not lost:
            lost = [ref.key for ref in absent(self._log.blobs, refs, self._transfer)]
        if lost:
            raise Collected(
                f"{len(lost)} of {len(refs)} objects are removed or about to be, among them {min(lost)!r}; "
                "take a newer version"
            )
