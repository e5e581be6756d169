"""bench parity at its smallest size: what is equal counts as equal, and what is not is found."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from twinmill.batch.pack import Packing
from twinmill.model.config import Parity
from twinmill.model.core import available
from twinmill.model.hf import load_folder

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")
if available():
    from parity import Prompts, compared, main, played

NANO = Path(__file__).parents[2] / "models" / "nano"


def test_a_run_of_few_tokens_agrees_and_says_that_they_are_few(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--tokens", "30", "--runs", "1"])
    assert end.value.code == 1, "the claim needs 100000 tokens"
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    measured = found["measured"]
    assert not found["ok"] and 30 <= measured["tokens"] < 100_000
    assert measured["equal_frac"] == 1.0 and measured["flips"] == 0 and measured["max_abs_dlogp"] == 0.0
    assert min(measured["strict_step_cpu_s"], measured["off_step_cpu_s"], measured["step_tokens"]) > 0
    assert measured["strict_step_slowdown"] > -1


@pytest.fixture(scope="module")
def sessions():
    import asyncio

    from twinmill.data.render import open_renderer

    torch.set_num_threads(1)
    decoder, _ = load_folder(NANO, Parity.CORE)
    return decoder, asyncio.run(played(decoder, Prompts(open_renderer(NANO), 4), 2, 40))


def test_one_bit_is_found(sessions):
    decoder, samples = sessions
    logprobs = samples[0].logprobs.copy()
    at = int(samples[0].mask.argmax())
    logprobs[at] = np.nextafter(logprobs[at], np.float32(-100))
    changed = [msgspec.structs.replace(samples[0], logprobs=logprobs), *samples[1:]]
    found = compared(decoder, changed, Packing())
    assert found["equal_frac"] == pytest.approx(1 - 1 / found["tokens"]) and found["flips"] == 0


def test_one_expert_is_found_in_both_comparisons(sessions):
    decoder, samples = sessions
    experts = samples[0].experts.copy()
    experts[0, 0, 0] = next(e for e in range(8) if e not in experts[0, 0])
    found = compared(
        decoder, [msgspec.structs.replace(samples[0], experts=experts), *samples[1:]], Packing(share=False)
    )
    assert found["flips"] == 2 and found["equal_frac"] == 1.0


def test_a_trainer_that_computes_otherwise_does_not_pass(sessions):
    _, samples = sessions
    decoder, _ = load_folder(NANO, Parity.OFF)
    found = compared(decoder, samples, Packing())
    assert found["equal_prefill_frac"] == 1.0 and found["equal_trainer_frac"] < 1.0
