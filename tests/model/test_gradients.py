"""Every hand-written backward against finite differences, in double precision."""

import pytest
import torch
from torch.autograd import gradcheck

from twinmill.model import attention, logprob, segments
from twinmill.model.attention import SegmentAttention
from twinmill.model.config import ModelConfig
from twinmill.model.experts import apply_experts, swiglu
from twinmill.model.logprob import token_logprobs
from twinmill.model.norm import head_norm_rope, rms_norm
from twinmill.model.parity import Parity
from twinmill.model.rope import rope_table

from .sizes import TINY

torch.set_num_threads(1)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_rms_norm():
    assert gradcheck(lambda x, w: rms_norm(x, w, 1e-6), (leaf(3, 8), leaf(8)))


@pytest.mark.parametrize("normed", [True, False])
def test_head_norm_rope(normed):
    table = rope_table(TINY, 9)[:, torch.tensor([0, 8, 3])].double()
    weights = leaf(4, TINY.head_dim) if normed else None
    assert gradcheck(lambda x, w: head_norm_rope(x, w, table, 1e-6), (leaf(3, 4, TINY.head_dim), weights))


def test_swiglu():
    assert gradcheck(swiglu, (leaf(3, 10),))


@pytest.mark.parametrize("parity", [p for p in Parity if p is not Parity.CORE])  # that one knows fp32 alone
def test_experts(parity):
    chosen = torch.tensor([[0, 2], [2, 4], [4, 2], [2, 0], [2, 4], [4, 0]])  # experts 1 and 3 stay idle
    inputs = (leaf(6, 8), leaf(6, 2), leaf(5, 12, 8), leaf(5, 8, 6))
    assert gradcheck(lambda x, g, a, b: apply_experts(x, chosen, g, a, b, parity), inputs)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("parents", [None, (-1, -1, 1, 0, 1)])
def test_attention(keep, parents, monkeypatch):
    monkeypatch.setattr(segments, "QUERY_BLOCK", 8)
    monkeypatch.setattr(segments, "KEY_PAD", 8)
    monkeypatch.setattr(attention, "KEY_BLOCK", 16)
    monkeypatch.setattr(attention, "KEEP_PROBABILITIES", 10**9 if keep else 0)
    config = ModelConfig(family="llama", vocab=8, width=8, layers=1, heads=4, kv_heads=2, head_dim=2, intermediate=8)
    attend = SegmentAttention(config, (3, 20, 1, 19, 7), parents)  # two buckets, ragged blocks
    assert gradcheck(lambda q, k, v: attend(0, q, k, v), (leaf(50, 4, 2), leaf(50, 2, 2), leaf(50, 2, 2)))


@pytest.mark.parametrize("keep", [True, False])
def test_logprobs(keep, monkeypatch):
    monkeypatch.setattr(logprob, "CHUNK", 2)
    monkeypatch.setattr(logprob, "KEEP_LOGPROBS", 10**9 if keep else 0)
    targets = torch.tensor([3, 0, 6, 3, 1])
    inputs = (leaf(5, 4), leaf(7, 4))
    assert gradcheck(lambda h, w: token_logprobs(h, w, targets, 0.7, Parity.OFF), inputs)
    want = (inputs[0] @ inputs[1].T / 0.7).log_softmax(-1)[torch.arange(5), targets]
    torch.testing.assert_close(token_logprobs(*inputs, targets, 0.7, Parity.OFF), want)
