"""`twinmill weights log | show | verify | diff | materialize | push | serve-mirror`: the weights log of a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, track

from twinmill.cli.places import open_run
from twinmill.cli.proc.base import open_store
from twinmill.publish import materialize as publish_materialize
from twinmill.publish.errors import Refused
from twinmill.publish.manifest import WeightsLog
from twinmill.store.blobs import Blobs

console = Console()


def log(run: str = "latest", *, root: Path = Path("runs")) -> None:
    """Every version: what it is, how large, what it was trained on.

    Args:
        run: run folder, or "latest"
    """
    from twinmill.board.weights import weights_table

    store = WeightsLog(_store(run, root))
    console.print(weights_table([store.get(n) for n in range(store.newest() + 1)], now=time.time()))


def show(version: int, *, run: str = "latest", root: Path = Path("runs")) -> None:
    """One version: its objects, the ways that lead to it, and how much of each group of tensors changed."""
    from twinmill.board import units
    from twinmill.board.weights import density_table, parts_table, weights_table
    from twinmill.publish.chain import rebuild
    from twinmill.publish.inspect import by_group, differences

    log = _log_with(_store(run, root), version)
    log.look_for_shortcuts()
    here = log.get(version)
    with _working(f"rebuilding version {version}"):
        before = None if here.parent is None else rebuild(log, here.parent)
        after = rebuild(log, version, before)
    console.print(weights_table([here], now=time.time()))
    console.print(f"\nmodel digest {here.model_digest}\nlineage      {here.lineage}")
    signed = "unsigned" if here.signature is None else f"signed with key {here.signature.key_id}"
    console.print(f"{len(after.grid.tiles)} tiles of {units.count(after.grid.elements)} elements, {signed}\n")
    console.print(parts_table(here))
    ways = ", ".join(f"{hop.name} ({units.size(hop.bytes)})" for hop in log.hops_to(version))
    console.print(f"\nways that lead here: {ways}\n")
    console.print(density_table(by_group(differences(before, after))))


def diff(first: int, second: int, *, run: str = "latest", root: Path = Path("runs")) -> None:
    """What differs between two versions, by group of tensors and in the ten tensors that differ most."""
    from twinmill.board.weights import density_table
    from twinmill.publish.chain import rebuild
    from twinmill.publish.inspect import by_group, differences

    log = _log_with(_store(run, root), max(first, second))
    _log_with(log.blobs, min(first, second))
    with _working(f"rebuilding versions {first} and {second}"):
        before = rebuild(log, min(first, second))
        after = rebuild(log, max(first, second), before)
    found = differences(before, after)
    console.print(density_table(by_group(found)))
    most = sorted(found, key=lambda name: (-found[name][0] / max(1, found[name][1]), name))[:10]
    console.print()
    console.print(density_table({name: found[name] for name in most if found[name][0]}))


def verify(run: str = "latest", *, root: Path = Path("runs"), first: int = 0, last: int | None = None) -> int:
    """Rebuild every version from the log and check every digest and link. Exit code 1 if one does not hold."""
    blobs = _store(run, root)
    newest = WeightsLog(blobs).newest() if last is None else last
    reports = list(
        track(
            publish_materialize.verify(blobs, first, newest),
            total=newest - first + 1,
            description="verifying",
            console=console,
        )
    )
    bad = [report for report in reports if not report.ok]
    for report in bad:
        console.print(f"[red]version {report.number}[/]: {report.problem}")
    console.print(f"{len(reports) - len(bad)} of {len(reports)} versions hold: objects, digests, lineage")
    return 1 if bad else 0


def materialize(version: int, out: Path, *, run: str = "latest", root: Path = Path("runs")) -> None:
    """Write any version as a full Hugging Face folder."""
    with _working(f"writing version {version}"):
        made = publish_materialize.materialize(_store(run, root), version, out)
    console.print(f"version {made.number} of {made.run_id} is in {out} (model digest {made.model_digest[:16]})")


def push(
    folder: Path, *, run: str = "latest", root: Path = Path("runs"), store: str | None = None, run_id: str | None = None
) -> None:
    """Publish a Hugging Face folder as the next version of a log.

    Args:
        folder: with safetensors files, config.json and tokenizer.json
        run: whose log; not used with --store
        store: URL of a store to write to instead, which may be empty
        run_id: of a log that is begun by this; otherwise the log's own is meant
    """
    from twinmill.publish.interchange.folder import read_folder
    from twinmill.publish.publisher import Publisher
    from twinmill.store.blobs import open_blobs

    blobs = _store(run, root) if store is None else open_blobs(store)
    latest = WeightsLog(blobs).latest()
    owner = run_id or (latest.run_id if latest else None)
    if owner is None:
        raise Refused(f"{blobs.url} has no version yet: name the run that this begins with --run-id")
    with _working(f"publishing {folder}"):
        state, dtypes = read_folder(folder)
        publisher = Publisher(blobs, owner)
        made = publisher.publish(
            state,
            dtypes,
            step=0 if latest is None else latest.step + 1,
            config=_bytes_of(folder / "config.json"),
            tokenizer=_bytes_of(folder / "tokenizer.json"),
        )
        publisher.close()
    console.print(f"{folder} is version {made.number} of {made.run_id}: {made.kind.value}, {made.payload_bytes} bytes")


def serve_mirror(folder: Path, *, host: str = "127.0.0.1", port: int = 8300) -> None:
    """Serve a mirror folder, read-only, by HTTP, for other hosts of the cluster. Ends with Ctrl-C.

    Args:
        host: address to listen at; 0.0.0.0 = all of this host's
        port: 0 = any free one
    """
    from twinmill.publish.serve import MirrorServer

    with MirrorServer(folder, host, port) as server:
        console.print(f"{folder} is at {server.url} (whole objects and ranges; nothing can be written)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("ended")


def _store(run: str, root: Path) -> Blobs:
    folder, blocks = open_run(run, root)
    return open_store(folder, blocks)


def _log_with(blobs: Blobs, version: int) -> WeightsLog:
    """Refused when there is no such version."""
    log = WeightsLog(blobs)
    if not 0 <= version <= log.newest():
        raise Refused(f"version {version} does not exist in {blobs.url}; the newest is {log.newest()} (-1 = none yet)")
    return log


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@contextmanager
def _working(what: str) -> Iterator[None]:
    """A spinner and a clock, on a terminal, while something runs whose end is not known."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield
