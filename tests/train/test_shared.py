"""Attempts that share their prompt: computed once, and nothing but the time it takes may differ."""

import math
from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from twinmill.batch.pack import Packing, by_sample, pack
from twinmill.model.parity import Parity
from twinmill.model.transformer import Output
from twinmill.records.samples import Sample
from twinmill.train.loss.cross_entropy import cross_entropy
from twinmill.train.loss.policy_gradient import PolicyGradient, policy_gradient
from twinmill.train.optimizer import AdamW, Optimizer
from twinmill.train.reference import score
from twinmill.train.step import Compute, TrainStep, inputs_of, logprobs_at
from twinmill.train.trainer import Trainer

from .toys import TINY, tiny

SHARED, APART = Packing(tokens=256), Packing(tokens=256, share=False)


def attempts(decoder, prompt=34, lengths=(5, 1, 9, 12), seed=0):
    """Attempts at one task with experts as the engine records them. After two sampled tokens come two that are not."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, TINY.vocab, prompt)
    made = []
    for i, n in enumerate(lengths):
        ids = np.concatenate((begin, rng.integers(0, TINY.vocab, n)))
        place = np.arange(prompt + n) - prompt
        mask = (place >= 0) & ~((place >= 2) & (place < 4))
        made.append(
            Sample(
                episode_id=f"{seed}-{i}-0",
                segment=0,
                token_ids=ids,
                mask=mask,
                logprobs=np.where(mask, -4.0, 0).astype(np.float32),
                advantages=np.where(mask, i - 1.5, 0).astype(np.float32),
                versions=np.where(mask, i % 2, -1),
            )
        )
    return [recorded(decoder, sample) for sample in made]


@torch.inference_mode()
def recorded(decoder, sample):
    ids = torch.from_numpy(sample.token_ids)
    experts = decoder(ids, torch.arange(len(ids)), [len(ids)]).routes[:-1].numpy().astype(np.uint16)
    return msgspec.structs.replace(sample, experts=experts)


@torch.inference_mode()
def logprobs(decoder, samples, packing):
    """Of every sampled token, by sample."""
    found = {}
    for m in pack(samples, packing, 1.0).microbatches:
        rows = torch.from_numpy(np.flatnonzero(m.mask))
        values = np.zeros(len(m.token_ids), np.float32)
        values[m.mask] = logprobs_at(decoder, decoder(**inputs_of(m)).hidden, m, rows, 1.0).numpy()
        found |= by_sample(m, values)
    return found


def trained(samples, packing, compute=Compute(), parity=Parity.OFF):  # noqa: B008
    """(report, gradient) of one step at learning rate 0."""
    decoder = tiny(parity=parity)
    loss = partial(policy_gradient, config=PolicyGradient())
    report = Trainer(decoder, loss, AdamW(lr=0.0), compute).run(
        pack(samples, packing, 10.0).microbatches, step=0, version=1, source="groups"
    )
    return report, torch.cat([p.grad.flatten() for p in decoder.parameters()])


@pytest.mark.parametrize(("parity", "bound"), [(Parity.STRICT, 0.0), (Parity.OFF, 2e-5)])
def test_log_probabilities_are_those_of_samples_written_out_in_full(parity, bound):
    decoder = tiny(parity=parity)
    samples = [s for seed in (0, 1) for s in attempts(decoder, prompt=34 - 5 * seed, seed=seed)]
    [shared] = pack(samples, SHARED, 1.0).microbatches
    assert shared.parents == (-1, 0, 0, 0, 0, -1, 5, 5, 5, 5)
    apart, together = (logprobs(decoder, samples, packing) for packing in (APART, SHARED))
    for name, want in apart.items():
        assert np.abs(together[name] - want).max() <= bound


@pytest.mark.parametrize("floor", [0.0, 0.9])
def test_losses_gradients_and_mismatch_are_those_of_samples_written_out_in_full(floor):
    """Experts of other weights, so that replay matters and the filter has something to refuse."""
    samples = [s for seed in (0, 1) for s in attempts(tiny(7), seed=seed)]
    apart, by_apart = trained(samples, APART, Compute(replay_floor=floor))
    shared, by_shared = trained(samples, SHARED, Compute(replay_floor=floor))
    torch.testing.assert_close(by_shared, by_apart, rtol=1e-4, atol=1e-6)
    aux = shared.loss.pop("aux"), apart.loss.pop("aux")  # a mean over positions: what is computed once counts once
    assert all(math.isfinite(x) for x in aux)
    assert shared.loss == pytest.approx(apart.loss, abs=1e-5)
    assert (shared.samples, shared.tokens) == (apart.samples, apart.tokens) == (8, 2 * (3 + 1 + 7 + 10))
    assert (shared.computed, apart.computed) == (2 * (33 + 4 + 27), 2 * (4 * 34 + 27))
    for kind in ("fresh", "stale"):
        one, other = getattr(shared, kind), getattr(apart, kind)
        assert one.tokens == other.tokens > 0
        assert msgspec.structs.astuple(one) == pytest.approx(msgspec.structs.astuple(other), abs=2e-5)


def test_lr_zero_and_strict_parity_give_ratio_one_with_shared_prompts_too():
    decoder = tiny(parity=Parity.STRICT)
    samples = attempts(decoder)
    alone = logprobs(decoder, samples, Packing(unpacked=True))
    samples = [
        msgspec.structs.replace(s, logprobs=alone[f"{s.episode_id}/0"], versions=np.where(s.mask, 1, -1))
        for s in samples
    ]
    report, _ = trained(samples, SHARED, parity=Parity.STRICT)
    assert report.fresh.tokens == 21
    assert report.fresh.max_abs <= 2e-5
    assert (report.replayed_frac, report.refused_frac) == (1.0, 0.0)


def test_a_shared_position_counts_once_as_it_is_routed_once():
    """3 attempts of 34 + (5, 1, 9) ids: 33 shared positions, then 1 + (4, 0, 8) more with recorded experts, 2 layers."""
    decoder = tiny(parity=Parity.STRICT)
    samples = attempts(decoder, lengths=(5, 1, 9))
    with torch.inference_mode():
        scores = _router_scores(decoder, samples[0])
    worst = samples[0].experts[20, 1].copy()
    worst[1] = scores[20].argmin()
    for sample in samples:
        sample.experts[20, 1] = worst  # implausible in the prompt, which all three recorded alike

    def counts(packing):
        report, _ = trained(samples, packing, Compute(replay_floor=1.0), Parity.STRICT)
        return report.replayed_frac, report.refused_frac

    pairs = 2 * (33 + 5 + 1 + 9)
    assert counts(SHARED) == ((pairs - 1) / pairs, 1 / pairs)
    pairs = 2 * (38 + 34 + 42)
    assert counts(APART) == ((pairs - 3) / pairs, 3 / pairs)


def _router_scores(decoder, sample):
    """[N, experts] of the last layer."""
    seen = []
    mixture = decoder.blocks[-1].mixture
    hook = mixture.register_forward_pre_hook(lambda _, args: seen.append(args[0] @ mixture.router.T))
    decoder(torch.from_numpy(sample.token_ids), torch.arange(len(sample.token_ids)), [len(sample.token_ids)])
    hook.remove()
    return seen[0]


class Bigrams(nn.Module):
    """log p(b after a) = table[a, b], whatever stands before: what a step makes of it can be said by hand."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(-(torch.arange(100.0).view(10, 10) + 1))

    def forward(self, token_ids, positions, segment_lens, experts, replay_floor, parents):
        rows = torch.nn.functional.one_hot(token_ids, 10).float()
        return Output(rows, torch.zeros(0), 0, 0, rows.new_zeros(()))

    def logprobs(self, hidden, targets, temperature):
        return (hidden @ self.table).gather(1, targets[:, None])[:, 0]


