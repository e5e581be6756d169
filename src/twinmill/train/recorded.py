"""Recorded experts out of the store: what batch.samples calls an ExpertLoader."""

import io

import numpy as np
import numpy.typing as npt

from twinmill.batch.samples import ExpertLoader
from twinmill.records.base import Ref
from twinmill.store.blobs import Blobs
from twinmill.store.errors import Corrupt, NotFound


def expert_loader(blobs: Blobs) -> ExpertLoader:
    """Reads the .npy blobs that rollout stores. A missing or damaged one costs its sample, not the run: None."""

    def load(ref: Ref) -> npt.NDArray[np.unsignedinteger] | None:
        try:
            array = np.load(io.BytesIO(blobs.get_ref(ref)), allow_pickle=False)
        except (NotFound, Corrupt, ValueError):
            return None
        return array if array.dtype.kind == "u" else None

    return load
