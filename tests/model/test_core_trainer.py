"""Parity.CORE: the trainer's forward, gradients and all, gives the very bits of the engine."""

import numpy as np
import pytest
import torch

from twinmill.model.core import available
from twinmill.model.hf import load_bits
from twinmill.model.parity import Parity

from .sizes import TINY, sharp

pytestmark = pytest.mark.skipif(not available(), reason="the native core is not built")
if available():
    from twinmill.model.core import native, operators

    from .core_rig import SHAPES, decoder_of, packed, tokens, whole

torch.set_num_threads(1)
LENS = [5, 64, 65, 130, 1, 2, 3]


def bits(array) -> np.ndarray:
    return (array.detach().numpy() if isinstance(array, torch.Tensor) else array).view(np.int32)


@pytest.fixture(params=list(SHAPES) if available() else [])
def decoder(request):
    decoder = decoder_of(SHAPES[request.param])
    decoder.parity = Parity.CORE
    return decoder


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forward_with_gradients_gives_the_bits_of_the_core(decoder, threads):
    """Packed, with gradients, with any number of threads; the core's own forward runs each text alone."""
    weights = packed(decoder)
    texts = [tokens(decoder.config, n, n) for n in LENS]
    ids = torch.from_numpy(np.concatenate(texts)).long()
    torch.set_num_threads(threads)
    try:
        output = decoder(ids, torch.cat([torch.arange(n) for n in LENS]), LENS)
        targets = torch.cat([torch.from_numpy(np.append(t[1:], 0)).long() for t in texts])
        logprobs = decoder.logprobs(output.hidden, targets, 0.8)
    finally:
        torch.set_num_threads(1)
    assert logprobs.requires_grad
    parts = zip(texts, logprobs.split(LENS), output.hidden.split(LENS), output.routes.split(LENS))
    for text, scored, hidden, routes in parts:
        want = whole(weights, text)
        assert np.array_equal(bits(hidden), bits(want.hidden))
        assert np.array_equal(bits(scored), bits(want.logprobs))
        assert np.array_equal(routes.numpy(), want.routes)


def test_gradients_are_those_of_torch(decoder):
    ids = torch.from_numpy(tokens(decoder.config, 90)).long()
    grads, losses = [], []
    for parity in (Parity.CORE, Parity.OFF):
        decoder.parity = parity
        decoder.zero_grad()
        output = decoder(ids, torch.cat([torch.arange(50), torch.arange(40)]), [50, 40])
        loss = decoder.logprobs(output.hidden, ids.roll(-1)).mean() + 0.1 * output.aux_loss
        loss.backward()
        losses.append(loss.item())
        grads.append({name: p.grad.clone() for name, p in decoder.named_parameters()})
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, ours in grads[0].items():
        theirs = grads[1][name]
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm() + 1e-7, name


def test_replayed_experts_give_the_bits_of_the_core(decoder):
    if not decoder.config.experts:
        pytest.skip("dense")
    text = tokens(decoder.config, 40)
    free = whole(packed(decoder), text)
    recorded = np.ascontiguousarray((free.routes + 1) % decoder.config.experts)
    recorded[::3] = -1
    want = whole(packed(decoder), text, experts=recorded, replay_floor=0.3)
    got = decoder(
        torch.from_numpy(text).long(), torch.arange(40), [40], torch.from_numpy(recorded.astype(np.int32)), 0.3
    )
    assert np.array_equal(bits(got.hidden), bits(want.hidden))
    assert np.array_equal(got.routes.numpy(), want.routes)
    assert (got.replayed, got.refused) == (want.replayed, want.refused)


def test_a_recorded_set_gives_the_bits_of_the_choice_in_order(decoder):
    if not decoder.config.experts:
        pytest.skip("dense")
    text = tokens(decoder.config, 40)
    free = whole(packed(decoder), text)
    for routes in (np.sort(free.routes, -1), np.ascontiguousarray(free.routes[..., ::-1])):
        again = whole(packed(decoder), text, experts=routes)
        assert np.array_equal(bits(again.hidden), bits(free.hidden)) and np.array_equal(again.routes, free.routes)


