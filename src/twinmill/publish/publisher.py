"""The trainer's end of the weights log. Order of a publication: objects, then the manifest, which is the commit point, then
the snapshot: the publisher's own copy of what was published, against which the next state is compared.

A process that dies before the manifest leaves objects that no version names, which is harmless: publishing the same again
makes the same objects. One that dies behind it has published, and `latest` says so at the next start. Where the store did not
answer whether the manifest is there, the snapshot waits: it advances when the log says so, and not before.
"""

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as release_of
from typing import NamedTuple

import numpy as np

from twinmill.records import wire
from twinmill.records.base import Ref
from twinmill.records.weights import GridSpec, VersionKind, WeightVersion
from twinmill.store.blobs import Blobs
from twinmill.store.errors import StoreError

from .chain import rebuild
from .config import PublishConfig, problems_of
from .draft import Weights
from .encode import Encoded, Encoder, sender
from .errors import Refused
from .manifest import DAMAGE, FORMAT, WeightsLog, lineage_of
from .shortcuts import Shortcuts
from .signing import Signer
from .tensors import Array, State, check_state
from .tiles import Grid, digests, scatter, table_of


class _Pending(NamedTuple):
    """A version of which it is not known whether it is in the log."""

    version: WeightVersion
    encoded: Encoded
    state: dict[str, Array] | None
    """a copy of what was published, where there are no patches to advance by"""


