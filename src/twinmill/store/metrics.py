"""Metrics: one JSON line per event, in one file per process, so that no two writers ever share a file.

    {"t": 1719849600.125, "kind": "step", "version": 3, "reward": 0.41}

`t` is seconds since the epoch. A line that a killed writer left torn is skipped when it is the last;
anywhere else it is an error. Sinks (TensorBoard, wandb) get a copy of every line; they are imported only
when asked for.
"""

import heapq
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from twinmill.records import wire

from .errors import Corrupt


class Sink(Protocol):
    """Another place that metrics go to."""

    def write(self, kind: str, t: float, fields: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class MetricsWriter:
    """Appends to one file. Every line is flushed to the system, so it outlives the process."""

    def __init__(self, path: Path | str, sinks: tuple[Sink, ...] = ()) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_end(self.path)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._sinks = sinks

    def write(self, kind: str, **fields: Any) -> None:
        """Record one event now. Values: whatever JSON or a record can hold; numbers reach every sink."""
        t = time.time()
        self._file.write(wire.to_json({"t": t, "kind": kind, **fields}) + b"\n")
        for sink in self._sinks:
            sink.write(kind, t, fields)

    def close(self) -> None:
        self._file.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _drop_torn_end(path: Path) -> None:
    """Cut a line that a killed predecessor left unfinished, so that the next one does not run into it."""
    if not path.exists() or not path.stat().st_size:
        return
    with open(path, "r+b") as file:
        data = file.read()
        if not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)


def read_file(path: Path | str) -> Iterator[dict[str, Any]]:
    """Lines of one file in order; a torn last line is left out. Corrupt for damage anywhere else."""
    path = Path(path)
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is "" or torn
        if not line:
            continue
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Corrupt(str(path), f"line {number} is no JSON object: {error}") from error


def read_metrics(folder: Path | str, kind: str | None = None) -> list[dict[str, Any]]:
    """All events of all processes in `folder`, by time; each has "process" (its file's name) added.

    kind: only events of this kind; None = all.
    """
    paths = sorted(Path(folder).glob("*.jsonl"))
    streams = [[{**line, "process": path.stem} for line in read_file(path)] for path in paths]
    merged = heapq.merge(*streams, key=lambda line: line["t"])
    return [line for line in merged if kind is None or line["kind"] == kind]


class TensorboardSink:
    """Numbers to a TensorBoard folder, tag "<kind>/<field>". Needs the extra `tensorboard`."""

    def __init__(self, folder: Path | str) -> None:
        module = _need("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(str(folder))
        self._count: dict[str, int] = {}

    def write(self, kind: str, t: float, fields: dict[str, Any]) -> None:
        step = fields.get("step", fields.get("version", self._count.get(kind, 0)))
        self._count[kind] = self._count.get(kind, 0) + 1
        for tag, value in numbers(kind, fields):
            self._writer.add_scalar(tag, value, step, t)

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """Numbers to a wandb run in offline mode (nothing leaves the machine). Needs the extra `wandb`."""

    def __init__(self, folder: Path | str, run_id: str, project: str = "twinmill") -> None:
        module = _need("wandb", "wandb")
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._run = module.init(project=project, id=run_id, dir=str(folder), mode="offline", resume="allow")

    def write(self, kind: str, t: float, fields: dict[str, Any]) -> None:
        self._run.log({"t": t, **dict(numbers(kind, fields))})

    def close(self) -> None:
        self._run.finish()


def numbers(prefix: str, fields: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """(path joined by "/", value) of every number in nested `fields`."""
    for name, value in fields.items():
        if isinstance(value, msgspec.Struct):
            value = msgspec.to_builtins(value)
        if isinstance(value, dict):
            yield from numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float):
            yield f"{prefix}/{name}", float(value)


def _need(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"metrics sink {extra!r} needs: pip install 'twinmill[{extra}]' ({error})") from error
