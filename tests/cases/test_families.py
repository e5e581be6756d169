"""Whole runs of models of other families than the demo's."""

import json
from pathlib import Path

import numpy as np
import pytest

from twinmill.cli.config import load_recipe
from twinmill.store.ledger import EpisodesLog
from twinmill.train.recorded import expert_loader

from .real import ROOT, RealRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_originals_family_in_small(tmp_path: Path) -> None:
    """384 experts top-8, latent attention: pre-trained a little, fine-tuned a little, then RL with router replay."""
    path = ROOT / "recipes" / "kimi_tiny.py"
    config = load_recipe(path)
    with RealRun(tmp_path, Path(config.model)) as run:
        run.start(recipe=path, whole=True, midtrain__steps=20, sft__steps=20, rl__steps=4, evaluation__tasks=2).done()
        run.whole(window=1, slots=8)
        assert "computes with torch: the native core has no multi-head latent attention" in run.log_of("engine/east")
        steps = [line for line in run.metrics("train") if line["source"] == "rl"]
        assert [step["replayed_frac"] for step in steps] == [1.0] * 4
        assert max(step["fresh"]["max_abs"] for step in steps if step["fresh"]["tokens"]) < 2e-5
        first, last = run.weights.get(0), run.weights.get(4)
        names = {tensor.name for tensor in first.tensors} if hasattr(first, "tensors") else set()
        assert first.model_digest != last.model_digest
        blobs = run.blobs
        assert json.loads(blobs.get_ref(first.config))["n_routed_experts"] == 384
        attempt = next(attempt for attempt in run.attempts() if attempt.episode.segments)
        experts = expert_loader(blobs)(attempt.episode.segments[0].experts)
        assert experts.shape[1:] == (2, 8)
        assert np.asarray(experts).max() > 255, "more than a byte holds"
        assert EpisodesLog(blobs).lanes()
        del names
