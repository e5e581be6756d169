import math

import pytest
import torch

from twinmill.train.loss.base import Tokens
from twinmill.train.loss.cross_entropy import cross_entropy
from twinmill.train.loss.policy_gradient import PolicyGradient, policy_gradient


def tokens(p, mu=None, advantages=None, weights=None, denominator=1.0):
    """From probabilities: pi of the trainer, mu of the engine."""
    logprobs = torch.tensor([math.log(x) for x in p], requires_grad=True)
    n = len(p)
    engine = torch.tensor([math.log(x) for x in (mu or p)])
    given = torch.tensor(advantages or [1.0] * n), torch.tensor(weights or [1.0] * n)
    return Tokens(logprobs, engine, *given, denominator)


def test_on_policy_it_is_the_plain_policy_gradient():
    t = tokens([0.5, 0.25], advantages=[1.0, -2.0], denominator=4.0)
    value = policy_gradient(t, PolicyGradient())
    assert value.loss.item() == pytest.approx(-(1 * math.log(0.5) - 2 * math.log(0.25)) / 4)
    value.loss.backward()
    assert t.logprobs.grad.tolist() == pytest.approx([-1 / 4, 2 / 4])
    assert value.sums == {"policy": pytest.approx(value.loss.item()), "clipped": 0.0}


def test_descending_raises_what_was_good_and_lowers_what_was_bad():
    t = tokens([0.5, 0.5], advantages=[1.0, -1.0])
    policy_gradient(t, PolicyGradient()).loss.backward()
    stepped = t.logprobs.detach() - 0.1 * t.logprobs.grad
    assert stepped[0] > t.logprobs[0]
    assert stepped[1] < t.logprobs[1]


def test_importance_weights_are_truncated_and_carry_no_gradient():
    """rho = .5/.1 = 5 -> 2, .5/.4 = 1.25, .1/.5 = .2; gradient = -rho * A, nothing from rho itself."""
    t = tokens([0.5, 0.5, 0.1], mu=[0.1, 0.4, 0.5])
    value = policy_gradient(t, PolicyGradient(ratio_cap=2.0))
    value.loss.backward()
    assert t.logprobs.grad.tolist() == pytest.approx([-2.0, -1.25, -0.2])
    assert value.loss.item() == pytest.approx(-(2 * math.log(0.5) + 1.25 * math.log(0.5) + 0.2 * math.log(0.1)))
    assert value.sums["clipped"] == 1
    assert value.log_ratio.exp().tolist() == pytest.approx([5, 1.25, 0.2])
    assert not value.log_ratio.requires_grad


def test_cap_zero_switches_the_weights_off():
    t = tokens([0.5], mu=[0.1])
    value = policy_gradient(t, PolicyGradient(ratio_cap=0))
    value.loss.backward()
    assert t.logprobs.grad.tolist() == [-1.0]
    assert value.sums["clipped"] == 0


def test_token_weights_scale_the_gradient():
    t = tokens([0.5, 0.5], weights=[0.0, 3.0])
    policy_gradient(t, PolicyGradient()).loss.backward()
    assert t.logprobs.grad.tolist() == [0.0, -3.0]


def test_microbatches_add_up_to_the_step():
    whole = policy_gradient(
        tokens([0.5, 0.2, 0.7], [0.4, 0.2, 0.1], [1.0, -1.0, 2.0], denominator=5.0), PolicyGradient()
    )
    parts = [
        policy_gradient(tokens([0.5], [0.4], [1.0], denominator=5.0), PolicyGradient()),
        policy_gradient(tokens([0.2, 0.7], [0.2, 0.1], [-1.0, 2.0], denominator=5.0), PolicyGradient()),
    ]
    assert sum(p.loss.item() for p in parts) == pytest.approx(whole.loss.item())


def test_cross_entropy_by_hand():
    t = tokens([0.5, 0.25], denominator=2.0)
    value = cross_entropy(t)
    assert value.loss.item() == pytest.approx((math.log(2) + math.log(4)) / 2)
    value.loss.backward()
    assert t.logprobs.grad.tolist() == [-0.5, -0.5]
    assert value.log_ratio is None
    assert cross_entropy(tokens([0.5, 0.25], weights=[0.0, 2.0])).loss.item() == pytest.approx(2 * math.log(4))
