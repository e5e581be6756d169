"""WeightsLog: the ordered log of versions, and the shortcuts between them.

    weights/manifests/<number>       WeightVersion, sealed; put-if-absent: the commit point of a step
    weights/skips/<number>-<parent>  Shortcut, sealed; a delta over several versions
    weights/anchors/<number>         Shortcut, sealed; all of a version
    weights/objects/<digest>         parts, tensor tables, config.json, tokenizer.json, by content
    weights/wanted/<number>          a subscriber could not rebuild <number> and asks for a full version

A version exists exactly when its manifest is there. Each manifest's `lineage` chains over the run, its own number, the
lineage of the manifest before it and its model digest, so a manifest of another run or another history cannot slip in. A
shortcut names the lineage of the version it leads to.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
from blake3 import blake3

from twinmill.records import wire
from twinmill.records.weights import Part, Shortcut, TensorTable, VersionKind, WeightVersion
from twinmill.store.blobs import Blobs, named_write
from twinmill.store.errors import Corrupt, NotFound
from twinmill.store.frame import seal_record, unseal, unseal_record
from twinmill.store.log import first_free, index_of, indexed

from .errors import Broken, Refused
from .route import Hop
from .signing import Signed, Signer, Verifier
from .tiles import Grid

FORMAT = 1
"""of manifests and objects; a manifest's min_reader may ask for a later one"""
DAMAGE = (Broken, Corrupt, NotFound)
"""why a version cannot be rebuilt; a store that does not answer is another matter"""


def lineage_of(run_id: str, number: int, before: str, model: str) -> str:
    """Chained digest of version `number`; `before` is the lineage of number - 1, "" for the first version."""
    return blake3(f"{run_id}\0{number}\0{before}\0{model}".encode()).hexdigest()


