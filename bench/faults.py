"""Damage, lies and mix-ups by the hundred thousand, against the production reader: is anything wrong ever served?

    python bench/faults.py [--faults 100000] [--seed 0]

A log of 4 versions of a small mixture (67 tiles) is written once per codec (wdx, gaps). For each fault a subscriber that holds
version 1 is shown a store in which something is wrong on the way to version 2, and prepares; what it hands out passes the gate
that engines have (digests of all tiles from their own memory, engine/sync.py). A fault is

    noticed       refused, or reached another way with an event that says so
    undetected    other bits than those of the log were handed out, or the right ones without a word
    base_touched  what the subscriber held is not what it was, whatever else came of it

Half of the faults in bytes are at rest: the store gives other bytes than were written. The other half are sealed: whoever did
it computed all outer digests anew, so that the damage reaches the parsers and the decoder, and only the digests of tiles stand
in its way. Sealed damage of what no reader looks at (padding, metadata) is harmless: it is not counted, and another one drawn.

Readers: the native extension and, for a share --reference of them, the NumPy reference, which is slow.

peak_mb: by how much the process's memory grew while all this was read; lengths and counts that lie must not be believed.
"""

import argparse
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import zstandard
from msgspec import structs
from rich.console import Console
from rich.progress import track
from rich.table import Table

from _result import finish
from twinmill.publish import PublishConfig
from twinmill.publish.chain import rebuild
from twinmill.publish.container import Coded, Opened, Packed, make_part, pack
from twinmill.publish.draft import Weights
from twinmill.publish.errors import PublishError
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.publisher import Publisher
from twinmill.publish.subscriber import Subscriber
from twinmill.publish.tiles import digests
from twinmill.publish.wdx import Kind
from twinmill.publish.wdx.native import REFERENCE, backends, using
from twinmill.publish.wdx.rans import LOW
from twinmill.records.base import Ref
from twinmill.records.weights import Part
from twinmill.store.blobs import digest_of, open_blobs, verify_ref
from twinmill.store.errors import Corrupt, NotFound, StoreError
from twinmill.store.frame import seal_record
from twinmill.store.log import indexed

MUST = {
    "injected": ">= 100000",
    "injected_least": ">= 5000",
    "tiles": ">= 64",
    "undetected": "== 0",
    "base_touched": "== 0",
}
RUN, HELD, WANTED = "faults", 1, 2
CODECS = ("wdx", "gaps")
EXPERTS, SHAPE = 64, (8, 24)
OBJECTS, MANIFESTS = "weights/objects", "weights/manifests"


def first_state(rng: np.random.Generator) -> dict[str, np.ndarray]:
    names = [f"model.layers.0.mlp.experts.{e}.up_proj.weight" for e in range(EXPERTS)]
    state = {name: _weights(rng, SHAPE) for name in [*names, "model.embed_tokens.weight", "model.norm.weight"]}
    return state | {"scale": rng.standard_normal(32).astype(np.float32).view(np.uint32)}


