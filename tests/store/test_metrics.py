import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinmill.records.samples import StepReport
from twinmill.store.errors import Corrupt
from twinmill.store.metrics import MetricsWriter, TensorboardSink, WandbSink, numbers, read_file, read_metrics


def test_what_is_written_is_read_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr("twinmill.store.metrics.time.time", lambda: next(clock))
    with MetricsWriter(tmp_path / "m" / "trainer.jsonl") as trainer:
        trainer.write("step", version=1, loss={"pg": 0.5})
    with MetricsWriter(tmp_path / "m" / "engine-c0.jsonl") as engine:
        engine.write("swap", pause_s=0.01)
        engine.write("step", version=0)
    assert read_metrics(tmp_path / "m") == [
        {"t": 1.0, "kind": "swap", "pause_s": 0.01, "process": "engine-c0"},
        {"t": 2.0, "kind": "step", "version": 0, "process": "engine-c0"},
        {"t": 3.0, "kind": "step", "version": 1, "loss": {"pg": 0.5}, "process": "trainer"},
    ]
    assert [line["version"] for line in read_metrics(tmp_path / "m", "step")] == [0, 1]
    assert read_metrics(tmp_path / "nothing") == []


def test_records_and_odd_numbers_can_be_written(tmp_path: Path) -> None:
    report = StepReport(
        step=1, version=1, source="groups", samples=0, tokens=0, loss={}, grad_norm=math.nan, lr=0.0, seconds={}
    )
    with MetricsWriter(tmp_path / "a.jsonl") as writer:
        writer.write("step", report=report, infinite=math.inf)
    (line,) = read_file(tmp_path / "a.jsonl")
    assert line["report"]["step"] == 1
    assert (line["report"]["grad_norm"], line["infinite"]) == (None, None)


@given(st.integers(0, 200))
def test_a_file_cut_at_any_byte_loses_only_its_last_line(tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    with MetricsWriter(path) as writer:
        for index in range(5):
            writer.write("x", index=index)
    whole = path.read_bytes()
    path.write_bytes(whole[:end])
    complete = whole[:end].count(b"\n")
    assert [line["index"] for line in read_file(path)] == list(range(complete))
    with MetricsWriter(path) as writer:  # the restarted process
        writer.write("x", index=99)
    assert [line["index"] for line in read_file(path)] == [*range(complete), 99]


def test_damage_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"t":1,"kind":"x"}\n{"t":2,"ki\n{"t":3,"kind":"x"}\n')
    with pytest.raises(Corrupt, match="line 2"):
        list(read_file(tmp_path / "a.jsonl"))


def test_numbers_of_nested_fields() -> None:
    fields = {"loss": {"pg": 1, "kl": 0.5}, "name": "x", "on": True, "none": None}
    assert dict(numbers("step", fields)) == {"step/loss/pg": 1.0, "step/loss/kl": 0.5, "step/on": 1.0}


class _Recorder:
    def __init__(self, *args: object, **named: object) -> None:
        self.made_with = (args, named)
        self.calls: list[tuple] = []

    def __getattr__(self, name: str):
        return lambda *args, **named: self.calls.append((name, args, named))


def test_tensorboard_gets_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[_Recorder] = []
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda folder: made.append(_Recorder(folder)) or made[-1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with MetricsWriter(tmp_path / "a.jsonl", (TensorboardSink(tmp_path / "tb"),)) as writer:
        writer.write("step", step=7, reward=0.5)
        writer.write("swap", pause_s=0.25)
        writer.write("swap", pause_s=0.5)
    scalars = [args[:3] for name, args, _ in made[0].calls if name == "add_scalar"]
    assert scalars == [
        ("step/step", 7.0, 7),
        ("step/reward", 0.5, 7),
        ("swap/pause_s", 0.25, 0),
        ("swap/pause_s", 0.5, 1),
    ]
    assert made[0].calls[-1][0] == "close"


def test_wandb_is_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _Recorder()
    seen: list[dict] = []
    module = SimpleNamespace(init=lambda **named: seen.append(named) or run)
    monkeypatch.setitem(sys.modules, "wandb", module)  # type: ignore[arg-type]
    with MetricsWriter(tmp_path / "a.jsonl", (WandbSink(tmp_path / "wb", "run-1"),)) as writer:
        writer.write("step", reward=0.5)
    assert seen[0]["mode"] == "offline"
    assert run.calls[0][1][0]["step/reward"] == 0.5
    assert run.calls[-1][0] == "finish"


def test_a_missing_sink_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r"pip install 'twinmill\[wandb\]'"):
        WandbSink(tmp_path, "run-1")


def test_lines_reach_the_file_at_once(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "a.jsonl")
    writer.write("x", a=1)
    assert json.loads((tmp_path / "a.jsonl").read_text())["a"] == 1
    writer.close()
