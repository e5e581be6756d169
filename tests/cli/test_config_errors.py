"""A wrong configuration costs one line: exit code 2, the key, the mend, before any compute and without a run folder."""

import re
from pathlib import Path

import msgspec
import pytest

from tests.cases.real import SMOKE, twinmill
from tests.model.sizes import KIMI
from twinmill.model.config import write_config

from .conftest import Cli

OFF = ("midtrain=null", "experts=null", "sft=null")
ALL_OFF = (*OFF, "rl=null", "clusters=[]", "evaluation=null")
WRONG = {
    "unknown key": (("rl.windw.window=0",), "unknown key rl.windw: did you mean window?"),
    "unknown leaf": (("rl.window.windo=0",), "unknown key rl.window.windo: did you mean window?"),
    "unknown block": (("bogus=1",), "unknown key bogus: there are .*taskset"),
    "unknown item": (("clusters.3.name=x",), "unknown key clusters.3"),
    "unknown key in a value": (('rl.window={"windo": 1}',), "rl.window: object contains unknown field `windo`"),
    "no override": (("rl.steps",), "'rl.steps' is no override: write block.key=value"),
    "below an off block": (("sft=null", "sft.steps=3"), "sft.steps has no effect: sft is off in this recipe"),
    "of nobody": (("midtrain=null", "corpus.row_tokens=9"), "corpus.row_tokens has no effect: midtrain is off"),
    "of a phase that is off": (
        ("rl=null", "clusters=[]", "evaluation=null", "publish.full_every=3"),
        "publish.full_every has no effect: rl is off; leave it out",
    ),
    "unused by policy": (("rl.window.age_limit=1",), "rl.window.age_limit has no effect with policy in_order.*None"),
    "wrong type": (("rl.steps=many",), "rl.steps: expected `int`, got `str`"),
    "wrong type of a block": (("clusters=3",), "clusters: expected `array`, got `int`"),
    "wrong type of a number": (("harness.temperature=hot",), "harness.temperature: expected `float`, got `str`"),
    "wrong name": (("rl.window.policy=random",), "rl.window: policy is 'random'; choose one of in_order, ready_first"),
    "wrong parity": (("rl.parity=strong",), "rl.parity: invalid enum value 'strong'"),
    "bits of two kinds": (
        ("rl.parity=core", "engine.backend=torch"),
        "rl.parity is core, but (engine.backend is torch: their bits differ|this installation has no native core)",
    ),
    "no such backend": (("engine.backend=gpu",), "engine: engine.backend = 'gpu': there are core, torch"),
    "below 0": (("rl.window.window=-1",), "rl.window: window and age_limit must be at least 0"),
    "no machines": (("rollout.machines=0",), "rollout.machines is 0; it must be at least 1"),
    "no turns": (("harness.turns=0",), "harness.turns is 0; it must be at least 1"),
    "no deadline": (("hang_s=0",), "hang_s is 0.0; it must be above 0, in seconds"),
    "nothing on": (ALL_OFF, "nothing to do: .* switch one on"),
    "sft alone": (("experts=null",), "sft is on but experts is off: .* set experts, or sft to None"),
    "experts alone": (("sft=null",), "experts is on but sft is off: .* set experts to None"),
    "experts of another set": (
        ("taskset=humaneval",),
        "experts plays tinyrepo and unopened only, but taskset is humaneval",
    ),
    "clusters alone": (("rl=null", "evaluation=null"), "clusters are given but rl is off: .* set clusters to"),
    "evaluation alone": (("rl=null", "clusters=[]"), "evaluation is on but rl is off: .* set evaluation to None"),
    "no clusters": (("clusters=[]",), "rl is on but clusters is empty: name at least one"),
    "twins": (('clusters=[{"name": "a"}, {"name": "a"}]',), "clusters: names must be different"),
    "groups of one": (("rollout.group_size=1",), "rollout.group_size is 1: .* use at least 2"),
    "temperatures": (("harness.temperature=0.5",), "rl.compute.temperature is 1.0 and harness.temperature is 0.5"),
    "greedy": (("harness.temperature=0", "rl.compute.temperature=0"), "harness.temperature is 0: .* use 1"),
    "replay": (("harness.experts=false",), "rl.preparation.replay is on but harness.experts is off: .* switch both"),
    "starved clusters": (
        (*OFF, 'clusters=[{"name": "a"}, {"name": "b"}, {"name": "c"}]', "rl.window.window=0"),
        "rl.window.groups_per_step is below the number of clusters",
    ),
    "remote without a server": (
        ("machine=remote",),
        "remote.url must be http://HOST:PORT of a `twinmill machines serve`",
    ),
    "remote without a token": (
        ("machine=remote", "remote.url=http://127.0.0.1:8400", "remote.token_env=NO_SUCH_VARIABLE"),
        "the environment variable NO_SUCH_VARIABLE is empty; set it to a token that the server knows",
    ),
    "a token in the config": (
        ("machine=remote", "remote.url=http://127.0.0.1:8400", "remote.token_env=s3cr-et"),
        "remote.token_env must be the NAME of an environment variable, and no token",
    ),
    "no lease": (
        ("machine=remote", "remote.url=http://h:1", "remote.lease_s=0"),
        "remote.lease_s is 0.0; .* at least 1",
    ),
    "a server for nobody": (
        ("remote.url=http://h:1",),
        "remote has no effect: machine is namespace; set machine to remote",
    ),
    "no model": (("model=/nowhere",), "model: no Hugging Face folder at /nowhere"),
    "long context": (
        ("engine.context_tokens=4096",),
        "engine.context_tokens is 4096, but the model has 1024 positions",
    ),
    "short context": (
        ("engine.context_tokens=128",),
        "engine.context_tokens is 128, but tasks of tinyrepo:0 use up to",
    ),
    "odd context": (("engine.context_tokens=100",), "engine: engine.context_tokens = 100: must be a positive multiple"),
    "no task set": ((*OFF, "taskset=bogus"), "taskset: no task set 'bogus'; there are tinyrepo"),
    "no level": ((*OFF, "taskset=tinyrepo:9"), "taskset: tinyrepo has levels 0 to 3, not 9"),
    "no split": (("split=dev",), "split: tinyrepo has splits train, heldout"),
    "no held-out split": (("evaluation.split=dev",), "evaluation.split: tinyrepo has splits"),
    "no machine": (
        ("machine=cloud",),
        "machine: there is no 'cloud'; choose one of namespace, native, bubblewrap, remote, fake",
    ),
    "no codec": (("publish.codec=zip",), "publish.codec is 'zip'; want wdx, gaps, raw"),
    "no sink": (('sinks=["paper"]',), "sinks: there is no 'paper'; choose of tensorboard, wandb"),
}


