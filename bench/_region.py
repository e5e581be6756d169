"""A region of regions.py: a process that follows the weights log through its own mirror, and writes down what it serves.

Killed at any moment and started again, it goes on with what its mirror has. A line of `served` per version, of JSON: wall-clock
time, number, digest of the tiles as they lie in memory then.
"""

import sys
import time
from pathlib import Path

import msgspec

from twinmill.launch.death import watch_parent
from twinmill.publish.mirror import Mirror
from twinmill.publish.subscriber import Subscriber
from twinmill.publish.tiles import digests
from twinmill.records.base import Record
from twinmill.store.backends import StoreConfig
from twinmill.store.blobs import open_blobs
from twinmill.store.errors import StoreUnavailable


class Order(Record):
    """What a region is told, as JSON on its command line."""

    name: str
    store: StoreConfig
    run_id: str
    folder: str
    served: str
    poll_s: float


class Served(Record):
    """That a region serves a version from now on."""

    t: float
    version: int
    digest: str


def follow(order: Order) -> None:
    blobs = open_blobs(order.store.url, config=order.store)
    subscriber = Subscriber(Mirror(blobs, order.folder), order.run_id, who=order.name, retry_s=order.poll_s)
    with open(order.served, "ab", buffering=0) as out:
        while True:
            try:
                prepared = subscriber.prepare()
            except StoreUnavailable:  # an outage: what is held is served on
                prepared = None
            if prepared is None:
                time.sleep(order.poll_s)
                continue
            subscriber.commit(prepared)
            held = subscriber.held
            assert held is not None
            digest = held.grid.model_digest(digests(held.grid, held.tensors))
            line = Served(t=time.time(), version=prepared.version.number, digest=digest)
            out.write(msgspec.json.encode(line) + b"\n")


def read_served(path: Path) -> list[Served]:
    """Whole lines; the last may be half-written by a process that was killed."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Served) for line in lines]


if __name__ == "__main__":
    watch_parent(0)  # its standard input is a pipe that nobody writes to
    follow(msgspec.json.decode(sys.argv[1].encode(), type=Order))
