import msgspec
import numpy as np
import pytest
import torch

from twinmill.batch.pack import Packing, pack
from twinmill.model.parity import Parity
from twinmill.records.samples import Sample
from twinmill.train.loss.policy_gradient import PolicyGradient
from twinmill.train.optimizer import AdamW, NotFinite, lr_at
from twinmill.train.reference import score
from twinmill.train.rl import Rl, rl_trainer
from twinmill.train.step import Compute, inputs_of, logprobs_at

from .toys import TINY, tiny


def a_sample(n, name="e", *, advantage=1.0, prompt=2, version=0, seed=0):
    rng = np.random.default_rng((n, seed))
    mask = np.arange(n) >= prompt
    return Sample(
        episode_id=name,
        segment=0,
        token_ids=rng.integers(0, TINY.vocab, n),
        mask=mask,
        logprobs=np.where(mask, -3.0, 0).astype(np.float32),
        advantages=np.where(mask, advantage, 0).astype(np.float32),
        versions=np.where(mask, version, -1),
    )


@torch.inference_mode()
def as_the_engine_would(decoder, sample, temperature=1.0, record=False):
    """The sample with the log-probabilities (and experts) of its own forward."""
    [m] = pack([sample], Packing(), 1.0, drop_idle=False).microbatches
    out = decoder(**inputs_of(m))
    rows = torch.from_numpy(np.flatnonzero(m.mask))
    logprobs = np.zeros(len(m.token_ids), np.float32)
    logprobs[m.mask] = logprobs_at(decoder, out.hidden, m, rows, temperature).numpy()
    experts = out.routes[:-1].numpy().astype(np.uint16) if record else None
    return msgspec.structs.replace(sample, logprobs=logprobs, experts=experts)


def trainer(decoder, **rl):
    return rl_trainer(Rl(**{"optimizer": AdamW(lr=0.0), "parity": decoder.parity} | rl), decoder)


def run(trainer, samples, packing=Packing(), version=0):  # noqa: B008
    return trainer.run(pack(samples, packing, 10.0).microbatches, step=0, version=version, source="groups")


SAMPLES = [a_sample(n, f"e{n}", seed=n) for n in (5, 9, 6, 17, 3)]


def test_lr_zero_strict_parity_unpacked_gives_ratio_exactly_one():
    decoder = tiny(parity=Parity.STRICT)
    samples = [as_the_engine_would(decoder, s, record=True) for s in SAMPLES]
    report = run(trainer(decoder), samples, Packing(unpacked=True))
    assert report.fresh.tokens == sum(int(s.mask.sum()) for s in samples)
    assert (report.fresh.max_ratio, report.fresh.max_abs, report.fresh.k3) == (1.0, 0.0, 0.0)
    assert (report.replayed_frac, report.refused_frac) == (1.0, 0.0)


def test_packed_rows_stay_within_2e_5():
    decoder = tiny(parity=Parity.STRICT)
    samples = [as_the_engine_would(decoder, s, record=True) for s in SAMPLES]
    report = run(trainer(decoder), samples, Packing(tokens=64))
    assert report.fresh.max_abs <= 2e-5


def test_lr_zero_changes_no_bit_of_the_weights():
    decoder = tiny()
    t = trainer(decoder)
    before = t.digest()
    assert run(t, SAMPLES).grad_norm > 0
    assert t.digest() == before


def test_the_engines_temperature_is_the_trainers():
    decoder = tiny()
    samples = [as_the_engine_would(decoder, s, temperature=0.7) for s in SAMPLES]
    right = run(trainer(decoder, compute=Compute(temperature=0.7)), samples, Packing(unpacked=True))
    wrong = run(trainer(decoder), samples, Packing(unpacked=True))
    assert right.fresh.max_abs < 1e-5
    assert wrong.fresh.max_abs > 0.01