def test_a_continuation_s_first_target_is_predicted_by_the_prompt_s_last_token(monkeypatch):
    """[1 2 5 | 9] and [1 2 5 | 7 8]: loss = -(log p(9|5) + log p(7|5) + log p(8|7)) / 4 = (60 + 58 + 79) / 4."""
    monkeypatch.setattr("twinmill.batch.rows.SEGMENT", 0)
    samples = [
        Sample(
            episode_id=name,
            segment=0,
            token_ids=np.array(ids),
            mask=np.arange(len(ids)) >= 3,
            logprobs=np.zeros(len(ids), np.float32),
            advantages=np.zeros(len(ids), np.float32),
            versions=np.full(len(ids), -1),
        )
        for name, ids in (("a", [1, 2, 5, 9]), ("b", [1, 2, 5, 7, 8]))
    ]
    [m] = pack(samples, Packing(), 4.0, drop_idle=False).microbatches
    assert m.segment_lens == (2, 2, 3)
    model = Bigrams()
    step = TrainStep(model, Optimizer(model.named_parameters(), AdamW(lr=0.0, clip=0.0)), cross_entropy, Compute())
    report = step.run([m], step=0, version=0, source="chats")
    assert report.loss["cross_entropy"] == (60 + 58 + 79) / 4
    assert (report.samples, report.tokens, report.computed) == (2, 3, 7)
    want = torch.zeros(10, 10)
    want[[5, 5, 7], [9, 7, 8]] = -0.25
    assert torch.equal(model.table.grad, want)


def test_the_reference_scores_shared_prompts_alike():
    decoder = tiny(3, Parity.STRICT)
    samples = attempts(decoder)
    apart, shared = (score(decoder, samples, packing, 1.0) for packing in (APART, SHARED))
    for one, other in zip(shared, apart, strict=True):
        assert np.array_equal(one.ref_logprobs, other.ref_logprobs)
        assert (one.ref_logprobs[one.mask] < 0).all()
        assert (one.ref_logprobs[~one.mask] == 0).all()


def test_log_probabilities_hold_up_where_attempts_were_routed_under_different_weights():
    """The second attempt recorded other experts from position 45 of the prompt on: it is shared up to there."""
    decoder = tiny(parity=Parity.STRICT)
    samples = attempts(decoder, prompt=60, lengths=(3, 4))
    samples[1].experts[45:] = (samples[1].experts[45:] + 1) % TINY.experts
    [m] = pack(samples, SHARED, 1.0).microbatches
    assert (m.segment_lens, m.parents) == ((45, 18, 19), (-1, 0, 0))
    apart, together = (logprobs(decoder, samples, packing) for packing in (APART, SHARED))
    for name, want in apart.items():
        assert np.array_equal(together[name], want)
