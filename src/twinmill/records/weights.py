"""WeightVersion: one entry of the weights log. Made by publish, read by subscribers. Bytes on disk: docs/FORMATS.md."""

from enum import Enum

from .base import Record, Ref


class VersionKind(Enum):
    FULL = "full"
    DELTA = "delta"
    SKIP = "skip"
    """a delta over several versions"""


class TensorPatch(Record):
    """One tensor of a version. Names are the Hugging Face on-disk names."""

    name: str
    dtype: str
    """safetensors spelling: BF16, F32, ..."""
    shape: tuple[int, ...]
    codec: str
    """raw (full), a delta codec's name, or same (no byte changed, no payload)"""
    offset: int
    bytes: int
    """payload = object[offset : offset + bytes]"""
    before: str
    """digest of the tensor before; "" for a full"""
    after: str
    changed: int = 0


class WeightVersion(Record):
    """A version exists exactly when this manifest is in the log. It is the commit point of a step."""

    number: int
    kind: VersionKind
    run_id: str
    parent: int | None
    """None = full"""
    lineage: str
    """digest chained over run, parent's lineage and model digest"""
    step: int
    slots: tuple[int, ...]
    """the slots this version was trained on, dropped ones included; with Admit and Close the whole ledger"""
    tensors: tuple[TensorPatch, ...]
    object: Ref
    model_digest: str
    """digest over every tensor's digest after"""
    config: Ref | None = None
    tokenizer: Ref | None = None
    checkpoint: str | None = None
    """key of the trainer checkpoint that this version resumes from; None = redo from an older one"""
    quantisation: str | None = None
    created_at: float = 0.0
    full_bytes: int = 0
    """size of the whole model, for comparison"""


class WeightsLease(Record):
    """Versions that a reader still needs. Written over at each beat. Producer: publish.leases; consumer: publish.collect.

    Example: WeightsLease(who="east", versions=(41, 42), at=1719849600.0, expires_at=1719850500.0)
    """

    who: str
    versions: tuple[int, ...]
    at: float
    """seconds since the epoch, by the reader's clock"""
    expires_at: float
    """without another beat, nothing is kept for this reader from then on"""


class Condemned(Record):
    """An object that no kept version needs."""

    key: str
    bytes: int
    since: float
    """when that was first seen: seconds since the epoch, by the collector's clock"""


class Collection(Record):
    """One entry of the ledger of removals. Producer: publish.collect; consumers: it, publish.leases, store.audit.

    A round of the collector writes one before it removes anything, and one behind it that says what was removed.
    """

    number: int
    at: float
    condemned: tuple[Condemned, ...]
    """everything that may be removed from now on: no reader may count on it"""
    spared: tuple[str, ...] = ()
    """keys that were condemned before, and are needed after all"""
    removed: tuple[Condemned, ...] = ()
    leases: tuple[WeightsLease, ...] = ()
    """that were in force"""
