"""WeightsLog: the ordered log of versions.

    weights/manifests/<number>   WeightVersion, sealed; put-if-absent: the commit point of a step
    weights/objects/<digest>     payloads of one version, by content
    weights/wanted/<number>      a subscriber could not rebuild <number> and asks for a full version

A version exists exactly when its manifest is there. Each manifest's `lineage` chains over the run, its own
number, the lineage of the manifest before it and its model digest, so a manifest of another run or another
history cannot slip in.
"""

from blake3 import blake3

from twinmill.records.weights import VersionKind, WeightVersion
from twinmill.store.blobs import Blobs, named_write
from twinmill.store.frame import seal_record, unseal_record
from twinmill.store.log import first_free, index_of, indexed

from .errors import Broken, Refused
from .tensors import model_digest


def lineage_of(run_id: str, number: int, before: str, model: str) -> str:
    """Chained digest of version `number`; `before` is the lineage of number - 1, "" for the first version."""
    return blake3(f"{run_id}\0{number}\0{before}\0{model}".encode()).hexdigest()


class WeightsLog:
    """Which versions exist. Reads are cached: a manifest never changes."""

    CACHED = 256

    def __init__(self, blobs: Blobs, prefix: str = "weights") -> None:
        self.blobs = blobs
        self.objects = f"{prefix}/objects"
        self._manifests = f"{prefix}/manifests"
        self._wanted = f"{prefix}/wanted"
        self._next = 0
        self._cache: dict[int, WeightVersion] = {}

    def newest(self) -> int:
        """Number of the newest version; -1 = none yet. Probes forward from the last one seen."""
        self._next = first_free(lambda n: self.blobs.exists(indexed(self._manifests, n)), self._next)
        return self._next - 1

    def latest(self) -> WeightVersion | None:
        """The newest version; None = none yet."""
        number = self.newest()
        return None if number < 0 else self.get(number)

    def get(self, number: int) -> WeightVersion:
        """Version `number`; NotFound, Corrupt, or Broken when the manifest contradicts itself."""
        if number not in self._cache:
            key = indexed(self._manifests, number)
            version = unseal_record(key, self.blobs.get(key), WeightVersion)
            _check(version, number)
            if len(self._cache) >= self.CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[number] = version
        return self._cache[number]

    def commit(self, version: WeightVersion) -> None:
        """Make `version` exist. Refused when another publisher has made a different version of that number."""
        _check(version, version.number)
        key = indexed(self._manifests, version.number)
        with named_write("weights.manifest"):
            mine = self.blobs.claim(key, seal_record(key, version))
        if not mine:
            raise Refused(
                f"version {version.number} was published by another process: a second trainer writes this "
                "log; stop one of them, then resume the other"
            )

    def verify_link(self, version: WeightVersion) -> None:
        """Broken unless `version` follows from the one before it; Refused when that is another run's."""
        before = self.get(version.number - 1) if version.number else None
        if before is not None and before.run_id != version.run_id:
            raise Refused(
                f"version {version.number} is of run {version.run_id!r}, the one before of {before.run_id!r}: "
                "two runs share one weights log; give each its own store"
            )
        chained = lineage_of(version.run_id, version.number, before.lineage if before else "", version.model_digest)
        if version.lineage != chained:
            raise Broken(version.number, "its lineage does not continue the version before it")

    def want_full(self, number: int, who: str) -> None:
        """Ask the publisher to make its next version a full one, because `number` cannot be rebuilt."""
        self.blobs.put_new(indexed(self._wanted, number), who.encode())

    def wanted_full(self, since: int) -> bool:
        """Could anybody not rebuild version `since` or a later one?"""
        return any(index_of(key) >= since for key in self.blobs.list(self._wanted))


def _check(version: WeightVersion, number: int) -> None:
    """What a manifest must be by itself."""
    if version.number != number:
        raise Broken(number, f"the manifest in its place is of version {version.number}")
    full = version.kind is VersionKind.FULL
    if full != (version.parent is None) or (version.parent is not None and not 0 <= version.parent < number):
        raise Broken(number, f"kind {version.kind.value} with parent {version.parent}")
    if version.model_digest != model_digest((t.name, t.dtype, t.shape, t.after) for t in version.tensors):
        raise Broken(number, "its model digest is not that of its tensors")