def one_line(code: int, err: str, wanted: str) -> None:
    assert code == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert re.search(wanted, err), err


@pytest.mark.parametrize(("overrides", "wanted"), WRONG.values(), ids=WRONG.keys())
def test_an_override_that_cannot_be(cli: Cli, agent: Path, tmp_path: Path, overrides: tuple[str, ...], wanted: str):
    words = [word for item in (f"model={agent}", *overrides) for word in ("--set", item)]
    said = cli("run", SMOKE, "--root", tmp_path / "runs", *words)
    one_line(said.code, said.err, wanted)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", ["engine.backend", "rl.parity"])
def test_a_core_that_nobody_built(cli: Cli, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str):
    monkeypatch.setattr("twinmill.model.core.available", lambda: False)
    said = cli("run", SMOKE, "--root", tmp_path / "runs", "--set", f"model={agent}", "--set", f"{key}=core")
    one_line(said.code, said.err, f"{key} is core, but this installation has no native core")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", ["engine.backend", "rl.parity"])
def test_a_model_that_the_core_lacks(cli: Cli, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str):
    monkeypatch.setattr("twinmill.model.core.available", lambda: True)
    latent = tmp_path / "latent"
    latent.mkdir()
    write_config(msgspec.structs.replace(KIMI, vocab=1280), latent)
    (latent / "tokenizer.json").write_bytes((agent / "tokenizer.json").read_bytes())
    said = cli("run", SMOKE, "--root", tmp_path / "runs", "--set", f"model={latent}", "--set", f"{key}=core")
    one_line(said.code, said.err, f"{key} is core, but the native core has no multi-head latent attention")
    assert not (tmp_path / "runs").exists()


