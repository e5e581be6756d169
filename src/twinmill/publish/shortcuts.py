"""Skips and anchors: other ways to versions that exist, made beside the training.

    every 16 and 256 versions   a skip: one delta from that many versions ago, a third of the bytes of the single ones
    where even the cheapest     an anchor: all of the newest version, so that a joiner need not begin at version 0
    way has become long

The old state is a copy that was kept since then, one per period; after a restart it is rebuilt from the log. All of it works
on private copies, in one thread, one job at a time; where a job is not done when the next is due, that one is left out.
What goes wrong here costs nobody a version: it is remembered in `problems`, and training goes on.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

from msgspec import structs

from twinmill.records.weights import Shortcut
from twinmill.store.blobs import Blobs
from twinmill.store.errors import StoreError

from .chain import rebuild
from .config import PublishConfig
from .draft import Weights
from .encode import Encoded, Encoder, sender
from .errors import PublishError
from .manifest import WeightsLog
from .route import cheapest
from .signing import Signer

PROBLEMS = 20
"""how many are remembered"""


class Shortcuts:
    """Told of every version after it was committed. Not thread-safe but for its own thread."""

    def __init__(self, blobs: Blobs, config: PublishConfig, signer: Signer | None = None) -> None:
        self.problems: list[str] = []
        """what went wrong lately"""
        self._config = config
        self._log = WeightsLog(blobs, signer=signer)  # its own: the publisher's is not shared between threads
        self._kept: dict[int, Weights] = {}
        self._worker: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None

    def after(self, weights: Weights) -> None:
        """A version was committed. Its arrays are copied if they are wanted, and not kept."""
        number = weights.version.number
        periods = [period for period in self._config.skip_every if number % period == 0]
        if not periods and not (self._config.anchor_when and not self._config.skip_every and number % 16 == 0):
            return
        if self.busy:
            for period in periods:
                self._kept.pop(period, None)
            return
        now = weights._replace(tensors={name: array.copy() for name, array in weights.tensors.items()})
        olds = [(number - period, self._kept.get(period)) for period in periods if number >= period]
        self._kept.update(dict.fromkeys(periods, now))
        if number:
            self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="shortcuts")
            self._job = self._worker.submit(self._make, now, olds)

    def anchor(self, now: Weights) -> bool:
        """Make one at once, for readers to whom no other way is left. False = another job is at work, or it is there."""
        return not self.busy and self._write(now, None, self._encoder(now).full(now.tensors))

    @property
    def busy(self) -> bool:
        """Are objects on their way that no record names yet?"""
        return self._job is not None and not self._job.done()

    def close(self, deadline_s: float) -> bool:
        """Wait for the job at hand; False = it is still not done, and goes on until the process ends."""
        done = self._job is None or bool(wait_for([self._job], deadline_s).done)
        if self._worker is not None:
            self._worker.shutdown(wait=done)
            self._worker = None  # a later version begins another
        return done

    def _make(self, now: Weights, olds: list[tuple[int, Weights | None]]) -> None:
        for start, old in olds:
            self._try(f"skip {start} to {now.version.number}", lambda s=start, o=old: self._skip(now, s, o))  # type: ignore[misc]
        self._try(f"anchor {now.version.number}", lambda: self._anchor_if_due(now))

    def _try(self, what: str, job: Callable[[], None]) -> None:
        try:
            job()
        except (PublishError, StoreError) as error:
            self.problems = [*self.problems, f"{what} was not made: {error}"][-PROBLEMS:]

    def _skip(self, now: Weights, start: int, old: Weights | None) -> None:
        if old is None or old.version.number != start:
            old = rebuild(self._log, start, threads=self._config.threads)
        self._write(now, start, self._encoder(now).delta(old, now.tensors))

    def _anchor_if_due(self, now: Weights) -> None:
        """By what the cheapest way from nothing costs now, over all shortcuts that there are."""
        if not self._config.anchor_when:
            return
        number = now.version.number
        self._log.look_for_shortcuts()
        route = cheapest(number, None, self._log.hops_to)
        if route is not None and sum(hop.bytes for hop in route[1:]) <= self._config.anchor_when * route[0].bytes:
            return
        self._write(now, None, self._encoder(now).full(now.tensors))

    def _write(self, now: Weights, start: int | None, encoded: Encoded) -> bool:
        if now.grid.model_digest(encoded.digests) != now.version.model_digest:
            raise PublishError(f"its tiles are not those of version {now.version.number}")
        return self._log.add_shortcut(
            Shortcut(
                number=now.version.number,
                parent=start,
                run_id=now.version.run_id,
                lineage=now.version.lineage,
                parts=encoded.parts,
                changed=encoded.changed,
                payload_bytes=encoded.payload_bytes,
            )
        )

    def _encoder(self, now: Weights) -> Encoder:
        """With one thread: the trainer has better use for the others."""
        log, config = self._log, structs.replace(self._config, threads=1)
        return Encoder(now.grid, config, log.objects, sender(log.blobs, log.objects, config, again=True))
