from pathlib import Path

import pytest
from safetensors import safe_open

from twinmill.publish.errors import Broken, Refused
from twinmill.publish.materialize import materialize, verify
from twinmill.store.blobs import Blobs

from .toys import DTYPES, Trainer


@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_any_version_becomes_a_folder(blobs: Blobs, tmp_path: Path, number: int) -> None:
    trainer = Trainer(blobs, full_every=3)
    for _ in range(5):
        trainer.publish()
    folder = tmp_path / "out" / f"v{number}"
    version = materialize(blobs, number, folder)
    assert version.number == number
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "config.json").read_bytes() == b'{"model_type": "toy"}'
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name, dtype in DTYPES.items():
            assert file.get_slice(name).get_dtype() == dtype
        norm = file.get_tensor("model.norm.weight")
    assert norm.numpy().tobytes() == trainer.states[number]["model.norm.weight"].tobytes()
    with pytest.raises(FileExistsError, match="name a new folder"):
        materialize(blobs, number, folder)


def test_a_version_that_cannot_be_rebuilt_leaves_no_folder(local: Blobs, tmp_path: Path) -> None:
    trainer = Trainer(local)
    version = trainer.publish()
    local.put(version.parts[0].object.key, b"?")
    with pytest.raises(Broken, match="bytes"):
        materialize(local, 0, tmp_path / "v0")
    with pytest.raises(Refused, match="version 1 does not exist"):
        materialize(local, 1, tmp_path / "v1")
    assert not (tmp_path / "v0").exists()
    assert not (tmp_path / "v1").exists()


def test_verify_reports_on_every_version(blobs: Blobs) -> None:
    trainer = Trainer(blobs, full_every=3)
    for number in range(5):
        trainer.publish(slots=(2 * number, 2 * number + 1))
    reports = list(verify(blobs))
    assert [(report.number, report.kind, report.slots, report.ok) for report in reports] == [
        (0, "full", 2, True),
        (1, "delta", 2, True),
        (2, "delta", 2, True),
        (3, "full", 2, True),
        (4, "delta", 2, True),
    ]
    assert 0 < reports[1].changed_frac < 0.05 < reports[0].changed_frac == 1
    assert reports[1].payload_bytes < reports[0].payload_bytes
    assert [report.number for report in verify(blobs, 2, 3)] == [2, 3]


def test_verify_names_what_is_broken_and_what_stands_on_it(local: Blobs) -> None:
    trainer = Trainer(local)
    made = [trainer.publish(full=number == 4) for number in range(6)]
    local.delete(made[2].parts[0].object.key)
    reports = list(verify(local))
    assert [report.ok for report in reports] == [True, True, False, False, True, True]
    assert made[2].parts[0].object.key in reports[2].problem
    assert "follows version 2, but nothing is held" in reports[3].problem
    assert [report.ok for report in verify(local, 3)] == [False, True, True]


def test_verify_survives_a_lost_manifest(local: Blobs) -> None:
    trainer = Trainer(local)
    for _ in range(4):
        trainer.publish()
    key = "weights/manifests/0000000001"
    local.put(key, local.get(key)[:-1])
    reports = list(verify(local, 0, 3))
    assert [report.ok for report in reports] == [True, False, False, False]
    assert (reports[1].kind, key in reports[1].problem) == ("?", True)


def test_broken_says_where() -> None:
    assert str(Broken(3, "why", "w")) == "version 3, tensor 'w': why"
    assert str(Broken(3, "why")) == "version 3: why"
