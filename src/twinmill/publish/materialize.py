"""Any version as a Hugging Face folder, and a report on every version of a log."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from twinmill.records.weights import WeightVersion
from twinmill.store.blobs import Blobs
from twinmill.store.errors import Corrupt, NotFound

from .chain import rebuild
from .draft import Draft, Weights
from .errors import Broken, PublishError, Refused
from .manifest import WeightsLog
from .route import Hop
from .tensors import pack_safetensors


def materialize(blobs: Blobs, number: int, folder: Path | str) -> WeightVersion:
    """Write version `number` to `folder`: config.json, tokenizer.json (where known), model.safetensors.

    The folder appears whole or not at all. Raises FileExistsError when it is there already.
    """
    folder = Path(folder).absolute()
    if folder.exists():
        raise FileExistsError(f"{folder} exists; name a new folder for version {number}")
    log = WeightsLog(blobs)
    if not 0 <= number <= log.newest():
        raise Refused(f"version {number} does not exist in {blobs.url}; the newest is {log.newest()} (-1 = none yet)")
    weights = rebuild(log, number)
    version = weights.version
    data, _ = pack_safetensors(weights.tensors, weights.grid.dtypes)
    files = {"model.safetensors": data}
    for name, ref in (("config.json", version.config), ("tokenizer.json", version.tokenizer)):
        if ref is not None:
            files[name] = blobs.get_ref(ref)
    staging = folder.with_name(f"{folder.name}#{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return version


class VersionReport(NamedTuple):
    """What `verify` found about one version."""

    number: int
    kind: str
    """full or delta; "?" when its manifest cannot be read"""
    step: int
    slots: int
    """how many it was trained on"""
    payload_bytes: int
    full_bytes: int
    changed_frac: float
    """share of the elements whose bits changed"""
    problem: str
    """"" = sound: manifest, lineage, objects, and every tile after decoding; and the shortcuts that lead to it"""

    @property
    def ok(self) -> bool:
        return not self.problem


def verify(blobs: Blobs, first: int = 0, last: int | None = None) -> Iterator[VersionReport]:
    """Rebuild versions first..last (None = the newest) one on the other by their own objects, and report on each.

    After a broken one, deltas on it cannot be checked and say so, until the next full version. Shortcuts are followed, too,
    and must lead to the very same digests.
    """
    log = WeightsLog(blobs)
    log.look_for_shortcuts()
    end = log.newest() if last is None else last
    held: Weights | None = None
    if first > 0:
        held = _before(log, first)
    for number in range(first, end + 1):
        try:
            version = log.get(number)
        except (Corrupt, NotFound, PublishError) as error:
            held = None
            yield VersionReport(number, "?", -1, 0, 0, 0, 0.0, str(error))
            continue
        problem, elements = "", 0
        try:
            held = _step(log, version, held)
            elements = held.grid.elements
        except (Corrupt, NotFound, PublishError) as error:
            held, problem = None, str(error)
        yield _report(version, elements, problem or _shortcut_problem(log, number))


def _step(log: WeightsLog, version: WeightVersion, held: Weights | None) -> Weights:
    log.verify_link(version)
    if version.parent is not None and (held is None or held.version.number != version.parent):
        have = "nothing" if held is None else f"version {held.version.number}"
        raise Broken(version.number, f"follows version {version.parent}, but {have} is held")
    return _along(log, Hop(version.parent, version.number, version.parts, f"version {version.number}"), held)


def _along(log: WeightsLog, hop: Hop, held: Weights | None) -> Weights:
    draft = Draft(log, log.grid(log.get(hop.end)), held if hop.start is not None else None)
    draft.take(hop)
    draft.finish()
    return draft.weights()


def _shortcut_problem(log: WeightsLog, number: int) -> str:
    """What is wrong with the shortcuts that lead to a version; "" = nothing."""
    try:
        hops = log.hops_to(number)[1:]
        starts = {hop.start: rebuild(log, hop.start) for hop in hops if hop.start is not None}
        for hop in hops:
            _along(log, hop, None if hop.start is None else starts[hop.start])
    except (Corrupt, NotFound, PublishError) as error:
        return f"a shortcut to it does not hold: {error}"
    return ""


def _before(log: WeightsLog, first: int) -> Weights | None:
    """What the first version to verify stands on; None when that is broken itself, which its report will say."""
    try:
        parent = log.get(first).parent
        return None if parent is None else rebuild(log, parent)
    except (Corrupt, NotFound, Broken):
        return None


def _report(version: WeightVersion, elements: int, problem: str) -> VersionReport:
    return VersionReport(
        number=version.number,
        kind=version.kind.value,
        step=version.step,
        slots=len(version.slots),
        payload_bytes=version.payload_bytes,
        full_bytes=version.full_bytes,
        changed_frac=version.changed / max(elements, 1),
        problem=problem,
    )
