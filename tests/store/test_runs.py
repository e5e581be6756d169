import errno
import os
import socket
from pathlib import Path

import pytest
from msgspec import structs

from twinmill.records.runs import RunRecord
from twinmill.store.errors import Corrupt, StoreError, StoreFull
from twinmill.store.runs import SOCKET_PATH_BYTES, RunFolder

RECORD = RunRecord(
    run_id="r1",
    recipe="laptop",
    config_digest="d",
    revision="unknown",
    seed=0,
    started=1.0,
    twinmill="0.1.0",
    python="3.11",
)


def create(root: Path, run_id: str = "r1", started: float = 1.0) -> RunFolder:
    return RunFolder.create(root, structs.replace(RECORD, run_id=run_id, started=started), b"{}")


def test_a_created_run_can_be_opened(tmp_path: Path) -> None:
    run = create(tmp_path)
    again = RunFolder.open(tmp_path / "r1")
    assert again.record == RECORD
    assert again.config_path.read_bytes() == b"{}"
    assert again.store_url == f"file://{tmp_path}/r1/store"
    assert run.mirror("c0") == tmp_path / "r1/clusters/c0/mirror"
    assert run.metrics_path("trainer") == run.metrics / "trainer.jsonl"
    assert run.log_path("trainer").parent.is_dir()


def test_a_run_is_never_started_over(tmp_path: Path) -> None:
    create(tmp_path)
    with pytest.raises(StoreError, match="exists; resume it"):
        create(tmp_path)


def test_the_latest_run_is_the_one_started_last(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run below"):
        RunFolder.latest(tmp_path)
    create(tmp_path, "b", started=5.0)
    create(tmp_path, "z", started=2.0)
    (tmp_path / "half").mkdir()  # killed before its run.json
    assert RunFolder.latest(tmp_path).path.name == "b"


def test_what_is_no_run_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no run\.json"):
        RunFolder.open(tmp_path)
    run = create(tmp_path)
    run.record_path.write_bytes(b'{"record": "RunRecord", "run_id": 3}')
    with pytest.raises(Corrupt, match=r"run\.json.*run_id"):
        _ = run.record


@pytest.mark.parametrize("depth", [1, 12])
def test_sockets_fit_however_deep_the_run_lies(tmp_path: Path, depth: int) -> None:
    run = create(tmp_path.joinpath(*["a-long-folder-name"] * depth))
    path = run.socket("engine-cluster-with-a-long-name.sock")
    assert len(os.fsencode(path)) <= SOCKET_PATH_BYTES
    assert path.parent.stat().st_mode & 0o077 == 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.unlink()
    assert run.socket("engine-cluster-with-a-long-name.sock") == path, "stable across processes"
    with pytest.raises(StoreError, match="shorter name"):
        run.socket("x" * 100)
    path.parent.rmdir()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(tmp_path)
    run.write(run.report_path, b"old")

    def full(self: Path, data: bytes) -> int:
        with open(self, "wb") as file:
            file.write(data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreFull, match=r"report\.html .*free some and resume"):
        run.write(run.report_path, b"new report")
    assert run.report_path.read_bytes() == b"old"
    assert [path.name for path in run.path.iterdir() if "#" in path.name] == []


def test_room_is_checked_before_it_is_needed(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.check_room(0)
    with pytest.raises(StoreFull, match="MiB free, the run wants"):
        run.check_room(1 << 60)
