"""Weights as an ordered log of immutable objects. numpy only; no torch.

tensors.py      stored bits, their dtype names, their digests
codec.py        one tensor's change -> bytes and back, exactly
manifest.py     WeightsLog: which versions exist, and how each follows from the one before
chain.py        rebuild a version: a full one and the deltas behind it, verified hop by hop
publisher.py    the trainer's end: objects first, manifest last
subscriber.py   a cluster's end: prepare beside what is served, commit after the flip, repair
mirror.py       a cluster's read-through copy of the store, over a link of bounded speed
materialize.py  any version as a Hugging Face folder; a report on the whole log
quantise/       what an engine holds in 8 or 4 bits, made on the trainer, as a stream of its own
interchange/    the formats of others, both ways
predict.py      how much of a model a step changes, and the fewest bits that can say so
exponents.py    the binades of a real model, which is all that the prediction needs
plan.py         what a version will cost from trainer to engines, and what binds
"""

from .config import LinkConfig, PublishConfig

__all__ = ["LinkConfig", "PublishConfig"]
