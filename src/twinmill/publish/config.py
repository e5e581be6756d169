"""What can be set about weights and the road to them. Imports nothing heavy, as every process reads it."""

from collections.abc import Iterator

from msgspec import Struct

from twinmill.store.flight import TransferConfig

CODECS = ("wdx", "gaps", "raw")


class PublishConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How versions are written."""

    full_every: int = 0
    """versions from one full version to the next, deltas between; 1 = every one is full, 0 = only the first"""
    codec: str = "wdx"
    """how the tiles of a delta are encoded: wdx (smallest), gaps (decodes faster, inside a rack) or raw"""
    object_bytes: int = 32 << 20
    """bytes after which a version's next object is begun: they are sent and fetched side by side; 0 = all in one"""
    skip_every: tuple[int, ...] = (16, 256)
    """versions that a skip-delta spans, each made when that many have passed, beside the training; () = none. Each
    costs memory for one more copy of the model"""
    anchor_when: float = 0.5
    """share of a full version's bytes that the way to the newest may cost before an anchor is made; 0 = never"""
    tp: int = 8
    """largest tensor-parallel degree whose ranks, and those of its divisors, can each follow the log by themselves"""
    threads: int = 0
    """that encode; 0 = one per processor"""
    transfer: TransferConfig = TransferConfig()
    """how objects are sent"""


def problems_of(config: PublishConfig) -> Iterator[str]:
    """What cannot be about it."""
    wanted = {
        f"codec is {config.codec!r}; want {', '.join(CODECS)}": config.codec in CODECS,
        f"full_every is {config.full_every}; want a number >= 0": config.full_every >= 0,
        f"object_bytes is {config.object_bytes}; want a number >= 0": config.object_bytes >= 0,
        f"skip_every is {config.skip_every}; want numbers >= 2": min(config.skip_every, default=2) >= 2,
        f"anchor_when is {config.anchor_when}; want a number >= 0": config.anchor_when >= 0,
        f"tp is {config.tp}; want a number >= 1": config.tp >= 1,
        f"threads is {config.threads}; want a number >= 0": config.threads >= 0,
    }
    return (f"publish.{problem}" for problem, holds in wanted.items() if not holds)


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
    whole: bool = False
    """fetch the whole object when a range of one is read that is not here, for several readers of one folder"""
    transfer: TransferConfig = TransferConfig()
    """how objects are fetched"""


class LeaseConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a reader says what it still needs."""

    ttl_s: float = 900.0
    """seconds for which its versions are kept after its last beat; it beats three times as often"""


class CollectConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stays in the bucket. Manifests always do."""

    every: int = 0
    """versions from one round of the trainer's collector to the next; 0 = nothing is ever removed"""
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
