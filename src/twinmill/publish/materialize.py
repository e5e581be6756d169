"""Any version as a Hugging Face folder, and a report on every version of a log."""

import os
import shutil
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

from twinmill.records.weights import WeightVersion
from twinmill.store.blobs import Blobs
from twinmill.store.errors import Corrupt, NotFound

from .chain import Weights, hop, rebuild
from .errors import Broken, PublishError, Refused
from .manifest import WeightsLog
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
    data, _ = pack_safetensors(weights.tensors, {patch.name: patch.dtype for patch in version.tensors})
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
    """full, delta or skip; "?" when its manifest cannot be read"""
    step: int
    slots: int
    """how many it was trained on"""
    object_bytes: int
    full_bytes: int
    changed_frac: float
    """share of the elements whose bits changed"""
    problem: str
    """"" = sound: manifest, lineage, object, and every tensor after decoding"""

    @property
    def ok(self) -> bool:
        return not self.problem


def verify(blobs: Blobs, first: int = 0, last: int | None = None) -> Iterator[VersionReport]:
    """Rebuild versions first..last (None = the newest) one on the other, and report on each.

    After a broken one, deltas on it cannot be checked and say so, until the next full version.
    """
    log = WeightsLog(blobs)
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
        problem = ""
        try:
            held = hop(log, version, held)
        except (Corrupt, NotFound, PublishError) as error:
            held, problem = None, str(error)
        yield _report(version, problem)


def _before(log: WeightsLog, first: int) -> Weights | None:
    """What the first version to verify stands on; None when that is broken itself, which its report will say."""
    try:
        parent = log.get(first).parent
        return None if parent is None else rebuild(log, parent)
    except (Corrupt, NotFound, Broken):
        return None


def _report(version: WeightVersion, problem: str) -> VersionReport:
    elements = sum(prod(patch.shape) for patch in version.tensors)
    return VersionReport(
        number=version.number,
        kind=version.kind.value,
        step=version.step,
        slots=len(version.slots),
        object_bytes=version.object.bytes,
        full_bytes=version.full_bytes,
        changed_frac=sum(patch.changed for patch in version.tensors) / max(elements, 1),
        problem=problem,
    )
