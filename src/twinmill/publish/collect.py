"""Remove objects that no version needs any more: of the newest chains, the newest versions, those kept by hand or leased.

A round (`Collector.collect`) does, in this order:

    1  read the newest entry of the ledger: what was condemned before now
    2  list the objects, then the leases
    3  write an entry: newly found needless objects are condemned, condemned ones that are needed after all are spared
    4  remove what was condemned a grace period ago, in an earlier entry, and is still needless; write what was removed

Killed anywhere, the next round does the rest. Readers: see leases.py for why they are safe.

The publisher and the collector are one process, and a round lies between two publications, never inside one: an upload
that finds an object there does not send it again, so it must not be removed before the manifest is there. Objects of a
publication in flight elsewhere are condemned like the rest of a killed one, and spared when its manifest is there.

A manifest or lease that cannot be read stops the round before anything is removed: nobody knows what it stands for.
"""

import time
from collections.abc import Callable, Mapping

from twinmill.records.weights import Collection, Condemned, WeightsLease
from twinmill.store.flight import TransferConfig
from twinmill.store.transfer import remove

from .config import CollectConfig
from .errors import Refused
from .leases import Leases, Needs, Paths, Removals
from .manifest import WeightsLog


class Collector:
    """The one collector of a log."""

    def __init__(
        self,
        log: WeightsLog,
        config: CollectConfig | None = None,
        *,
        needs: Needs | None = None,
        transfer: TransferConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config or CollectConfig()
        if self._config.keep_chains < 1 or self._config.keep_versions < 1:
            raise Refused("collect.keep_chains and collect.keep_versions must be at least 1: readers need the newest")
        if self._config.grace_s < 0 or self._config.skew_s < 0:
            raise Refused("collect.grace_s and collect.skew_s are seconds >= 0")
        self._log = log
        self._paths = Paths(log)
        self._needs = needs or self._paths
        self._transfer = transfer
        self._clock = clock
        self._leases = Leases(log.blobs)
        self._removals = Removals(log.blobs)

    def collect(self) -> Collection | None:
        """One round. Its last entry of the ledger; None = there was nothing to do."""
        last = self._removals.latest()
        condemned = {one.key: one for one in last.condemned} if last else {}
        there = self._log.blobs.sizes(self._log.objects)
        now = self._clock()
        leases = self._leases.all()
        in_force = {who: one for who, one in leases.items() if now < one.expires_at + self._config.skew_s}
        needed = {ref.key for ref in self._needs(self._kept(in_force))}
        spared = sorted(condemned.keys() & needed)
        fresh = sorted(there.keys() - needed - condemned.keys())
        grace_s = self._grace_s(leases)
        due = [one for one in condemned.values() if one.key not in needed and now - one.since >= grace_s]
        if not (spared or fresh or due):
            return None
        for key in spared:
            del condemned[key]
        condemned |= {key: Condemned(key=key, bytes=there[key], since=now) for key in fresh}
        entry = Collection(
            number=last.number + 1 if last else 0,
            at=now,
            condemned=tuple(condemned.values()),
            spared=tuple(spared),
            leases=tuple(in_force.values()),
        )
        self._removals.append(entry)
        return self._remove(entry, due) if due else entry

    def _remove(self, entry: Collection, due: list[Condemned]) -> Collection:
        """`due` are in an entry that was durable before the leases were listed, and still are in `entry`."""
        remove(self._log.blobs, [one.key for one in due], self._transfer)
        gone = {one.key for one in due}
        done = Collection(
            number=entry.number + 1,
            at=self._clock(),
            condemned=tuple(one for one in entry.condemned if one.key not in gone),
            removed=tuple(due),
        )
        self._removals.append(done)
        return done

    def _kept(self, leases: Mapping[str, WeightsLease]) -> set[int]:
        """Versions that must stay possible to rebuild."""
        newest = self._log.newest()
        kept = {*range(self._oldest_chain(newest), newest + 1)}
        kept |= {*range(max(0, newest + 1 - self._config.keep_versions), newest + 1)}
        kept |= {*self._config.keep, *(number for one in leases.values() for number in one.versions)}
        return {number for number in kept if 0 <= number <= newest}

    def _oldest_chain(self, newest: int) -> int:
        """The full version at which the oldest chain to keep begins."""
        chains = 0
        for number in range(newest, -1, -1):
            chains += self._paths.is_full(number)
            if chains == self._config.keep_chains:
                return number
        return 0

    def _grace_s(self, leases: Mapping[str, WeightsLease]) -> float:
        """Longer than any lease: a reader that fell silent and comes back before it ran out finds everything."""
        longest = max((one.expires_at - one.at for one in leases.values()), default=0.0)
        return max(self._config.grace_s, longest + self._config.skew_s)
