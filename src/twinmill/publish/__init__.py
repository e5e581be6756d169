"""Weights as an ordered log of immutable objects. numpy only; no torch.

tensors.py      stored bits, their dtype names, their digests
tiles.py        how a model is cut: what is coded, verified, fetched and repaired together
wdx/            one tile's change -> bytes and back, exactly
container.py    one object: the payloads of a run of tiles, and their digests
manifest.py     WeightsLog: which versions exist, and which ways lead to each
route.py        the cheapest way, in bytes
draft.py        hops -> patches, verified tile by tile; touches nothing
chain.py        rebuild a version: another way round damage, single tiles built anew
apply.py        what was prepared becomes what is held, and can be taken back
encode.py       two states -> objects
publisher.py    the trainer's end: objects first, manifest last, then the snapshot
shortcuts.py    skips and anchors, beside the training
subscriber.py   a cluster's end: prepare beside what is served, commit after the flip, scrub
signing.py      who wrote it, if anybody asks
serve.py        a mirror for other hosts of the cluster
inspect.py      what changed, by tensor
mirror.py       a cluster's read-through copy of the store: many objects at once, read by range, up to a cap
link.py         a link of bounded speed inside one process
leases.py       what readers still need; what a version needs; the ledger of removals
collect.py      removes the objects that nobody needs any more
materialize.py  any version as a Hugging Face folder; a report on the whole log
quantise/       what an engine holds in 8 or 4 bits, made on the trainer, as a stream of its own
interchange/    the formats of others, both ways
predict.py      how much of a model a step changes, and the fewest bits that can say so
exponents.py    the binades of a real model, which is all that the prediction needs
plan.py         what a version will cost from trainer to engines, and what binds
"""

from .config import CollectConfig, LeaseConfig, LinkConfig, MirrorConfig, PublishConfig

__all__ = ["CollectConfig", "LeaseConfig", "LinkConfig", "MirrorConfig", "PublishConfig"]
