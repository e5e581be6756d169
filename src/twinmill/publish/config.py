"""What can be set about weights and the road to them. Imports nothing heavy, as every process reads it."""

from msgspec import Struct


class PublishConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How versions are written."""

    full_every: int = 50
    """versions from one full version to the next, deltas between; 1 = every one is full, 0 = only the first"""
    codec: str = "gaps"
    """how a changed tensor is encoded in a delta: gaps or raw"""


class LinkConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The road between a cluster and the store, to simulate a far one."""

    bytes_per_s: float = 0.0
    """bandwidth, shared by all transfers of the process, either direction; 0 = unshaped"""
    latency_s: float = 0.0
    """seconds that every request waits before its first byte; 0 = none"""
