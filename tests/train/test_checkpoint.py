import pytest
import torch

from twinmill.store import blobs
from twinmill.store.errors import Corrupt, NotFound
from twinmill.store.runs import RunFolder
from twinmill.train.checkpoint import Checkpoints


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(RunFolder(tmp_path))


def tensors(x):
    return {"a": torch.full((3, 2), float(x)), "b": torch.arange(4, dtype=torch.uint8), "n": torch.tensor(2.0)}


def test_what_is_loaded_is_what_was_saved(checkpoints):
    key = checkpoints.save(7, tensors(1.5))
    state = checkpoints.load(key)
    assert state.step == 7
    assert state.tensors.keys() == tensors(0).keys()
    assert all(torch.equal(v, tensors(1.5)[k]) for k, v in state.tensors.items())


def test_a_key_names_its_content(checkpoints):
    key = checkpoints.save(7, tensors(1))
    assert checkpoints.save(7, tensors(1)) == key
    other = checkpoints.save(7, tensors(2))
    assert other != key
    assert checkpoints.load(key).tensors["a"][0, 0] == 1
    assert checkpoints.keys() == sorted((key, other))


@pytest.mark.parametrize("keep", [0, 1, 7, 60])
def test_a_truncated_file_is_a_loud_error(checkpoints, tmp_path, keep):
    key = checkpoints.save(1, tensors(1))
    path = tmp_path / "checkpoints" / f"{key}.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(Corrupt, match=f"{keep} bytes where"):
        checkpoints.load(key)


def test_a_flipped_bit_is_a_loud_error(checkpoints, tmp_path):
    key = checkpoints.save(1, tensors(1))
    path = tmp_path / "checkpoints" / f"{key}.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Corrupt, match="digest"):
        checkpoints.load(key)


def test_a_broken_head_is_a_loud_error(checkpoints, tmp_path):
    key = checkpoints.save(1, tensors(1))
    (tmp_path / "checkpoints" / f"{key}.json").write_text('{"step": 1')
    with pytest.raises(Corrupt, match=key):
        checkpoints.load(key)


def test_a_writer_that_dies_before_the_head_leaves_no_checkpoint(checkpoints, tmp_path, monkeypatch):
    writes = []

    def die(self, path, data):
        if path.suffix == ".json":
            raise KeyboardInterrupt
        writes.append(path)
        path.write_bytes(data)

    monkeypatch.setattr(RunFolder, "write", die)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(3, tensors(1))
    assert writes
    assert checkpoints.keys() == []
    with pytest.raises(NotFound):
        checkpoints.load(writes[0].stem)


def test_pruning_keeps_the_last_and_the_needed(checkpoints, tmp_path):
    keys = [checkpoints.save(step, tensors(step)) for step in range(5)]
    (tmp_path / "checkpoints" / "00000009-dead.safetensors#123").write_bytes(b"left over")
    checkpoints.prune(2, {keys[0]})
    assert checkpoints.keys() == [keys[0], keys[3], keys[4]]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 6
    assert checkpoints.load(keys[0]).step == 0


def test_saving_is_a_named_write_for_the_crash_tests(checkpoints, monkeypatch):
    seen = []
    monkeypatch.setattr(blobs, "crash_points", seen.append)
    checkpoints.save(0, tensors(0))
    assert seen == ["checkpoint.save:before", "checkpoint.save:after"]