def test_a_command_for_one_phase_says_what_it_does_not_read(cli: Cli, agent: Path, tmp_path: Path):
    said = cli("rl", SMOKE, "--root", tmp_path / "runs", "--set", f"model={agent}", "--set", "corpus.max_bytes=9")
    one_line(said.code, said.err, "corpus.max_bytes has no effect: midtrain is off")
    assert not (tmp_path / "runs").exists()


def test_a_dense_model_cannot_replay(cli: Cli, agent: Path, tmp_path: Path):
    dense = tmp_path / "dense"
    dense.mkdir()
    (dense / "tokenizer.json").write_bytes((agent / "tokenizer.json").read_bytes())
    config = '{"model_type": "qwen3", "vocab_size": 64, "hidden_size": 8, "intermediate_size": 8, "head_dim": 4,'
    config += (
        '"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048}'
    )
    (dense / "config.json").write_text(config)
    said = cli("run", SMOKE, "--root", tmp_path / "runs", "--set", f"model={dense}")
    one_line(said.code, said.err, "rl.preparation.replay is on but the model is dense: .* set it to False")


RECIPES = {
    "a key that is not there": ("Rl(stepss=3)", r"line 9: .*'stepss': did you mean steps\?"),
    "a value that cannot be": ("Rl(window=Window(window=-1))", "line 9: window and age_limit must be at least 0"),
    "a wrong type": ('Rl(steps="three")', "rl.steps: expected `int`, got `str`"),
}
RECIPE = """
from twinmill.batch.window import Window
from twinmill.cli.config import Cluster, RunConfig
from twinmill.train.rl import Rl


def recipe():
    return RunConfig(name="x", model={model!r}, clusters=(Cluster(name="a"),),
                     rl={rl})
"""


@pytest.mark.parametrize(("rl", "wanted"), RECIPES.values(), ids=RECIPES.keys())
def test_a_recipe_that_cannot_be(cli: Cli, agent: Path, tmp_path: Path, rl: str, wanted: str):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE.format(model=str(agent), rl=rl))
    said = cli("run", recipe, "--root", tmp_path / "runs")
    one_line(said.code, said.err, wanted)
    assert not (tmp_path / "runs").exists()


def test_what_is_no_recipe(cli: Cli, tmp_path: Path):
    empty, odd = tmp_path / "empty.py", tmp_path / "odd.py"
    empty.write_text("")
    odd.write_text("def recipe():\n    return {}\n")
    for path, wanted in (
        (tmp_path / "none.py", "no recipe at .*none.py"),
        (empty, r"empty.py defines no function recipe\(\) that returns a RunConfig"),
        (odd, r"odd.py: recipe\(\) returned dict, not a RunConfig"),
    ):
        said = cli("run", path, "--root", tmp_path / "runs")
        one_line(said.code, said.err, wanted)
    one_line(*_two(cli("run", "--root", tmp_path / "runs")), "give a recipe to start, or --resume RUN")
    resumed = cli("run", "--resume", "x", "--root", tmp_path / "runs", "--set", "rl.steps=3")
    one_line(*_two(resumed), "--set has no effect on a resumed run")
    one_line(*_two(cli("run", "--resume", "x", "--root", tmp_path / "runs")), "x is no run folder")
    assert not (tmp_path / "runs").exists()


def _two(said) -> tuple[int, str]:  # type: ignore[no-untyped-def]
    return said.code, said.err


def test_as_a_user_sees_it(agent: Path, tmp_path: Path):
    """The same through a process of its own, where nothing was imported before."""
    done = twinmill("run", SMOKE, "--root", tmp_path / "runs", "--set", f"model={agent}", "--set", "rl.stepz=3")
    one_line(done.returncode, done.stderr, "unknown key rl.stepz: did you mean steps?")
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()
