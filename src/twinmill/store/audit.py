"""An independent reader of the raw log: proves, or disproves, that the ledger is whole.

It shares nothing with the writers but the byte formats (docs/FORMATS.md): it lists where they probe, and
computes digests and lineage by itself. What it holds a run to:

    one Admit and one Close per slot, no gaps in slots or lanes; nothing closed that was not admitted

    a Close without a drop reason names finished attempts 0..G-1 of its own slot; a lane entry is in one Close at most

    every slot is in the slot list of one version at most, and only after it was closed

    sampled tokens have a log-probability and a version each; versions exist, never decrease within an episode, are none
    older than the Admit's, and older than the version that was trained on them

    the manifests form one chain of one run
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec
from blake3 import blake3
from msgspec import Struct

from twinmill.records import wire
from twinmill.records.base import Record
from twinmill.records.episodes import Admit, Attempt, Close, LogPos
from twinmill.records.weights import Collection, VersionKind, WeightVersion

from .blobs import Blobs
from .errors import Corrupt, NotFound
from .frame import unseal
from .log import index_of

R = TypeVar("R", bound=Record)


class Audit(Struct, frozen=True, kw_only=True):
    """What was found. `problems` empty = the ledger is whole; each line names the slot, entry or version."""

    problems: tuple[str, ...]
    admitted: int
    closed: int
    open: tuple[int, ...]
    """admitted, not closed"""
    trained: int
    """slots in some version's list, dropped ones included"""
    untrained: tuple[int, ...]
    """closed, in no version's list (yet)"""
    dropped: dict[str, int]
    """drop reason -> slots"""
    attempts: int
    """lane entries"""
    unused: int
    """lane entries that no Close names: lost to infrastructure, or of open slots"""
    lost: int
    """attempts run again after infrastructure failures, as the Closes say"""
    sampled_tokens: int
    """in attempts that a Close names"""
    ages: dict[int, int]
    """age of each trained token in versions (0 = sampled by the very version that the step started from) -> tokens"""
    versions: int
    newest: int
    """-1 = no version"""

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def oldest(self) -> int:
        """Largest age of a trained token; 0 when there is none."""
        return max(self.ages, default=0)


def audit(blobs: Blobs, *, window: int | None = None, objects: bool = False) -> Audit:
    """Read everything.

    window: tokens older than so many versions are a problem; None = only counted.
    objects: also read every version's objects, check their digests, and those of all tiles; one that the ledger of removals
    names may be gone.
    """
    problems: list[str] = []
    admits = dict(_records(blobs, "episodes/admit", Admit, problems))
    closes = dict(_records(blobs, "episodes/close", Close, problems))
    versions = dict(_records(blobs, "weights/manifests", WeightVersion, problems))
    attempts = dict(_attempts(blobs, problems))
    _check_slots(admits, closes, problems)
    _check_chain(versions, problems)
    if objects:
        _check_objects(blobs, versions, problems)
    trained = _trained(versions, closes, problems)
    used = _check_closes(closes, admits, attempts, problems)
    ages: Counter[int] = Counter()
    for pos, slot in used.items():
        ages += _check_tokens(attempts[pos], admits.get(slot), trained.get(slot), versions, problems)
    if window is not None and max(ages, default=0) > window:
        problems.append(f"tokens up to {max(ages)} versions old were trained; the window is {window}")
    return Audit(
        problems=tuple(problems),
        admitted=len(admits),
        closed=len(closes),
        open=tuple(sorted(admits.keys() - closes.keys())),
        trained=len(trained),
        untrained=tuple(sorted(closes.keys() - trained.keys())),
        dropped=dict(Counter(close.drop.value for close in closes.values() if close.drop)),
        attempts=len(attempts),
        unused=len(attempts) - len(used),
        lost=sum(close.lost for close in closes.values()),
        sampled_tokens=sum(_sampled(attempts[pos]) for pos in used),
        ages=dict(sorted(ages.items())),
        versions=len(versions),
        newest=max(versions, default=-1),
    )


def _records(blobs: Blobs, prefix: str, kind: type[R], problems: list[str]) -> Iterator[tuple[int, R]]:
    """(number in the key, record) of every sound object below `prefix`; numbers must have no gaps."""
    expected = 0
    for key in blobs.list(prefix):
        try:
            number = index_of(key)
            record = wire.unpack(unseal(key, blobs.get(key)), kind)
        except (Corrupt, NotFound, wire.WireError) as error:
            problems.append(f"{key}: {error}")
            expected += 1
            continue
        if number != expected:
            problems.append(f"{prefix}: {expected} is missing, the next is {number}")
        expected = number + 1
        yield number, record