@torch.no_grad()
@pytest.mark.parametrize("prompts", [(70,), (64,), (5,), (130, 1, 128)])
def test_a_shared_prompt_equals_segments_written_out_in_full(decoder, prompts):
    """Prompts of whole blocks of keys, and of parts of one; every prompt has three tails, and one is nobody's."""
    parts, parents = [torch.from_numpy(tokens(decoder.config, 9, 9)).long()], [-1]
    for n in prompts:
        parents += [-1, *[len(parts)] * 3]
        parts += [torch.from_numpy(tokens(decoder.config, length, length)).long() for length in (n, 20, 1, 65)]
    before = [0 if parent < 0 else len(parts[parent]) for parent in parents]
    positions = torch.cat([torch.arange(n, n + len(part)) for n, part in zip(before, parts)])
    lens = [len(part) for part in parts]
    shared = decoder(torch.cat(parts), positions, lens, parents=parents).hidden.split(lens)
    for part, parent, hidden in zip(parts, parents, shared):
        full = part if parent < 0 else torch.cat((parts[parent], part))
        want = decoder(full, torch.arange(len(full)), [len(full)]).hidden[-len(part) :]
        assert np.array_equal(bits(hidden), bits(want))


@torch.no_grad()
def test_weights_that_were_written_to_are_packed_anew():
    decoder, ids = sharp(TINY, 0, Parity.CORE), torch.arange(30)
    before = decoder(ids, ids, [30]).hidden
    other = sharp(TINY, 1, Parity.CORE)
    from twinmill.model.hf import dtypes, state_bits

    load_bits(decoder, state_bits(other), dtypes(other))
    assert np.array_equal(bits(decoder(ids, ids, [30]).hidden), bits(other(ids, ids, [30]).hidden))
    decoder.blocks[0].mixture.down[2, 0, 0] += 1.0
    assert not torch.equal(decoder(ids, ids, [30]).hidden, before)
    assert not torch.equal(decoder(ids, ids, [30]).hidden, other(ids, ids, [30]).hidden)


@pytest.mark.parametrize("groups", [1, 4])
def test_sigmoid_gating_with_bias_and_groups_is_that_of_deepseek_v3(groups):
    """Choice by score + bias within the best groups; gates are the scores alone, in falling order, renormalised and scaled."""
    generator = torch.Generator().manual_seed(groups)
    rows, experts, top_k, scaling = 60, 32, 6, 2.5
    logits = torch.randn(rows, experts, generator=generator)
    bias = torch.randn(experts, generator=generator) * 0.1
    scores, chosen = logits.clone().numpy(), np.empty((rows, top_k), np.int32)
    gates = np.empty((rows, top_k), np.float32)
    shape = (experts, top_k, 1, 1, groups, max(1, groups // 2), scaling)
    native().Pool(1).route(scores, shape, bias.numpy(), None, 0.0, chosen, gates)
    want = logits.sigmoid()
    choice = want + bias
    if groups > 1:
        split = choice.view(rows, groups, -1)
        best = split.topk(2, -1).values.sum(-1).topk(groups // 2, -1).indices
        mask = torch.zeros(rows, groups).scatter_(1, best, 1.0).bool()
        choice = split.masked_fill(~mask[..., None], float("-inf")).flatten(1)
    picked = choice.topk(top_k, -1).indices
    weights, order = want.gather(-1, picked).sort(-1, descending=True)
    picked = picked.gather(-1, order)
    np.testing.assert_array_equal(chosen, picked.numpy())
    np.testing.assert_allclose(scores, want.numpy(), rtol=1e-6)
    np.testing.assert_allclose(gates, (weights / weights.sum(-1, keepdim=True) * scaling).numpy(), rtol=1e-5)


def test_single_operators_are_called_on_tensors_where_they_lie():
    x, weight, bias = torch.randn(9, 40), torch.randn(24, 40), torch.randn(24)
    y = operators.product(x, weight, bias)
    torch.testing.assert_close(y, x @ weight.T + bias, rtol=1e-5, atol=1e-5)
    out = torch.zeros(9, 24)
    operators.pool().product(operators.matrix(weight), x.numpy(), out.numpy(), bias.numpy())
    assert torch.equal(out, y)
    with pytest.raises(ValueError, match="no rows of 40"):
        operators.pool().product(operators.matrix(weight), torch.randn(9, 41).numpy(), out.numpy())
    with pytest.raises(ValueError, match="writable"):
        operators.pool().rms_norm(x.numpy(), torch.ones(40).numpy(), 1e-6, x.numpy().tobytes())