class Publisher:
    """The one writer of the weights log of `run_id`. A second one is refused at its first commit."""

    def __init__(
        self, blobs: Blobs, run_id: str, config: PublishConfig | None = None, *, signer: Signer | None = None
    ) -> None:
        """signer: signs manifests and shortcuts; None = they are unsigned."""
        self._config = config or PublishConfig()
        for problem in problems_of(self._config):
            raise Refused(problem)
        self._log = WeightsLog(blobs, signer=signer)
        self._run_id = run_id
        self._base: Weights | None = None
        self._pending: _Pending | None = None
        self.latest = self._log.latest()
        """the newest version of this log; None = none yet"""
        if self.latest is not None and self.latest.run_id != run_id:
            raise Refused(
                f"{blobs.url} holds the weights of run {self.latest.run_id!r}, not of {run_id!r}; "
                "give each run its own store"
            )
        self.shortcuts = Shortcuts(blobs, self._config, signer)
        self._reachable = -1
        """newest version to which a way was tried and found whole, since a subscriber asked for help"""

    def close(self, deadline_s: float = 60.0) -> None:
        """Let the shortcuts that are being made be finished; those that are not within the deadline are given up."""
        self.shortcuts.close(deadline_s)

    def state(self) -> Weights | None:
        """What was published last, rebuilt from the log and verified; None = nothing yet. Valid until the next publication,
        which advances these very arrays."""
        self._settle()
        if self._base is None and self.latest is not None:
            self._base = rebuild(self._log, self.latest.number, threads=self._config.threads)
        return self._base

    def publish(
        self,
        state: State,
        dtypes: Mapping[str, str],
        *,
        step: int,
        slots: Sequence[int] = (),
        checkpoint: str | None = None,
        config: bytes | None = None,
        tokenizer: bytes | None = None,
        quantisation: str | None = None,
        created_at: float | None = None,
        full: bool = False,
    ) -> WeightVersion:
        """Make `state` the next version. It is copied where it changed, so the caller may go on training at once.

        config, tokenizer: contents of config.json and tokenizer.json; None = those of the version before.
        created_at: seconds since the epoch; None = now. full: not a delta, whatever the schedule says.
        Repeating the last publication returns it. Refused when this does not continue the log.
        """
        check_state(state, dtypes)
        state = _contiguous(state)
        self._settle()
        last = self.latest
        grid = self._grid(state, dtypes)
        if last is not None and step <= last.step:
            return self._repeated(last, step, tuple(slots), state, grid)
        base = None if full or self._full_is_due() else self._state_if_sound()
        encoder = self._encoder(grid, again=base is None)
        encoded = encoder.full(state) if base is None else encoder.delta(base, state)
        number, model = last.number + 1 if last else 0, grid.model_digest(encoded.digests)
        version = WeightVersion(
            number=number,
            kind=VersionKind.FULL if base is None else VersionKind.DELTA,
            run_id=self._run_id,
            parent=None if base is None else base.version.number,
            lineage=lineage_of(self._run_id, number, last.lineage if last else "", model),
            step=step,
            slots=tuple(slots),
            table=last.table if last else self._object(wire.pack(grid.table)),
            grid=grid.spec,
            parts=encoded.parts,
            last_full=number if base is None else base.version.last_full,
            model_digest=model,
            changed=encoded.changed,
            payload_bytes=encoded.payload_bytes,
            config=self._file(config, last.config if last else None),
            tokenizer=self._file(tokenizer, last.tokenizer if last else None),
            checkpoint=checkpoint,
            quantisation=quantisation,
            created_at=time.time() if created_at is None else created_at,
            full_bytes=grid.bytes,
            writer=_writer(),
            min_reader=FORMAT,
        )
        return self._commit(version, encoded, {n: a.copy() for n, a in state.items()} if base is None else None)

    def mend(self, state: State, dtypes: Mapping[str, str]) -> bool:
        """See to it that the newest version can be reached, where a subscriber asked for help: its own objects are written
        anew where they are damaged or gone; where what it stands on is, an anchor leads to it. True = something was done.

        `state` is what that version holds. The next version would be full and mend everything, but with a small window
        none comes before the subscribers have this one.
        """
        last = self.latest
        if last is None or not self._log.wanted_full(last.number):
            return False
        sound = self._is_sound(last)
        if sound and last.number == self._reachable:
            return False
        state = _contiguous(state)
        grid = self._grid(state, dtypes)
        found = tuple(digests(grid, state))
        if grid.model_digest(found) != last.model_digest:
            raise Refused(f"version {last.number} cannot be mended with other weights than its own")
        if not sound and self._put_back(last, grid, state):
            return True
        try:
            rebuild(self._log, last.number, threads=self._config.threads)
        except DAMAGE:
            return self.shortcuts.anchor(Weights(last, grid, state, found))
        self._reachable = last.number
        return False

    def _put_back(self, last: WeightVersion, grid: Grid, state: dict[str, Array]) -> bool:
        """Write its objects again. False = the version that it stands on is damaged, too."""
        encoder = self._encoder(grid, again=True)
        if last.parent is None:
            encoder.full(state)
            return self._is_sound(last)
        try:
            base = rebuild(self._log, last.parent, threads=self._config.threads)
        except DAMAGE:
            return False
        encoder.delta(base, state)
        return self._is_sound(last)

    def _commit(self, version: WeightVersion, encoded: Encoded, state: dict[str, Array] | None) -> WeightVersion:
        try:
            version = self._log.commit(version)
        except StoreError:
            self._pending = _Pending(version, encoded, state)
            raise
        self._advance(_Pending(version, encoded, state))
        return version

    def _settle(self) -> None:
        """Find out what became of a manifest that the store did not confirm."""
        if self._pending is None:
            return
        if self._log.newest() >= self._pending.version.number:
            self._log.commit(self._pending.version)  # writes nothing: it is there, or another trainer's is (Refused)
            self._advance(self._pending)
        self._pending = None

    def _advance(self, done: _Pending) -> None:
        """Bring the snapshot to what was committed."""
        self.latest = version = self._log.get(done.version.number)
        grid = self._log.grid(version)
        if done.state is not None:
            tensors = done.state
        else:
            assert self._base is not None
            tensors = self._base.tensors
            for array in tensors.values():
                array.flags.writeable = True
            for tile, patch in done.encoded.patches.items():
                scatter(grid.tiles[tile], patch.index, patch.new, tensors)
        for array in tensors.values():
            array.flags.writeable = False
        self._base = Weights(version, grid, tensors, done.encoded.digests)
        self.shortcuts.after(self._base)

    def _grid(self, state: State, dtypes: Mapping[str, str]) -> Grid:
        """The tiles of this log; Refused unless the state has the same names, dtypes and shapes as ever."""
        if self.latest is None:
            return Grid(table_of(state, dtypes), GridSpec(tp=self._config.tp))
        grid = self._log.grid(self.latest)
        _check_same_tensors(self.latest.number, grid, state, dtypes)
        return grid

    def _is_sound(self, version: WeightVersion) -> bool:
        try:
            for part in version.parts:
                self._log.blobs.get_ref(part.object)
        except DAMAGE:
            return False
        return True

    def _state_if_sound(self) -> Weights | None:
        """The base of a delta; None when the log is damaged: then a full version mends it."""
        try:
            return self.state()
        except DAMAGE:
            return None

    def _full_is_due(self) -> bool:
        """By schedule, or because a subscriber could not rebuild a version."""
        if self.latest is None:
            return True
        every, full = self._config.full_every, self.latest.last_full
        return bool(every and self.latest.number + 1 - full >= every) or self._log.wanted_full(full)

    def _repeated(
        self, last: WeightVersion, step: int, slots: tuple[int, ...], state: State, grid: Grid
    ) -> WeightVersion:
        same = (last.step, last.slots) == (step, slots)
        if same and grid.model_digest(digests(grid, state)) == last.model_digest:
            return last
        raise Refused(
            f"step {step} cannot follow version {last.number}, which is of step {last.step}: "
            "steps only grow. Resume from the newest version's checkpoint"
        )

    def _encoder(self, grid: Grid, *, again: bool) -> Encoder:
        objects = self._log.objects
        send = sender(self._log.blobs, objects, self._config, again=again, point="weights.object")
        return Encoder(grid, self._config, objects, send)

    def _object(self, data: bytes) -> Ref:
        return self._log.blobs.put_ref(self._log.objects, data, point="weights.object")

    def _file(self, data: bytes | None, before: Ref | None) -> Ref | None:
        return before if data is None else self._object(data)


def _contiguous(state: State) -> dict[str, Array]:
    """Arrays (also of a scalar) whose elements lie side by side."""
    return {name: np.asarray(array, order="C") for name, array in state.items()}


def _check_same_tensors(number: int, grid: Grid, state: State, dtypes: Mapping[str, str]) -> None:
    """A log holds one model: names, dtypes and shapes never change."""
    was = {name: (grid.dtypes[name], grid.shapes[name]) for name in grid.shapes}
    now = {name: (dtypes[name], array.shape) for name, array in state.items()}
    if was == now:
        return
    name = min(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    raise Refused(
        f"tensor {name!r} was {was.get(name, 'absent')} in version {number} and is {now.get(name, 'absent')} now; "
        "one log holds one model: start a new run"
    )


def _writer() -> str:
    try:
        return f"twinmill {release_of('twinmill')}"
    except PackageNotFoundError:
        return "twinmill"
