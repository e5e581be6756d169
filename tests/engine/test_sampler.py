"""Sampling is a pure function of logits, settings, seed and position."""

import math

import pytest
import torch

from twinmill.engine.embedded.sampler import sample, uniform
from twinmill.records.engines import Sampling

torch.set_num_threads(1)


def test_uniform_is_flat_and_seeds_are_independent():
    draws = torch.tensor([uniform(seed, position) for seed in range(100) for position in range(100)])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert draws.mean().item() == pytest.approx(0.5, abs=0.01)
    assert torch.histc(draws, 10, 0, 1).min() > 900
    table = draws.view(100, 100)
    assert torch.corrcoef(torch.stack((table[:-1].flatten(), table[1:].flatten())))[0, 1].abs() < 0.03
    assert torch.corrcoef(torch.stack((table[:, :-1].flatten(), table[:, 1:].flatten())))[0, 1].abs() < 0.03
    assert uniform(7, 3) == uniform(7, 3) != uniform(7, 4)


def test_shares_follow_the_distribution_at_the_temperature():
    logits = torch.tensor([[2.0, 0.0, 1.0, -3.0]])
    for temperature in (0.5, 1.0):
        n = 4000
        settings = [Sampling(temperature=temperature, seed=5)] * n
        ids, logprobs = sample(logits.expand(n, -1).clone(), settings, range(n))
        want = (logits[0] / temperature).log_softmax(-1)
        torch.testing.assert_close(logprobs, want[ids])
        share = torch.bincount(ids, minlength=4) / n
        assert (share - want.exp()).abs().max() < 4 * 0.5 / math.sqrt(n)


def test_a_row_does_not_depend_on_the_others():
    logits = torch.randn(20, 50)
    settings = [Sampling(temperature=[0.0, 0.7, 1.0][i % 3], top_p=[1.0, 0.9][i % 2], seed=i) for i in range(20)]
    ids, logprobs = sample(logits.clone(), settings, range(20))
    for i in range(20):
        alone = sample(logits[i : i + 1].clone(), settings[i : i + 1], [i])
        assert torch.equal(torch.stack(alone)[:, 0], torch.stack((ids[i], logprobs[i])))


def test_greedy_takes_the_best_and_scores_it_at_temperature_one():
    logits = torch.randn(5, 9)
    ids, logprobs = sample(logits.clone(), [Sampling(temperature=0.0, seed=i) for i in range(5)], range(5))
    assert torch.equal(ids, logits.argmax(-1))
    assert torch.equal(logprobs, logits.log_softmax(-1).max(-1).values)


def test_top_p_keeps_the_head_and_renormalises():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    n = 500
    ids, logprobs = sample(logits.expand(n, -1).clone(), [Sampling(top_p=0.7, seed=1)] * n, range(n))
    assert set(ids.tolist()) == {0, 1}
    torch.testing.assert_close(logprobs, torch.tensor([0.5, 0.3])[ids].div(0.8).log())
    only, _ = sample(logits.clone(), [Sampling(top_p=0.01, seed=9)], [0])
    assert only.item() == 0
