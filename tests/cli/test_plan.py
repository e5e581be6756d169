"""`twinmill weights plan`, as a person would ask, and its options beside what can be set."""

import json
from inspect import signature

from tests.cases.real import ROOT
from twinmill.cli.plan import plan
from twinmill.publish.plan import PlanConfig

from .conftest import Cli


def test_every_field_is_an_option() -> None:
    assert set(PlanConfig.__struct_fields__) == set(signature(plan).parameters) - {"model", "json"}


def test_the_plan_of_a_trillion(cli: Cli) -> None:
    said = cli("weights", "plan", "--params", "5e11", "--lr", "1e-6")
    assert said.code == 0, said.err
    assert "5e+11 in bf16, 1 TB" in said.out
    assert "5.53 GB, 1/181 of the model" in said.out
    rows = {line.split()[0]: line.split()[1:] for line in said.out.splitlines() if len(line.split("  ")) > 3}
    assert rows["encode"][:2] == ["1.528", "391"]
    assert float(rows["pause"][0]) < 1
    assert "encode binds: 1.53 of" in said.out
    assert "twice the trainer cores (0.76 s)" in " ".join(said.out.split())


def test_the_plan_as_json(cli: Cli) -> None:
    said = cli("weights", "plan", "--params", "1e12", "--format", "fp8_block/1", "--up-bytes-per-s", "1e6", "--json")
    found = json.loads(said.out)
    assert found["binds"] == "upload"
    assert found["stages"]["upload"]["limit"] == "the link's 0.001 GB/s"
    assert 1.1e9 < found["bytes_per_step"] < 1.4e9
    assert found["config"]["up_bytes_per_s"] == 1e6
    assert found["total_s"] > found["config"]["step_s"]
    late = cli("weights", "plan", "--params", "1e12", "--format", "fp8_block/1", "--up-bytes-per-s", "1e6")
    assert "does not keep up with a version every 300 s" in " ".join(late.out.split())


def test_the_plan_of_a_real_model(cli: Cli) -> None:
    said = cli("weights", "plan", "--model", ROOT / "models" / "nano", "--json")
    found = json.loads(said.out)
    assert 2.9e6 < found["params"] < 3.1e6
    assert 0.5 < found["config"]["expert_share"] < 1
    assert 0.001 < found["changed_frac"] < 0.02


def test_what_is_missing_is_said_in_one_line(cli: Cli) -> None:
    said = cli("weights", "plan")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "say how many weights the model has" in said.err
    assert cli("weights", "plan", "--params", "1e9", "--streams", "0").code == 2
    assert cli("weights", "plan", "--model", "/nowhere").code == 2


def test_recorded_experts_are_in_the_plan(cli: Cli) -> None:
    kimi = ("--params", "1.04e12", "--moe-layers", "60", "--experts", "384", "--top-k", "8", "--step-tokens", "2e7")
    text = " ".join(cli("weights", "plan", *kimi).out.split())
    assert "8 of 384 in 60 layers: 405.0 bytes a token (at least 399.6)" in text
    assert "8.1 GB a step from a cluster that plays 2e+07 tokens of it, 6.48 s of its link" in text
    late = " ".join(cli("weights", "plan", *kimi, "--routes-up-bytes-per-s", "1e7").out.split())
    assert "810 s of its link: more than the 300 s of a step" in late
    assert json.loads(cli("weights", "plan", *kimi, "--json").out)["routes"]["bytes_per_token"] == 405.0
