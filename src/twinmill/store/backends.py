"""Which client serves which URL, and how long it may keep silent."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct
from obstore.store import LocalStore, MemoryStore, ObjectStore, S3Store, from_url

from .errors import StoreRefused


class StoreConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the two logs and everything big live."""

    url: str = ""
    """file:///dir, a path, memory://, s3://bucket/prefix, gs://..., az://...; "" = the run's own store/"""
    deadline_s: float = 30.0
    """seconds of silence from a bucket, retries included, after which it counts as lost"""
    transfer_s: float = 600.0
    """longest time in seconds that one request may take while bytes still flow"""
    endpoint: str = ""
    """URL of an S3-compatible server; "" = AWS. http:// is allowed only when spelled here"""
    region: str = ""
    """"" = the client's own environment, else us-east-1"""
    access_key_id: str = ""
    """"" = the client's own chain: environment, then the machine's role. Safer: configs are recorded"""
    secret_access_key: str = ""
    fsync: bool = False
    """local folder only: flush object and folder to the disk before a write returns (survives power loss)"""


class Backend(NamedTuple):
    store: ObjectStore
    """the client of single calls: tries again by itself within the deadline"""
    bulk: ObjectStore
    """the client of transfers: one try, whose time and repetition are the transfer's own business"""
    url: str
    root: Path | None = None
    """the local folder; None for memory and buckets"""


def _patient(config: StoreConfig) -> dict[str, Any]:
    """Bounds for a bucket: a try may be silent for half the deadline, and none starts later than that.

    The client counts the time of sending as silence, too, so a single put must be through within half the deadline.
    """
    half = timedelta(seconds=config.deadline_s / 2)
    return {
        "client_options": {**_reach(config), "read_timeout": half, "timeout": _longest(config)},
        "retry_config": {
            "max_retries": 10,
            "retry_timeout": half,
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": min(half / 4, timedelta(seconds=2)),
                "base": 2,
            },
        },
    }


def _single(config: StoreConfig) -> dict[str, Any]:
    """No retries, and no bound on silence (see above): a transfer sees every failure and sets every deadline itself."""
    return {
        "client_options": {**_reach(config), "timeout": _longest(config)},
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},
    }


def _reach(config: StoreConfig) -> dict[str, Any]:
    return {
        "connect_timeout": timedelta(seconds=min(config.deadline_s / 2, 5.0)),
        "allow_http": config.endpoint.startswith("http://"),
    }


def _longest(config: StoreConfig) -> timedelta:
    return timedelta(seconds=max(config.transfer_s, config.deadline_s / 2))


def _open_local(url: str, config: StoreConfig) -> Backend:
    root = Path(url.removeprefix("file://")).expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreRefused(f"cannot make the store folder {root}: {error}") from error
    store = LocalStore(root)
    return Backend(store, store, f"file://{root}", root)


def _open_memory(url: str, config: StoreConfig) -> Backend:
    store = MemoryStore()
    return Backend(store, store, url)


def _open_s3(url: str, config: StoreConfig) -> Backend:
    keys = {
        "endpoint": config.endpoint,
        "region": config.region,
        "access_key_id": config.access_key_id,
        "secret_access_key": config.secret_access_key,
    }
    parts = urlsplit(url)
    if not parts.netloc:
        raise StoreRefused(f"store {url!r} names no bucket; want s3://bucket/prefix")
    given = {name: value for name, value in keys.items() if value}
    prefix = parts.path.strip("/") or None
    store, bulk = (
        S3Store(parts.netloc, prefix=prefix, **given, **bounds)  # type: ignore[arg-type]
        for bounds in (_patient(config), _single(config))
    )
    return Backend(store, bulk, url)


def _open_other_bucket(url: str, config: StoreConfig) -> Backend:
    given = [name for name in ("endpoint", "region", "access_key_id", "secret_access_key") if getattr(config, name)]
    if given:
        raise StoreRefused(f"store {url!r}: {', '.join(given)} is for s3:// only; set this cloud's own environment")
    return Backend(from_url(url, **_patient(config)), from_url(url, **_single(config)), url)


_SCHEMES: dict[str, Callable[[str, StoreConfig], Backend]] = {
    "": _open_local,
    "file": _open_local,
    "memory": _open_memory,
    "s3": _open_s3,
    "gs": _open_other_bucket,
    "az": _open_other_bucket,
}


def open_backend(url: str, config: StoreConfig) -> Backend:
    """The client for `url`. StoreRefused for a scheme, bucket or setting that cannot be."""
    if config.deadline_s <= 0:
        raise StoreRefused(f"store.deadline_s is {config.deadline_s}; want seconds > 0")
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES:
        raise StoreRefused(f"store {url!r}: unknown scheme {scheme!r}; want one of {', '.join(filter(None, _SCHEMES))}")
    return _SCHEMES[scheme](url, config)