def _attempts(blobs: Blobs, problems: list[str]) -> Iterator[tuple[LogPos, Attempt]]:
    lanes = sorted({key.split("/")[2] for key in blobs.list("episodes/lanes")})
    for lane in lanes:
        for index, attempt in _records(blobs, f"episodes/lanes/{lane}", Attempt, problems):
            yield LogPos(lane=lane, index=index), attempt


def _check_slots(admits: Mapping[int, Admit], closes: Mapping[int, Close], problems: list[str]) -> None:
    for kind, records in (("Admit", admits), ("Close", closes)):
        for number, record in records.items():
            if record.slot != number:
                problems.append(f"the {kind} in the place of slot {number} is of slot {record.slot}")
    for slot, close in closes.items():
        admit = admits.get(slot)
        if admit is None:
            problems.append(f"slot {slot} was closed and never admitted")
        elif admit.task_id != close.task_id:
            problems.append(f"slot {slot} was admitted with task {admit.task_id!r}, closed with {close.task_id!r}")


def _check_closes(
    closes: Mapping[int, Close],
    admits: Mapping[int, Admit],
    attempts: Mapping[LogPos, Attempt],
    problems: list[str],
) -> dict[LogPos, int]:
    """Lane entry -> the slot whose Close names it."""
    used: dict[LogPos, int] = {}
    for slot, close in sorted(closes.items()):
        if close.drop is None and not close.entries_G:
            problems.append(f"slot {slot} was closed complete, without any attempt")
        for index, pos in enumerate(close.entries_G):
            where = f"slot {slot}, attempt {index} ({pos.lane}/{pos.index})"
            attempt = attempts.get(pos)
            if attempt is None:
                problems.append(f"{where}: no such lane entry")
                continue
            if pos in used:
                problems.append(f"{where}: closed in slot {used[pos]} already")
            used[pos] = slot
            problems.extend(f"{where}: {problem}" for problem in _odd(attempt, close, index, admits.get(slot), pos))
    return used


def _odd(attempt: Attempt, close: Close, index: int, admit: Admit | None, pos: LogPos) -> Iterator[str]:
    if attempt.slot != close.slot or (close.drop is None and attempt.attempt != index):
        yield f"holds attempt {attempt.attempt} of slot {attempt.slot}"
    if attempt.episode.task_id != close.task_id:
        yield f"is of task {attempt.episode.task_id!r}, the slot of {close.task_id!r}"
    if attempt.verdict.episode_id != attempt.episode.id:
        yield f"the verdict is of episode {attempt.verdict.episode_id!r}"
    if close.drop is None and attempt.episode.error is not None:
        yield f"lost to infrastructure ({attempt.episode.error.boundary.value}), yet in a complete group"
    if close.drop is None and attempt.verdict.reward is None:
        yield "without a reward, yet in a complete group"
    if admit is not None and pos.lane == admit.cluster and pos.index < admit.lane_from:
        yield f"lies before entry {admit.lane_from}, where the lane stood when the slot was admitted"


def _trained(versions: Mapping[int, WeightVersion], closes: Mapping[int, Close], problems: list[str]) -> dict[int, int]:
    """Slot -> the version that was trained on it."""
    trained: dict[int, int] = {}
    for number, version in sorted(versions.items()):
        for slot in version.slots:
            if slot in trained:
                problems.append(f"slot {slot} was trained twice: for version {trained[slot]} and for {number}")
            if slot not in closes:
                problems.append(f"slot {slot} was trained for version {number} and never closed")
            trained[slot] = number
    return trained


def _check_tokens(
    attempt: Attempt,
    admit: Admit | None,
    trained: int | None,
    versions: Mapping[int, WeightVersion],
    problems: list[str],
) -> Counter[int]:
    """Ages of the attempt's sampled tokens (empty when it was not trained)."""
    ages: Counter[int] = Counter()
    seen: list[int] = []
    name = f"episode {attempt.episode.id}"
    for segment in attempt.episode.segments:
        for turn in segment.turns:
            runs = turn.version_runs
            counts = {len(turn.sampled_ids), len(turn.logprobs), sum(run.count for run in runs)}
            if len(counts) != 1 or any(run.count < 1 for run in runs):
                problems.append(f"{name}, turn {turn.index}: ids, log-probabilities and version counts differ")
            for run in runs:
                seen.append(run.version)
                if trained is not None:
                    ages[trained - 1 - run.version] += run.count
    if seen != sorted(seen):
        problems.append(f"{name}: versions decrease: {seen}")
    if seen and attempt.episode.versions != (seen[0], seen[-1]):
        problems.append(f"{name}: says versions {attempt.episode.versions}, its tokens {(seen[0], seen[-1])}")
    if seen and admit is not None and min(seen) < admit.version:
        problems.append(f"{name}: a token of version {min(seen)}, admitted at version {admit.version}")
    if unknown := sorted(set(seen) - versions.keys()):
        problems.append(f"{name}: sampled by version {unknown[0]}, which does not exist")
    if min(ages, default=0) < 0:
        problems.append(f"{name}: sampled by version {max(seen)}, yet trained for version {trained}")
    return ages


