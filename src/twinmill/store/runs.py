"""The folder of one run: where every file lies, who holds it, and how a second supervisor is kept out.

    <root>/<run_id>/
    ├── config.json            the full config that the run was started with
    ├── run.json               RunRecord
    ├── lock                   held by launch.lock while any process of the run lives
    ├── store/                 the logs and objects, unless the config names a bucket
    ├── clusters/<c>/mirror/   a cluster's read-through copy of the store
    ├── checkpoints/           the trainer's
    ├── logs/<process>.log     what each process printed
    ├── metrics/<process>.jsonl
    └── report.html

Sockets lie in a short folder of their own: a unix socket's path may have at most 107 bytes.
"""

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twinmill.records import wire
from twinmill.records.runs import RunRecord

from .errors import Corrupt, StoreError, StoreFull

SOCKET_PATH_BYTES = 107
_LONGEST_SOCKET_NAME = 40
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class RunFolder:
    """Paths of one run. Making the object touches nothing; use `create`, `open` or `latest`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @classmethod
    def create(cls, root: Path | str, record: RunRecord, config_json: bytes) -> "RunFolder":
        """A new run folder <root>/<run_id>. Its run.json is written last: a folder without one is no run."""
        run = cls(Path(root).expanduser() / record.run_id)
        if run.record_path.exists():
            raise StoreError(f"run folder {run.path} exists; resume it, or start under another name")
        with _kind_when_full(run.path):
            for folder in ("", "clusters", "checkpoints", "logs", "metrics"):
                (run.path / folder).mkdir(parents=True, exist_ok=True)
        run.write(run.config_path, config_json)
        run.write(run.record_path, wire.to_json(record) + b"\n")
        return run

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        """An existing run folder; StoreError when `path` is none."""
        run = cls(Path(path).expanduser())
        if not run.record_path.exists():
            raise StoreError(
                f"{run.path} is no run folder: it has no run.json; `ls {run.path.parent}` shows what is there"
            )
        return run

    @classmethod
    def latest(cls, root: Path | str) -> "RunFolder":
        """The run below `root` that was started last."""
        runs = [cls.open(path.parent) for path in Path(root).expanduser().glob("*/run.json")]
        if not runs:
            raise StoreError(f"no run below {Path(root).absolute()}; start one with `twinmill run RECIPE`")
        return max(runs, key=lambda run: (run.record.started, run.path.name))

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def record_path(self) -> Path:
        return self.path / "run.json"

    @property
    def record(self) -> RunRecord:
        try:
            return wire.from_json(self.record_path.read_bytes(), RunRecord)
        except wire.WireError as error:
            raise Corrupt(str(self.record_path), str(error)) from error

    @property
    def store_url(self) -> str:
        """URL of the run's own store, for when the config names none."""
        return f"file://{self.path / 'store'}"

    def mirror(self, cluster: str) -> Path:
        return self.path / "clusters" / cluster / "mirror"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    def metrics_path(self, process: str) -> Path:
        return self.metrics / f"{process}.jsonl"

    def log_path(self, process: str) -> Path:
        return self.path / "logs" / f"{process}.log"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    def write(self, path: Path, data: bytes) -> None:
        """Put `data` at `path` whole or not at all. StoreFull when the disk has no room."""
        staging = path.with_name(f"{path.name}#{os.getpid()}")
        try:
            with _kind_when_full(path):
                staging.write_bytes(data)
                os.replace(staging, path)
        finally:
            staging.unlink(missing_ok=True)

    def sockets(self) -> Path:
        """This run's folder for unix sockets: made when missing, this user's only, and short."""
        inside = self.path / "sockets"
        if len(os.fsencode(inside)) + 1 + _LONGEST_SOCKET_NAME <= SOCKET_PATH_BYTES:
            folder = inside
        else:
            short = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
            folder = Path(tempfile.gettempdir()) / f"twinmill-{os.getuid()}-{short}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                raise StoreError(f"socket folder {folder} belongs to somebody else; remove it or move the run folder")
            folder.chmod(0o700)
        return folder

    def socket(self, name: str) -> Path:
        """Path for the unix socket `name`; StoreError when it would be longer than the system allows."""
        path = self.sockets() / name
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise StoreError(
                f"socket path {path} is longer than {SOCKET_PATH_BYTES} bytes; give {name!r} a shorter name"
            )
        return path

    def check_room(self, need_bytes: int) -> None:
        """StoreFull unless the run's disk has `need_bytes` free: better said before any compute."""
        free = shutil.disk_usage(self.path).free
        if free < need_bytes:
            raise StoreFull(
                f"{self.path} has {free / 2**20:.0f} MiB free, the run wants {need_bytes / 2**20:.0f} MiB; "
                "free some, or choose another folder"
            )


@contextmanager
def _kind_when_full(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StoreFull(f"no room left to write {path} ({error.strerror}); free some and resume the run") from error
        raise
