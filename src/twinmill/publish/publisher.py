"""The trainer's end of the weights log. Order of a publication: objects, then the manifest, which is the commit point.

A process that dies before the manifest leaves an object that no version names, which is harmless:
publishing the same again makes the same object. One that dies behind it has published, and `latest` says so
at the next start.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from twinmill.records.base import Ref
from twinmill.records.weights import TensorPatch, VersionKind, WeightVersion
from twinmill.store.blobs import Blobs

from .chain import DAMAGE, Weights, rebuild
from .codec import CODECS
from .config import PublishConfig
from .errors import Refused
from .manifest import WeightsLog, lineage_of
from .tensors import Array, State, bits_of, check_state, model_digest, pack_safetensors, tensor_digest


class _Body(NamedTuple):
    """The object of a version, and where its payloads lie."""

    object: Ref
    tensors: tuple[TensorPatch, ...]


class Publisher:
    """The one writer of the weights log of `run_id`. A second one is refused at its first commit."""

    def __init__(self, blobs: Blobs, run_id: str, config: PublishConfig | None = None) -> None:
        self._config = config or PublishConfig()
        if self._config.codec not in CODECS or self._config.codec == "same":
            raise Refused(f"publish.codec is {self._config.codec!r}; want raw or gaps")
        if self._config.full_every < 0:
            raise Refused(f"publish.full_every is {self._config.full_every}; want a number >= 0")
        self._log = WeightsLog(blobs)
        self._run_id = run_id
        self._base: Weights | None = None
        self.latest = self._log.latest()
        """the newest version of this log; None = none yet"""
        if self.latest is not None and self.latest.run_id != run_id:
            raise Refused(
                f"{blobs.url} holds the weights of run {self.latest.run_id!r}, not of {run_id!r}; "
                "give each run its own store"
            )

    def state(self) -> Weights | None:
        """What was published last, rebuilt from the log and verified; None = nothing yet."""
        if self._base is None and self.latest is not None:
            self._base = rebuild(self._log, self.latest.number)
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
        digests = {name: tensor_digest(array) for name, array in state.items()}
        model = model_digest((name, dtypes[name], array.shape, digests[name]) for name, array in state.items())
        last = self.latest
        if last is not None and step <= last.step:
            return self._repeated(last, step, tuple(slots), model)
        base = None if full or self._full_is_due() else self._state_if_sound()
        if last is not None:
            _check_same_tensors(last, state, dtypes)
        body = self._full(state, dtypes, digests) if base is None else self._delta(base, state, dtypes, digests)
        number = last.number + 1 if last else 0
        version = WeightVersion(
            number=number,
            kind=VersionKind.FULL if base is None else VersionKind.DELTA,
            run_id=self._run_id,
            parent=None if base is None else base.version.number,
            lineage=lineage_of(self._run_id, number, last.lineage if last else "", model),
            step=step,
            slots=tuple(slots),
            tensors=body.tensors,
            object=body.object,
            model_digest=model,
            config=self._file(config, last.config if last else None),
            tokenizer=self._file(tokenizer, last.tokenizer if last else None),
            checkpoint=checkpoint,
            quantisation=quantisation,
            created_at=time.time() if created_at is None else created_at,
            full_bytes=sum(array.nbytes for array in state.values()),
        )
        self._log.commit(version)
        self._base = Weights(version, _held(state, version, self._base))
        self.latest = version
        return version

    def mend(self, state: State, dtypes: Mapping[str, str]) -> bool:
        """Write the newest version's object anew, where a subscriber asked for help and it is damaged or gone. True = it
        was mended; False = no need, or the version that it stands on is damaged, too.

        `state` is what that version holds. The next version would be full and mend everything, but with a window of 0
        none comes before the subscribers have this one.
        """
        last = self.latest
        if last is None or not self._log.wanted_full(last.number) or self._is_sound(last):
            return False
        digests = {name: tensor_digest(array) for name, array in state.items()}
        if model_digest((name, dtypes[name], array.shape, digests[name]) for name, array in state.items()) != (
            last.model_digest
        ):
            raise Refused(f"version {last.number} cannot be mended with other weights than its own")
        if last.parent is None:
            self._full(state, dtypes, digests)
            return self._is_sound(last)
        try:
            base = rebuild(self._log, last.parent)
        except DAMAGE:
            return False
        self._delta(base, state, dtypes, digests)
        return self._is_sound(last)

    def _is_sound(self, version: WeightVersion) -> bool:
        try:
            self._log.blobs.get_ref(version.object)
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
        full = self.latest
        while full.parent is not None:
            full = self._log.get(full.parent)
        every = self._config.full_every
        if every and self.latest.number + 1 - full.number >= every:
            return True
        return self._log.wanted_full(full.number)

    def _repeated(self, last: WeightVersion, step: int, slots: tuple[int, ...], model: str) -> WeightVersion:
        if (last.step, last.slots, last.model_digest) == (step, slots, model):
            return last
        raise Refused(
            f"step {step} cannot follow version {last.number}, which is of step {last.step}: "
            "steps only grow. Resume from the newest version's checkpoint"
        )

    def _full(self, state: State, dtypes: Mapping[str, str], digests: Mapping[str, str]) -> _Body:
        data, starts = pack_safetensors(state, dtypes)
        patches = tuple(
            TensorPatch(
                name=name,
                dtype=dtypes[name],
                shape=state[name].shape,
                codec="raw",
                offset=starts[name],
                bytes=state[name].nbytes,
                before="",
                after=digests[name],
                changed=state[name].size,
            )
            for name in sorted(state)
        )
        return _Body(self._object(data), patches)

    def _delta(self, base: Weights, state: State, dtypes: Mapping[str, str], digests: Mapping[str, str]) -> _Body:
        before = {patch.name: patch.after for patch in base.version.tensors}
        patches, payloads, offset = [], [], 0
        for name in sorted(state):
            old, new = bits_of(base.tensors[name]), bits_of(state[name])
            codec = "same" if before[name] == digests[name] else self._config.codec
            payload = CODECS[codec].encode(old, new)
            if len(payload) > new.nbytes:
                codec, payload = "raw", CODECS["raw"].encode(old, new)
            patches.append(
                TensorPatch(
                    name=name,
                    dtype=dtypes[name],
                    shape=state[name].shape,
                    codec=codec,
                    offset=offset,
                    bytes=len(payload),
                    before=before[name],
                    after=digests[name],
                    changed=0 if codec == "same" else int(np.count_nonzero(old != new)),
                )
            )
            payloads.append(payload)
            offset += len(payload)
        return _Body(self._object(b"".join(payloads)), tuple(patches))

    def _object(self, data: bytes) -> Ref:
        return self._log.blobs.put_ref(self._log.objects, data, point="weights.object")

    def _file(self, data: bytes | None, before: Ref | None) -> Ref | None:
        return before if data is None else self._object(data)


def _held(state: State, version: WeightVersion, base: Weights | None) -> dict[str, Array]:
    """Copies of what changed, beside the copies that are held already."""
    known = {} if base is None else {patch.name: patch.after for patch in base.version.tensors}
    held = {}
    for patch in version.tensors:
        if base is not None and known.get(patch.name) == patch.after:
            held[patch.name] = base.tensors[patch.name]
        else:
            held[patch.name] = bits_of(state[patch.name]).copy().reshape(patch.shape)
            held[patch.name].flags.writeable = False
    return held


def _check_same_tensors(last: WeightVersion, state: State, dtypes: Mapping[str, str]) -> None:
    """A log holds one model: names, dtypes and shapes never change."""
    was = {patch.name: (patch.dtype, patch.shape) for patch in last.tensors}
    now = {name: (dtypes[name], array.shape) for name, array in state.items()}
    if was == now:
        return
    name = min(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    raise Refused(
        f"tensor {name!r} was {was.get(name, 'absent')} in version {last.number} and is {now.get(name, 'absent')} now; "
        "one log holds one model: start a new run"
    )