def _sampled(attempt: Attempt) -> int:
    return sum(len(turn.sampled_ids) for segment in attempt.episode.segments for turn in segment.turns)


def _check_chain(versions: Mapping[int, WeightVersion], problems: list[str]) -> None:
    """Numbers, parents, parts, lineage, run and step of every manifest."""
    for number, version in sorted(versions.items()):
        where = f"version {number}"
        if version.number != number:
            problems.append(f"{where}: the manifest in its place is of version {version.number}")
        end = 0
        for part in version.parts:
            if part.first_tile != end or part.tiles < 1:
                problems.append(f"{where}: a part begins at tile {part.first_tile}, tile {end} is next")
            end = part.first_tile + part.tiles
        if version.payload_bytes != sum(part.object.bytes for part in version.parts):
            problems.append(f"{where}: its parts are not {version.payload_bytes} bytes together")
        before = versions.get(number - 1)
        if before is None and number > 0:
            continue  # the gap has been reported
        lineage = before.lineage if before else ""
        if version.lineage != _digest(f"{version.run_id}\0{number}\0{lineage}\0{version.model_digest}"):
            problems.append(f"{where}: lineage does not continue version {number - 1}")
        if before is not None and (version.run_id != before.run_id or version.step <= before.step):
            problems.append(
                f"{where}: run {version.run_id!r} step {version.step} after {before.run_id!r} {before.step}"
            )
        if before is not None and (version.table, version.grid) != (before.table, before.grid):
            problems.append(f"{where}: other tensors, or other tiles, than version {number - 1}")
        _check_parent(version, versions, problems)


def _check_parent(version: WeightVersion, versions: Mapping[int, WeightVersion], problems: list[str]) -> None:
    where = f"version {version.number}"
    if version.kind is VersionKind.FULL:
        if version.parent is not None:
            problems.append(f"{where}: full, with parent {version.parent}")
        return
    parent = None if version.parent is None else versions.get(version.parent)
    if parent is None or parent.number >= version.number:
        problems.append(f"{where}: {version.kind.value} on version {version.parent}, which is not before it")


def _check_objects(blobs: Blobs, versions: Mapping[int, WeightVersion], problems: list[str]) -> None:
    """Every object whole; every tile's digest before that of the parent after; all of them make the model digest. A version
    of which an object was removed by the ledger is not looked at further."""
    entries = _records(blobs, "weights/collected", Collection, problems)
    removed = {one.key for _, entry in entries for one in entry.removed}
    after: dict[int, list[bytes]] = {}
    for number, version in sorted(versions.items()):
        try:
            for ref in filter(None, (version.config, version.tokenizer)):
                blobs.get_ref(ref)
            table = blobs.get_ref(version.table)
            index = b"".join(_index(part.object.key, blobs.get_ref(part.object)) for part in version.parts)
        except (Corrupt, NotFound) as error:
            if isinstance(error, Corrupt) or error.key not in removed:
                problems.append(f"version {number}: {error}")
            continue
        tiles = [index[at : at + _ENTRY_BYTES] for at in range(0, len(index), _ENTRY_BYTES)]
        after[number] = [tile[24:40] for tile in tiles]
        identity = blake3(table + wire.pack(version.grid)).digest()
        if version.model_digest != blake3(identity + b"".join(after[number])).hexdigest():
            problems.append(f"version {number}: model digest is not that of its tiles")
        before = [tile[8:24] for tile in tiles]
        base = [bytes(16)] * len(tiles) if version.parent is None else after.get(version.parent)
        if base is not None and before != base:
            wrong = next((i for i, pair in enumerate(zip(before, base)) if pair[0] != pair[1]), len(base))
            problems.append(f"version {number}: tile {wrong} was made on another base than version {version.parent}")


_ENTRY_BYTES = 60
"""of a tile in an object's index: u64 offset; digests before, after, of the payload, 16 bytes each; u32 changed"""


def _index(key: str, data: bytes) -> bytes:
    """The index of an object, which is a safetensors file."""
    try:
        length = int.from_bytes(data[:8], "little")
        begin, end = msgspec.json.decode(data[8 : 8 + length])["index"]["data_offsets"]
        return data[8 + length + begin : 8 + length + end]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(key, f"no safetensors file with an index: {error}") from error


def _digest(text: str) -> str:
    return blake3(text.encode()).hexdigest()
