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
