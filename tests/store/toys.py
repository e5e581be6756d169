"""Small records of the episodes log, and a small weights log by records alone."""

import json

from blake3 import blake3

from twinmill.records import wire
from twinmill.records.episodes import (
    Admit,
    Attempt,
    Boundary,
    Close,
    Episode,
    Failure,
    Finish,
    LogPos,
    OpenedBy,
    Segment,
    StopReason,
    Turn,
    Usage,
    Verdict,
    VersionRun,
)
from twinmill.records.weights import GridSpec, Part, TensorSpec, TensorTable, VersionKind, WeightVersion
from twinmill.store.blobs import Blobs
from twinmill.store.frame import seal_record
from twinmill.store.log import indexed


def admit(slot: int, cluster: str = "c0", version: int = 0) -> Admit:
    return Admit(slot=slot, task_id=f"task/{slot}", seed=slot, cluster=cluster, version=version)


def attempt(
    slot: int, index: int = 0, versions: tuple[int, ...] = (0,), cluster: str = "c0", lost: bool = False, run: int = 0
) -> Attempt:
    """One turn; one sampled token per entry of `versions`."""
    name = f"{slot}-{index}-{run}"
    turn = Turn(
        index=0,
        input_ids=[1, 2],
        sampled_ids=[7] * len(versions),
        logprobs=[-0.5] * len(versions),
        version_runs=tuple(VersionRun(version=version, count=1) for version in versions),
        finish=Finish.STOP,
    )
    failure = Failure(boundary=Boundary.MACHINE, type="Gone", message="the machine is gone") if lost else None
    episode = Episode(
        id=name,
        task_id=f"task/{slot}",
        group_id=str(slot),
        attempt=index,
        segments=(Segment(index=0, opened_by=OpenedBy.TASK, turns=(turn,)),),
        stop=StopReason.ERROR if lost else StopReason.FINISHED,
        versions=(versions[0], versions[-1]),
        usage=Usage(turns=1, sampled_tokens=len(versions)),
        cluster=cluster,
        seed=slot,
        error=failure,
    )
    verdict = Verdict(episode_id=name, scores={}, reward=None if lost else float(index))
    return Attempt(slot=slot, attempt=index, episode=episode, verdict=verdict)


def close(slot: int, *entries: LogPos) -> Close:
    return Close(slot=slot, task_id=f"task/{slot}", entries_G=entries)


def _digest(text: str) -> str:
    return blake3(text.encode()).hexdigest()


def put_version(blobs: Blobs, number: int, slots: tuple[int, ...] = (), **changes: object) -> WeightVersion:
    """A manifest and an object after the format in docs/FORMATS.md, of a model with one tensor in one tile."""
    lineage = ""
    for earlier in range(number):
        lineage = _digest(f"run\0{earlier}\0{lineage}\0{_model(earlier)}")
    model = _model(number)
    head = _head(number)
    payload = blobs.put_ref("weights/objects", head + b"payload %d" % number)
    part = Part(
        object=payload, first_tile=0, tiles=1, changed=1, head_bytes=len(head), head_digest=blake3(head).hexdigest()
    )
    fields: dict[str, object] = {
        "number": number,
        "kind": VersionKind.DELTA if number else VersionKind.FULL,
        "run_id": "run",
        "parent": number - 1 if number else None,
        "lineage": _digest(f"run\0{number}\0{lineage}\0{model}"),
        "step": number,
        "slots": slots,
        "table": blobs.put_ref("weights/objects", TABLE),
        "grid": GridSpec(),
        "parts": (part,),
        "last_full": 0,
        "payload_bytes": payload.bytes,
        "model_digest": model,
    }
    version = WeightVersion(**{**fields, **changes})  # type: ignore[arg-type]
    key = indexed("weights/manifests", number)
    blobs.put(key, seal_record(key, version))
    return version


TABLE = wire.pack(TensorTable(tensors=(TensorSpec(name="w", dtype="F32", shape=(2, 2)),)))


def _model(number: int) -> str:
    identity = blake3(TABLE + wire.pack(GridSpec())).digest()
    return blake3(identity + tile_digest(number)).hexdigest()


def tile_digest(number: int) -> bytes:
    """Of the one tile after version `number`."""
    return b"%016d" % number


def _head(number: int) -> bytes:
    """The head of an object: no tables, one tile."""
    before = tile_digest(number - 1) if number else bytes(16)
    index = (0).to_bytes(8, "little") + before + tile_digest(number) + bytes(16) + (1).to_bytes(4, "little")
    places = {"tables": (0, 0), "index": (0, 60), "body": (60, 60 + len(b"payload %d" % number))}
    header = {name: {"dtype": "U8", "shape": [b - a], "data_offsets": [a, b]} for name, (a, b) in places.items()}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + index