def _weights(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def moved(state: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Every tensor moves somewhere."""
    after = {name: array.copy() for name, array in state.items()}
    for array in after.values():
        flat = array.reshape(-1)
        where = rng.choice(flat.size, max(3, flat.size // 20), replace=False)
        flat[where] += rng.choice(np.array([1, -1, 2, -7, 300]), where.size).astype(flat.dtype)
    return after


class Shelf:
    """A store to be read: objects in memory, some of them other than they were, or gone (None). Writes go nowhere."""

    url = "memory"

    def __init__(self, objects: Mapping[str, bytes], wrong: Mapping[str, bytes | None]) -> None:
        self._objects, self._wrong = objects, wrong

    def get(self, key: str) -> bytes:
        data = self._wrong[key] if key in self._wrong else self._objects.get(key)
        if data is None:
            raise NotFound(key, self.url)
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = self.get(key)[offset : offset + length]
        if len(data) != length:
            raise Corrupt(key, f"{len(data)} bytes at {offset}, {length} are wanted")
        return data

    def get_ref(self, ref: Ref) -> bytes:
        data = self.get(ref.key)
        verify_ref(ref, data)
        return data

    def exists(self, key: str) -> bool:
        with suppress(NotFound):
            self.get(key)
            return True
        return False

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        keys = {*self._objects, *self._wrong}
        return sorted(key for key in keys if key.startswith(f"{prefix}/") and key > after and self.exists(key))

    def put_new(self, key: str, data: bytes) -> bool:
        return True


class Fault(NamedTuple):
    wrong: dict[str, bytes | None]
    """objects that are other than they were; None = gone"""
    held: dict[str, np.ndarray] | None = None
    """what the subscriber holds instead of version 1; None = that"""
    number: int = HELD
    """the version that it holds"""
    sealed: bool = False
    """all outer digests say that this is what was written"""


class World:
    """One codec's log, all objects of it, and what each version is."""

    def __init__(self, codec: str) -> None:
        rng, blobs = np.random.default_rng(1), open_blobs("memory://")
        config = PublishConfig(codec=codec, threads=1, object_bytes=1500, skip_every=(), anchor_when=0)
        publisher = Publisher(blobs, RUN, config)
        self.states = [first_state(rng)]
        while len(self.states) < 4:
            self.states.append(moved(self.states[-1], rng))
        kinds = {name: "F32" if array.itemsize == 4 else "BF16" for name, array in self.states[0].items()}
        for number, state in enumerate(self.states):
            publisher.publish(state, kinds, step=number, created_at=0.0)
        publisher.close()
        self.objects = {key: blobs.get(key) for key in blobs.list()}
        self.held = [rebuild(WeightsLog(blobs), number) for number in range(len(self.states))]
        self.versions = [each.version for each in self.held]
        self.tiles = len(self.held[0].grid.tiles)
        self.kind = Kind.CLASSES if codec == "wdx" else Kind.FLAT

    def opened(self, number: int, part: int) -> Opened:
        found = self.versions[number].parts[part]
        return Opened(found, self.objects[found.object.key])

    def coded(self, number: int, part: int) -> list[Coded]:
        """The tiles of an object, as they were packed."""
        opened = self.opened(number, part)
        tiles = range(opened.part.first_tile, opened.part.first_tile + opened.part.tiles)
        return [Coded(*opened.digests(tile), opened.changed(tile), bytes(opened.payload(tile))) for tile in tiles]

    # Sealed damage: all outer digests are right

    def with_manifest(self, **changes: object) -> Fault:
        key = manifest_key(WANTED)
        record = seal_record(key, structs.replace(self.versions[WANTED], **changes))
        return Fault({key: record}, sealed=True)

    def with_parts(self, parts: tuple[Part, ...], objects: Mapping[str, bytes] | None = None) -> Fault:
        size = sum(part.object.bytes for part in parts)
        wrong = self.with_manifest(parts=parts, payload_bytes=size).wrong
        return Fault({**(objects or {}), **wrong}, sealed=True)

    def with_object(self, part: int, data: bytes) -> Fault:
        """Other bytes in place of an object of version 2, and a manifest that says so."""
        parts = list(self.versions[WANTED].parts)
        old, digest = parts[part], digest_of(data)
        ref = Ref(key=f"{OBJECTS}/{digest}", digest=digest, bytes=len(data))
        head = digest_of(memoryview(data)[: old.head_bytes])
        parts[part] = structs.replace(old, object=ref, head_digest=head)
        return self.with_parts(tuple(parts), {ref.key: data})

    def with_tiles(self, part: int, tiles: list[Coded]) -> Fault:
        """A sound container of damaged payloads."""
        opened = self.opened(WANTED, part)
        return self._with_packed(part, pack(opened.tables, tiles), tiles)

    def _with_packed(self, part: int, packed: Packed, tiles: list[Coded]) -> Fault:
        parts = list(self.versions[WANTED].parts)
        parts[part] = make_part(OBJECTS, packed, parts[part].first_tile, tiles)
        return self.with_parts(tuple(parts), {parts[part].object.key: packed.data})


def manifest_key(number: int) -> str:
    return indexed(MANIFESTS, number)


# ---- what is done to bytes


def flip(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def swap(data: bytes, rng: random.Random) -> bytes:
    """Two runs of equal length, which do not overlap, change places."""
    length = rng.randint(1, max(1, min(16, len(data) // 2)))
    one = rng.randrange(max(1, len(data) - 2 * length + 1))
    two = rng.randint(one + length, max(one + length, len(data) - length))
    return (
        data[:one]
        + data[two : two + length]
        + data[one + length : two]
        + data[one : one + length]
        + data[two + length :]
    )


def permute(data: bytes, rng: random.Random) -> bytes:
    """Blocks in another order."""
    size = rng.choice((1, 2, 4, 8, 64))
    blocks = [data[i : i + size] for i in range(0, len(data), size)]
    begin = rng.randrange(len(blocks))
    some = blocks[begin : begin + rng.randint(2, 12)]
    rng.shuffle(some)
    return b"".join([*blocks[:begin], *some, *blocks[begin + len(some) :]])


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def tear(data: bytes, rng: random.Random) -> bytes:
    """The first part was written; behind it lies what had been there: zeros, or another object."""
    begin = rng.randrange(len(data))
    return data[:begin] + (bytes(len(data) - begin) if rng.random() < 0.5 else rng.randbytes(len(data) - begin))


def damaged(do: Callable[[bytes, random.Random], bytes]) -> "Injector":
    """Bytes of the manifest or an object of version 2: at rest, or sealed anew, anywhere or inside of one payload."""

    def inject(world: World, rng: random.Random) -> Fault:
        parts = world.versions[WANTED].parts
        number = rng.randrange(len(parts))
        key = parts[number].object.key
        depth = rng.randrange(4)
        if depth < 2:
            key = manifest_key(WANTED) if rng.random() < 0.2 else key
            return Fault({key: do(world.objects[key], rng)})
        if depth == 2:
            return world.with_object(number, do(world.objects[key], rng))
        tiles = world.coded(WANTED, number)
        place = rng.randrange(len(tiles))
        tiles[place] = tiles[place]._replace(payload=do(tiles[place].payload, rng))
        return world.with_tiles(number, tiles)

    return inject


# ---- what is done to the log


def duplicate(world: World, rng: random.Random) -> Fault:
    """The version that is held comes again: its manifest, one of its objects, or one tile of them."""
    parts = list(world.versions[WANTED].parts)
    number = rng.randrange(min(len(parts), len(world.versions[HELD].parts)))
    again = world.versions[HELD].parts[number]
    kind = rng.randrange(4)
    if kind == 0:
        return Fault({manifest_key(WANTED): world.objects[manifest_key(HELD)]})
    if kind == 1:
        return Fault({parts[number].object.key: world.objects[again.object.key]})
    if kind == 2:
        return world.with_parts(world.versions[HELD].parts)
    tiles, olds = world.coded(WANTED, number), world.coded(HELD, number)
    place = rng.randrange(min(len(tiles), len(olds)))
    if rng.random() < 0.5:
        olds[place] = tiles[place]._replace(payload=olds[place].payload)
    tiles[place] = olds[place]
    return world.with_tiles(number, tiles)


def reorder(world: World, rng: random.Random) -> Fault:
    """Version 3 comes before version 2, or parts and tiles of 2 come in another order."""
    parts, later = list(world.versions[WANTED].parts), world.versions[WANTED + 1].parts
    several = len(parts) > 1
    one, two = rng.sample(range(len(parts)), 2) if several else (0, 0)
    kind = rng.choice((0, 1, 2, 3, 4) if several else (0, 1, 4))
    if kind == 0:
        return Fault({manifest_key(WANTED): world.objects[manifest_key(WANTED + 1)]})
    if kind == 1:
        return world.with_parts(later)
    if kind == 2:
        keys = parts[one].object.key, parts[two].object.key
        return Fault({keys[0]: world.objects[keys[1]], keys[1]: world.objects[keys[0]]})
    if kind == 3:
        parts[one], parts[two] = (
            structs.replace(parts[two], first_tile=parts[one].first_tile, tiles=parts[one].tiles),
            structs.replace(parts[one], first_tile=parts[two].first_tile, tiles=parts[two].tiles),
        )
        return world.with_parts(tuple(parts))
    tiles = world.coded(WANTED, one)
    a, b = rng.sample(range(len(tiles)), 2)
    tiles[a], tiles[b] = (
        tiles[a]._replace(payload=tiles[b].payload),
        tiles[b]._replace(payload=tiles[a].payload),
    )
    return world.with_tiles(one, tiles)


def wrong_base(world: World, rng: random.Random) -> Fault:
    """What is held is not what the subscriber believes that it is."""
    held = {name: array.copy() for name, array in world.states[HELD].items()}
    kind, names = rng.randrange(4), list(held)
    if kind == 0:  # bits, anywhere
        for _ in range(rng.choice((1, 2, 30))):
            flat = held[rng.choice(names)].reshape(-1)
            flat[rng.randrange(flat.size)] ^= flat.dtype.type(1 << rng.randrange(8 * flat.itemsize))
    elif kind == 1:  # two experts have changed places
        one, two = rng.sample([name for name in names if "experts" in name], 2)
        held[one], held[two] = held[two], held[one]
    elif kind == 2:  # a tensor of another version
        name = rng.choice(names)
        held[name] = world.states[rng.choice((0, 2, 3))][name].copy()
    else:  # -0 for 0 and the like: a sign
        flat = held[rng.choice([name for name in names if held[name].itemsize == 2])].reshape(-1)
        flat[rng.randrange(flat.size)] ^= np.uint16(0x8000)
    return Fault({}, held)


def stale_head(world: World, rng: random.Random) -> Fault:
    """The store shows an earlier state of the log than this subscriber has seen, or than it has."""
    held = rng.choice((HELD, WANTED, WANTED + 1))
    newest = rng.randrange(held)
    if rng.random() < 0.5:
        return Fault({manifest_key(n): None for n in range(newest + 1, len(world.versions))}, None, held)
    key = manifest_key(rng.randint(held, WANTED + 1) if held > HELD else WANTED)
    return Fault({key: world.objects[manifest_key(newest)]}, None, min(held, WANTED))


def missing(world: World, rng: random.Random) -> Fault:
    """Objects of version 2, its table, or the manifest in front of it."""
    keys = [part.object.key for part in world.versions[WANTED].parts]
    several = rng.sample(keys, rng.randint(1, len(keys)))
    kind = rng.random()
    if kind < 0.1:
        several = [world.versions[WANTED].table.key]
    elif kind < 0.2:
        several = [manifest_key(HELD)]
    return Fault(dict.fromkeys(several))


def lying_length(world: World, rng: random.Random) -> Fault:
    """A length or a place that is not so: in the manifest, in the container, in its tables."""
    parts = list(world.versions[WANTED].parts)
    number = rng.randrange(len(parts))
    part, off = parts[number], rng.choice((-1, 1)) * rng.choice((1, 2, 8, 60, 1000))
    data = bytearray(world.objects[part.object.key])
    header = int.from_bytes(data[:8], "little")
    kind = rng.randrange(7)
    if kind == 0:
        size = max(0, part.object.bytes + off)
        parts[number] = structs.replace(part, object=structs.replace(part.object, bytes=size))
    elif kind == 1:
        parts[number] = structs.replace(part, head_bytes=max(0, part.head_bytes + off))
    elif kind == 2:
        parts[number] = structs.replace(part, tiles=max(0, part.tiles + off))
    elif kind == 3:
        return world.with_manifest(payload_bytes=max(0, world.versions[WANTED].payload_bytes + off))
    elif kind == 4:
        return world.with_object(number, max(0, header + off).to_bytes(8, "little") + data[8:])
    elif kind == 5:
        text = json.loads(bytes(data[8 : 8 + header]))
        text[rng.choice(("tables", "index", "body"))]["data_offsets"][rng.randrange(2)] += off
        new = json.dumps(text, separators=(",", ":")).encode()
        new += b" " * (-len(new) % 8)
        return world.with_object(number, len(new).to_bytes(8, "little") + new + data[8 + header :])
    else:
        first = 8 + header
        length = int.from_bytes(data[first : first + 4], "little")
        data[first : first + 4] = max(0, length + off).to_bytes(4, "little")
        return world.with_object(number, bytes(data))
    return world.with_parts(tuple(parts))


def huge_count(world: World, rng: random.Random) -> Fault:
    """A number beyond all measure, where a reader might believe it."""
    number = rng.randrange(len(world.versions[WANTED].parts))
    data = bytearray(world.objects[world.versions[WANTED].parts[number].object.key])
    header = int.from_bytes(data[:8], "little")
    huge = rng.choice((1 << 31, 1 << 40, 1 << 62)) + rng.randrange(1 << 20)
    kind = rng.randrange(6)
    if kind == 0:
        return world.with_object(number, huge.to_bytes(8, "little") + data[8:])
    if kind == 1:
        data[8 + header : 12 + header] = min(huge, (1 << 32) - 1).to_bytes(4, "little")
        return world.with_object(number, bytes(data))
    if kind == 2:  # the place of a tile
        index = world.versions[WANTED].parts[number].head_bytes - 60 * rng.randint(1, 3)
        data[index : index + 8] = huge.to_bytes(8, "little")
        return world.with_object(number, bytes(data))
    tiles = world.coded(WANTED, number)
    place = rng.randrange(len(tiles))
    if kind == 3:  # changed elements: five bits say how many bits follow
        bits = rng.randint(20, 31)
        count = (bits << bits | rng.getrandbits(bits)).to_bytes(8, "big").lstrip(b"\0")
        states = np.array([LOW] * (4 if world.kind is Kind.CLASSES else 1), "<u4").tobytes()
        payload = bytes([world.kind]) + states + count
    elif kind == 4:  # a frame that would fill the memory
        payload = bytes([Kind.PLANES]) + _bomb()
    else:
        payload = bytes([rng.choice((1, 2, 3, 4, rng.randrange(5, 256)))]) + b"\xff" * rng.randint(1, 64)
    tiles[place] = tiles[place]._replace(payload=payload)
    return world.with_tiles(number, tiles)


_BOMBS: list[bytes] = []


def _bomb() -> bytes:
    if not _BOMBS:
        _BOMBS.append(zstandard.ZstdCompressor().compress(bytes(256 << 20)))
    return _BOMBS[0]


Injector = Callable[[World, random.Random], Fault]
KINDS: Mapping[str, Injector] = {
    "bit flip": damaged(flip),
    "swap": damaged(swap),
    "permutation": damaged(permute),
    "truncation": damaged(truncate),
    "duplicate": duplicate,
    "reorder": reorder,
    "wrong base": wrong_base,
    "stale head": stale_head,
    "torn write": damaged(tear),
    "missing object": missing,
    "lying length": lying_length,
    "huge count": huge_count,
}


# ---- reading


class Outcome(NamedTuple):
    noticed: bool
    """refused, or said"""
    right: bool
    """what was handed out, if anything, is what the log says"""
    touched: bool
    how: str


def does_nothing(world: World, fault: Fault) -> bool:
    """The dice exchanged equal bytes."""
    same = all(data == world.objects.get(key) for key, data in fault.wrong.items())
    held = fault.held or world.states[fault.number]
    return same and all((held[name] == array).all() for name, array in world.states[fault.number].items())


def read(world: World, fault: Fault) -> Outcome:
    truth = world.held[fault.number]
    tensors = {name: array.copy() for name, array in (fault.held or truth.tensors).items()}
    before = {name: array.tobytes() for name, array in tensors.items()}
    # version 3 is there only where the fault is about it: else the reader would go on to it
    hidden = {} if fault.number > WANTED else {manifest_key(WANTED + 1): None}
    subscriber = Subscriber(Shelf(world.objects, {**hidden, **fault.wrong}), RUN)
    subscriber.held = Weights(truth.version, truth.grid, tensors, truth.digests)
    how, right, noticed = "exact", True, False
    try:
        prepared = subscriber.prepare()
        if prepared is not None and list(prepared.digests) != digests(prepared.grid, prepared.tensors):
            noticed, how = True, "gate"  # as engine.sync does: the engine's memory is rebuilt from nothing
            prepared = subscriber.prepare(prepared.version.number, afresh=True)
    except (PublishError, StoreError) as error:
        prepared, noticed, how = None, True, type(error).__name__
    if prepared is not None:
        wanted = world.states[prepared.version.number]
        right = all((prepared.tensors[name] == array).all() for name, array in wanted.items())
    elif not noticed:
        noticed, how = True, "nothing is handed out"
    if subscriber.events:
        noticed, how = True, max(subscriber.events, key=lambda kind: kind.value).value
    touched = any(tensors[name].tobytes() != data for name, data in before.items())
    return Outcome(noticed, right, touched, how)


def injections(world: World, name: str, seed: str) -> Iterator[Fault]:
    """Faults of one kind, without end."""
    rng = random.Random(seed)
    while True:
        fault = KINDS[name](world, rng)
        if not does_nothing(world, fault):
            yield fault


def outcomes(world: World, name: str, count: int, seed: str) -> Iterator[Outcome]:
    """Of so many faults that did something."""
    for fault in injections(world, name, seed):
        if not count:
            return
        outcome = read(world, fault)
        if outcome.noticed or not outcome.right or outcome.touched or not fault.sealed:
            count -= 1
            yield outcome


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Tally(NamedTuple):
    """Of one kind of fault."""

    outcomes: Counter[str]
    undetected: list[str]
    """which ones"""
    touched: list[str]


def run(worlds: Mapping[str, World], faults: int, reference: float, seed: int) -> dict[str, Tally]:
    """`faults` in all: kinds and codecs take equal shares."""
    each = -(-faults // (len(KINDS) * len(worlds)))
    shares = Counter({backends()[0]: each - round(each * reference)})
    shares[REFERENCE] += round(each * reference)  # all of them, where nothing else is built
    found = {name: Tally(Counter(), [], []) for name in KINDS}
    plans = [(name, codec, reader, n) for name in KINDS for codec in worlds for reader, n in shares.items() if n]
    for name, codec, reader, count in track(plans, "faults"):
        with using(reader):
            drawn = outcomes(worlds[codec], name, count, f"{seed} {name} {codec} {reader}")
            for number, outcome in enumerate(drawn):
                found[name].outcomes[outcome.how] += 1
                which = f"{name}, {codec}, {reader}, number {number}, seed {seed}: {outcome.how}"
                if not (outcome.noticed and outcome.right):
                    found[name].undetected.append(which)
                if outcome.touched:
                    found[name].touched.append(which)
    return found


def show(found: Mapping[str, Tally]) -> None:
    table = Table(title="what came of it")
    for column in ("kind", "injected", "undetected", "base touched", "how it was noticed"):
        table.add_column(column)
    for name, tally in found.items():
        ways = ", ".join(f"{how} {count}" for how, count in tally.outcomes.most_common(5))
        numbers = (tally.outcomes.total(), len(tally.undetected), len(tally.touched))
        table.add_row(name, *map(str, numbers), ways)
    Console(width=160).print(table)
    for tally in found.values():
        for which in [*tally.undetected, *tally.touched][:5]:
            print(which)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100_000)
    parser.add_argument("--reference", type=float, default=0.03, help="share that the NumPy reference reads")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    worlds = {codec: World(codec) for codec in CODECS}
    _bomb()
    for world in worlds.values():  # everything is loaded and warm before memory is looked at
        assert read(world, Fault({})).how == "exact", "without a fault, version 2 is handed out"
    started, before = time.monotonic(), peak_mb()
    found = run(worlds, given.faults, given.reference, given.seed)
    show(found)
    measured = {
        "injected": sum(tally.outcomes.total() for tally in found.values()),
        "injected_least": min(tally.outcomes.total() for tally in found.values()),
        "undetected": sum(len(tally.undetected) for tally in found.values()),
        "base_touched": sum(len(tally.touched) for tally in found.values()),
        "tiles": min(world.tiles for world in worlds.values()),
        "peak_mb": peak_mb() - before,
        "seconds": time.monotonic() - started,
        "readers": ", ".join(dict.fromkeys((backends()[0], REFERENCE))),
    }
    finish("faults", measured, MUST)


if __name__ == "__main__":
    main()
