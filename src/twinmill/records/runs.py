"""RunRecord: what a run was started with."""

from .base import Record


class RunRecord(Record):
    run_id: str
    recipe: str
    config_digest: str
    revision: str
    """code revision, or "unknown" outside a checkout"""
    seed: int
    started: float
    twinmill: str
    python: str


class Beat(Record):
    """A cluster's sign of life, put over its predecessor every few seconds."""

    cluster: str
    at: float
    serving: int
    open_slots: tuple[int, ...] = ()
