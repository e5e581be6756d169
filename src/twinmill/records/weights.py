"""WeightVersion: one entry of the weights log. Made by publish, read by subscribers. Bytes on disk: docs/FORMATS.md."""

from enum import Enum

from .base import Record, Ref


class TensorSpec(Record):
    """One tensor of a model, under its Hugging Face on-disk name."""

    name: str
    dtype: str
    """safetensors spelling: BF16, F32, ..."""
    shape: tuple[int, ...]


class TensorTable(Record):
    """What a log's versions consist of, in the order in which tiles are cut. Stored once, by content.

    Example: TensorTable(tensors=(TensorSpec(name="lm_head.weight", dtype="BF16", shape=(32000, 576)),))
    """

    tensors: tuple[TensorSpec, ...]


class Layout(Enum):
    """How tensor- and expert-parallel engines share a tensor among their ranks."""

    COLUMN = "column"
    """blocks of rows: q, gate, up, embedding, lm_head"""
    KV = "kv"
    """blocks of rows, which several ranks share when there are fewer key/value heads than ranks"""
    ROW = "row"
    """blocks of columns: o, down"""
    EXPERT = "expert"
    """whole, with the expert whose number is the pattern's first group"""
    STACKED = "stacked"
    """all experts in one tensor: row i of the first axis is expert i"""
    REPLICATED = "replicated"
    """every rank has all of it"""


class GridRule(Record):
    """Tensors whose name `pattern` (a regular expression, searched) finds have this layout."""

    pattern: str
    layout: Layout


class GridSpec(Record):
    """How a model is cut into tiles; with the tensor table it determines every tile."""

    tp: int = 8
    """every tensor-parallel degree that divides this owns whole tiles"""
    smallest: int = 1 << 18
    """elements; smaller pieces share a tile"""
    largest: int = 1 << 20
    """elements; larger pieces are cut"""
    rules: tuple[GridRule, ...] = ()
    """looked at before the built-in ones (publish/tiles.py), first match wins"""


class Part(Record):
    """One object of a version: the payloads of tiles first_tile ... first_tile + tiles - 1 (publish/container.py)."""

    object: Ref
    first_tile: int
    tiles: int
    changed: int
    """elements whose bits changed"""
    head_bytes: int
    """all in front of the payloads: for readers of a few tiles"""
    head_digest: str
    """BLAKE3 of those bytes"""


class Signature(Record):
    """Ed25519 over a packed record."""

    key_id: str
    """first 16 hex digits of the BLAKE3 of the public key"""
    hex: str


class VersionKind(Enum):
    FULL = "full"
    DELTA = "delta"


class WeightVersion(Record):
    """A version exists exactly when this manifest is in the log. It is the commit point of a step."""

    number: int
    kind: VersionKind
    run_id: str
    parent: int | None
    """the version that the delta stands on; None = full"""
    lineage: str
    """digest chained over run, the lineage of the version before, and model digest"""
    step: int
    slots: tuple[int, ...]
    """the slots this version was trained on, dropped ones included; with Admit and Close the whole ledger"""
    table: Ref
    """a TensorTable: the same object for all versions of a log"""
    grid: GridSpec
    parts: tuple[Part, ...]
    """all tiles, in order"""
    last_full: int
    """the newest full version, this one included"""
    model_digest: str
    """digest over table, grid and the digest of every tile after this version"""
    changed: int = 0
    """elements whose bits changed (all, in a full version)"""
    payload_bytes: int = 0
    """size of all parts"""
    config: Ref | None = None
    tokenizer: Ref | None = None
    checkpoint: str | None = None
    """key of the trainer checkpoint that this version resumes from; None = redo from an older one"""
    quantisation: str | None = None
    created_at: float = 0.0
    full_bytes: int = 0
    """size of the whole model, for comparison"""
    writer: str = ""
    """name and release of the program that wrote it"""
    min_reader: int = 1
    """readers of a lower format number refuse this version"""
    signature: Signature | None = None
    """over the record without this field; None = unsigned"""


class Shortcut(Record):
    """Another way to a version that exists: a delta over several versions, or all of it. It leads to the very tile digests
    of that version's manifest, so it cannot say anything else."""

    number: int
    """the version it leads to"""
    parent: int | None
    """the version it starts from (a skip); None = from nothing (an anchor)"""
    run_id: str
    lineage: str
    """of version `number`"""
    parts: tuple[Part, ...]
    changed: int = 0
    payload_bytes: int = 0
    signature: Signature | None = None


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
