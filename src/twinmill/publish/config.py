"""What can be set about weights and the road to them. Imports nothing heavy, as every process reads it."""

from msgspec import Struct

from twinmill.store.flight import TransferConfig


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


class MirrorConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster's copy of the weights on its own disk."""

    cap_bytes: int = 0
    """most bytes of objects that are kept, those used longest ago go first; what is leased stays above it; 0 = unbounded"""
    transfer: TransferConfig = TransferConfig()
    """how objects are fetched"""


class LeaseConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a reader says what it still needs."""

    ttl_s: float = 900.0
    """seconds for which its versions are kept after its last beat; it beats three times as often"""


class CollectConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stays in the bucket. Manifests always do."""

    keep_chains: int = 2
    """newest full versions that are kept, with everything behind them"""
    keep_versions: int = 16
    """newest versions that are kept, whatever they stand on"""
    keep: tuple[int, ...] = ()
    """versions that are kept for ever"""
    grace_s: float = 3600.0
    """seconds between an object's being found needless and its removal; at least the longest lease, whatever is set"""
    skew_s: float = 1800.0
    """seconds by which readers' clocks may differ from the collector's; S3 serves no clock that is wrong by over 900 s"""