def test_fresh_and_stale_tokens_are_measured_apart():
    report = run(trainer(tiny()), [a_sample(6, "new", version=3), a_sample(8, "old", version=1)], version=3)
    assert (report.fresh.tokens, report.stale.tokens) == (4, 6)


def test_a_step_moves_probability_towards_what_was_good():
    decoder = tiny()
    good, bad = a_sample(9, "good", seed=1), a_sample(9, "bad", advantage=-1.0, seed=2)
    total = [as_the_engine_would(decoder, s).logprobs.sum() for s in (good, bad)]
    run(trainer(decoder, optimizer=AdamW(lr=1e-2)), [good, bad])
    after = [as_the_engine_would(decoder, s).logprobs.sum() for s in (good, bad)]
    assert after[0] > total[0]
    assert after[1] < total[1]


def test_gradients_do_not_depend_on_packing():
    def gradient(packing):
        decoder = tiny()
        run(trainer(decoder), SAMPLES, packing)
        return torch.cat([p.grad.flatten() for p in decoder.parameters()])

    one, many = gradient(Packing(tokens=64)), gradient(Packing(unpacked=True))
    torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-6)


def test_without_microbatches_not_even_momentum_moves_the_weights():
    t = trainer(tiny(), optimizer=AdamW(lr=1e-2))
    run(t, SAMPLES)
    before, state = t.digest(), {k: v.clone() for k, v in t.take().items()}
    report = run(t, [a_sample(5, advantage=0.0)])
    assert t.digest() == before
    assert all(torch.equal(v, state[k]) for k, v in t.take().items())
    assert (report.samples, report.tokens, report.lr) == (0, 0, 0.0)


def test_what_is_not_finite_names_step_and_samples_and_changes_nothing():
    t = trainer(tiny(), optimizer=AdamW(lr=1e-2))
    before = t.digest()
    broken = msgspec.structs.replace(a_sample(5, "7-1-0"), weights=np.full(5, np.inf, np.float32))
    with pytest.raises(NotFinite, match=r"step 0: the loss is .* on 7-1-0/0"):
        run(t, [broken])
    assert t.digest() == before


def test_clipped_share_and_learning_rate_are_reported():
    config = AdamW(lr=1e-3, warmup=4)
    far = msgspec.structs.replace(SAMPLES[0], logprobs=np.where(SAMPLES[0].mask, -50.0, 0).astype(np.float32))
    report = run(trainer(tiny(), optimizer=config, loss=PolicyGradient(ratio_cap=2.0)), [far])
    assert report.clipped_frac == 1.0
    assert report.lr == lr_at(config, 0)


def test_replay_forces_the_recorded_experts_and_the_router_still_learns():
    decoder = tiny()
    sample = as_the_engine_would(decoder, SAMPLES[1], record=True)
    other = msgspec.structs.replace(sample, experts=(sample.experts + 1) % TINY.experts)
    free, forced = run(trainer(decoder), [sample]), run(trainer(decoder), [other])
    assert free.fresh.max_abs < 1e-5 < forced.fresh.max_abs
    assert forced.replayed_frac == 1.0
    assert decoder.blocks[0].mixture.router.grad.abs().sum() > 0


def test_reference_scores_the_sampled_tokens_alone():
    decoder = tiny(3)
    alone = [as_the_engine_would(decoder, s, record=True) for s in SAMPLES]
    unmasked = msgspec.structs.replace(SAMPLES[0], mask=np.zeros(5, np.bool_))
    scored = score(decoder, [*alone, unmasked], Packing(tokens=20), 1.0)
    assert [s.episode_id for s in scored] == [s.episode_id for s in [*SAMPLES, SAMPLES[0]]]
    for s, own in zip(scored, alone, strict=False):
        np.testing.assert_allclose(s.ref_logprobs, own.logprobs, atol=2e-5)
        assert s.experts is own.experts
    assert scored[-1].ref_logprobs.tolist() == [0] * 5
