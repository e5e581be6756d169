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
