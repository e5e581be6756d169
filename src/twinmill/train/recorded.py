"""Recorded experts out of the store: what batch.samples calls an ExpertLoader."""

import numpy as np
import numpy.typing as npt

from twinmill.batch.samples import ExpertLoader, Lost
from twinmill.records.base import Ref
from twinmill.store.blobs import Blobs
from twinmill.store.errors import Corrupt, NotFound
from twinmill.store.routes import BadRoutes, decode


def expert_loader(blobs: Blobs) -> ExpertLoader:
    """Reads what rollout stores (store/routes.py). A missing or damaged object costs its sample, not the run."""

    def load(ref: Ref) -> npt.NDArray[np.unsignedinteger] | Lost:
        try:
            return decode(blobs.get_ref(ref))
        except (NotFound, Corrupt, BadRoutes) as problem:
            return Lost(str(problem))

    return load
