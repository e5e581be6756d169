"""The trainer's end of the weights log: what rl.Versions asks for, on publish.Publisher."""

from collections.abc import Mapping, Sequence

import numpy.typing as npt

from twinmill.publish import CollectConfig
from twinmill.publish.chain import versions
from twinmill.publish.collect import Collector
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.publisher import PublishConfig, Publisher
from twinmill.records.weights import Collection, WeightVersion
from twinmill.store.blobs import Blobs


class RunVersions:
    """The versions of one run. `config`, `tokenizer`: the bytes of config.json and tokenizer.json, for version 0."""

    def __init__(
        self,
        blobs: Blobs,
        run_id: str,
        config: bytes,
        tokenizer: bytes | None,
        publish: PublishConfig,
        collect: CollectConfig | None = None,
    ) -> None:
        """collect: None = nothing is ever removed."""
        self._log = WeightsLog(blobs)
        self._every = collect.every if collect else 0
        self._collector = Collector(WeightsLog(blobs), collect, transfer=publish.transfer) if self._every else None
        self._publisher = Publisher(blobs, run_id, publish)
        self._config, self._tokenizer = config, tokenizer

    def history(self) -> Sequence[WeightVersion]:
        return list(versions(self._log))

    def mend(self, bits: Mapping[str, npt.NDArray], dtypes: Mapping[str, str]) -> bool:
        return self._publisher.mend(bits, dtypes)

    def wanted(self) -> bool:
        newest = self._publisher.latest
        return newest is not None and self._log.wanted_full(newest.number)

    def publish(
        self,
        bits: Mapping[str, npt.NDArray],
        dtypes: Mapping[str, str],
        *,
        step: int,
        slots: tuple[int, ...],
        checkpoint: str | None,
    ) -> WeightVersion:
        first = step == 0
        return self._publisher.publish(
            bits,
            dtypes,
            step=step,
            slots=slots,
            checkpoint=checkpoint,
            config=self._config if first else None,
            tokenizer=self._tokenizer if first else None,
        )

    def close(self, deadline_s: float = 60.0) -> None:
        """Let the shortcuts that are being made be finished."""
        self._publisher.close(deadline_s)

    def collect(self) -> Collection | None:
        """Between two publications: remove what nobody needs, when a round is due. What it did; None = nothing.

        A round waits for the next version while a shortcut's objects are on their way: no record names them yet.
        """
        newest = self._publisher.latest
        due = self._collector is not None and newest is not None and newest.number % self._every == 0
        if self._collector is None or not due or self._publisher.shortcuts.busy:
            return None
        return self._collector.collect()