class WeightsLog:
    """Which versions exist, and which ways lead to each. Reads are cached: a manifest never changes."""

    CACHED = 4096

    def __init__(
        self, blobs: Blobs, prefix: str = "weights", *, signer: Signer | None = None, verifier: Verifier | None = None
    ) -> None:
        """signer: signs what is committed. verifier: what it has not signed does not exist; None = signatures are ignored."""
        self.blobs = blobs
        self.objects = f"{prefix}/objects"
        self._manifests = f"{prefix}/manifests"
        self._skips = f"{prefix}/skips"
        self._anchors = f"{prefix}/anchors"
        self._wanted = f"{prefix}/wanted"
        self._signer = signer
        self._verifier = verifier
        self._next = 0
        self._cache: dict[int, WeightVersion] = {}
        self._grids: dict[bytes, Grid] = {}
        self._shortcuts: dict[int, list[str]] = {}
        self._read: dict[str, Shortcut] = {}

    def newest(self) -> int:
        """Number of the newest version; -1 = none yet. Probes forward from the last one seen."""
        self._next = first_free(lambda n: self.blobs.exists(indexed(self._manifests, n)), self._next)
        return self._next - 1

    def latest(self) -> WeightVersion | None:
        """The newest version; None = none yet."""
        number = self.newest()
        return None if number < 0 else self.get(number)

    def get(self, number: int) -> WeightVersion:
        """Version `number`; NotFound, Corrupt, or Broken when the manifest contradicts itself. Refused: for later readers."""
        if number not in self._cache:
            key = indexed(self._manifests, number)
            payload = unseal(key, self.blobs.get(key))
            _check_reader(number, payload)
            try:
                version = wire.unpack(payload, WeightVersion)
            except wire.WireError as error:
                raise Corrupt(key, str(error)) from error
            _check(version, number)
            if self._verifier is not None:
                self._verifier.check(version, f"version {number}")
            if len(self._cache) >= self.CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[number] = version
        return self._cache[number]

    def grid(self, version: WeightVersion) -> Grid:
        """The tiles of a version; the same object for all versions that are cut alike."""
        identity = version.table.digest.encode() + wire.pack(version.grid)
        if identity not in self._grids:
            try:
                table = wire.unpack(self.blobs.get_ref(version.table), TensorTable)
                tiles = sum(part.tiles for part in version.parts)
                elements = sum(_size(tensor.shape) for tensor in table.tensors)
                if not elements <= tiles * version.grid.largest:
                    raise Broken(version.number, f"{elements} elements do not fit its {tiles} tiles")
                self._grids[identity] = Grid(table, version.grid)
            except (wire.WireError, Refused) as error:
                raise Broken(version.number, f"its tensor table cannot be: {error}") from error
        return self._grids[identity]

    def commit(self, version: WeightVersion) -> WeightVersion:
        """Make `version` exist, and sign it. Refused when another publisher has made a different version of that number."""
        version = self._signed(version)
        _check(version, version.number)
        key = indexed(self._manifests, version.number)
        with named_write("weights.manifest"):
            mine = self.blobs.claim(key, seal_record(key, version))
        if not mine:
            raise Refused(
                f"version {version.number} was published by another process: a second trainer writes this "
                "log; stop one of them, then resume the other"
            )
        return version

    def add_shortcut(self, shortcut: Shortcut) -> bool:
        """Offer another way to a version; False when there is one between the same versions already."""
        key = self._shortcut_key(shortcut.number, shortcut.parent)
        return self.blobs.put_new(key, seal_record(key, self._signed(shortcut)))

    def look_for_shortcuts(self) -> None:
        """Learn which shortcuts there are by now. Without this, `hops_to` knows those of the last look."""
        found: dict[int, list[str]] = {}
        for key in [*self.blobs.list(self._anchors), *self.blobs.list(self._skips)]:
            with suppress(ValueError, IndexError):  # else a foreign object, which leads nowhere
                found.setdefault(int(key.rsplit("/", 1)[1].split("-")[0]), []).append(key)
        self._shortcuts = found

    def shortcuts_to(self, number: int) -> Iterator[Shortcut]:
        """The shortcuts that lead to a version and are sound. A damaged one is left out: it is only another way."""
        for key in self._shortcuts.get(number, ()):
            try:
                if key not in self._read:
                    self._read[key] = unseal_record(key, self.blobs.get(key), Shortcut)
                shortcut = self._read[key]
                _check_parts(number, shortcut.parts, shortcut.payload_bytes)
                right = key == self._shortcut_key(number, shortcut.parent) and shortcut.number == number
                if right and shortcut.lineage == self.get(number).lineage:
                    if self._verifier is not None:
                        self._verifier.check(shortcut, key)
                    yield shortcut
            except (*DAMAGE, Refused):
                continue

    def hops_to(self, number: int) -> list[Hop]:
        """Every way that leads to version `number` in one hop. Raises what `get` and `verify_link` do."""
        version = self.get(number)
        self.verify_link(version)
        hops = [Hop(version.parent, number, version.parts, f"version {number}")]
        for shortcut in self.shortcuts_to(number):
            start = shortcut.parent
            name = f"anchor {number}" if start is None else f"skip {start} to {number}"
            hops.append(Hop(start, number, shortcut.parts, name))
        return hops

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

    def _signed(self, record: Signed) -> Signed:
        return record if self._signer is None else self._signer.sign(record)

    def _shortcut_key(self, number: int, parent: int | None) -> str:
        key = indexed(self._anchors if parent is None else self._skips, number)
        return key if parent is None else f"{key}-{parent:010d}"


class _Probe(msgspec.Struct):
    """What every reader understands of every manifest."""

    min_reader: int = 1


def _check_reader(number: int, payload: bytes) -> None:
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        if (wanted := msgspec.msgpack.decode(payload, type=_Probe).min_reader) > FORMAT:
            raise Refused(
                f"version {number} wants a reader of format {wanted}; this one reads {FORMAT}: upgrade twinmill"
            )


def _check(version: WeightVersion, number: int) -> None:
    """What a manifest must be by itself."""
    if version.number != number:
        raise Broken(number, f"the manifest in its place is of version {version.number}")
    full = version.kind is VersionKind.FULL
    if full != (version.parent is None) or (version.parent is not None and not 0 <= version.parent < number):
        raise Broken(number, f"kind {version.kind.value} with parent {version.parent}")
    _check_parts(number, version.parts, version.payload_bytes)


def _check_parts(number: int, parts: Iterable[Part], payload_bytes: int) -> None:
    """Parts lie one behind the other, and cost what is said."""
    end = size = 0
    for part in parts:
        if part.first_tile != end or part.tiles < 1 or part.object.bytes < part.head_bytes:
            raise Broken(number, f"a part of {part.tiles} tiles from tile {part.first_tile}, where tile {end} is next")
        end += part.tiles
        size += part.object.bytes
    if not end or size != payload_bytes:
        raise Broken(number, f"parts of {size} bytes for {end} tiles; {payload_bytes} bytes are claimed")


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= max(0, length)
    return size
