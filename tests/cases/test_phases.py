"""The whole recipe under kills: every phase is resumed from what it left behind, and the end is the undisturbed one."""

import signal
from pathlib import Path

import pytest

from twinmill.cli.config import load_recipe

from .real import ROOT, RealRun

OTHERS = ("nano_", "smollm2")
"""of which the first are no runs, and the last needs a package (see test_families.py)"""
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*.py") if not path.stem.startswith(OTHERS))
"""those that `twinmill run` takes as they are"""


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_a_possible_run(recipe: Path) -> None:
    config = load_recipe(recipe)
    assert config.rl is not None or config.sft is not None or config.midtrain is not None


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_in_every_phase_and_a_resume_of_what_is_finished(tmp_path: Path, agent: Path) -> None:
    wanted = {"midtrain__steps": 6, "midtrain__checkpoint_every": 1, "sft__steps": 6, "sft__checkpoint_every": 1}
    wanted |= {"rl__window__window": 0, "experts__episodes": 12, "harness__deadlines": False, "harness__tool_s": 60.0}
    with RealRun(tmp_path / "calm", agent) as calm, RealRun(tmp_path / "killed", agent) as run:
        calm.start(whole=True, **wanted)
        run.start(whole=True, **wanted)
        run.signal("expert")
        run.wait(lambda: len(run.metrics("train")) >= 2, "a step of mid-training")
        run.signal("trainer")
        run.wait(lambda: (run.folder.path / "models" / "midtrain").exists(), "the mid-trained model")
        run.signal("trainer")
        run.wait(lambda: run.newest >= 0, "version 0")
        run.signal("evaluator")
        run.wait(lambda: run.newest >= 1, "version 1")
        run.signal("supervisor")
        assert run.end() == -signal.SIGKILL
        run.resume().done()
        run.no_strays()
        calm.done()
        assert run.digests() == calm.digests()
        versions = [event["version"] for event in run.metrics("eval")]
        assert versions == [0, 3]
        run.whole(window=0, slots=6)
        before = run.digests()
        run.resume().done()
        assert run.digests() == before, "there was nothing left to do"
        assert [event["version"] for event in run.metrics("eval")] == versions


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("recipe", ["laptop", "learn"])
def test_a_recipe_runs_at_its_smallest_size(tmp_path: Path, agent: Path, recipe: str) -> None:
    small = {
        "midtrain__steps": 1, "midtrain__heldout_rows": 2, "corpus__max_bytes": 50_000, "experts__episodes": 4,
        "sft__steps": 1, "rl__steps": 2, "rl__window__groups_per_step": 2, "rollout__group_size": 2,
        "evaluation__tasks": 2, "evaluation__every": 0,
    }  # fmt: skip
    path = ROOT / "recipes" / f"{recipe}.py"
    config = load_recipe(path)
    given = {key: value for key, value in small.items() if getattr(config, key.partition("__")[0]) is not None}
    with RealRun(tmp_path, agent) as run:
        run.start(recipe=path, whole=True, **given).done()
        run.whole(window=config.rl.window.window, slots=4)
        assert run.folder.report_path.exists()
        run.no_strays()
