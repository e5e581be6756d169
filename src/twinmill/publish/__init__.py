"""Weights as an ordered log of immutable objects. numpy only; no torch.

tensors.py      stored bits, their dtype names, their digests
codec.py        one tensor's change -> bytes and back, exactly
manifest.py     WeightsLog: which versions exist, and how each follows from the one before
chain.py        rebuild a version: a full one and the deltas behind it, verified hop by hop
publisher.py    the trainer's end: objects first, manifest last
subscriber.py   a cluster's end: prepare beside what is served, commit after the flip, repair
mirror.py       a cluster's read-through copy of the store: many objects at once, read by range, up to a cap
link.py         a link of bounded speed inside one process
leases.py       what readers still need; what a version needs; the ledger of removals
collect.py      removes the objects that nobody needs any more
materialize.py  any version as a Hugging Face folder; a report on the whole log
"""

from .config import CollectConfig, LeaseConfig, LinkConfig, MirrorConfig, PublishConfig

__all__ = ["CollectConfig", "LeaseConfig", "LinkConfig", "MirrorConfig", "PublishConfig"]
