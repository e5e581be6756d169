import numpy as np
import pytest

from twinmill.batch.pack import Packing
from twinmill.model.parity import Parity
from twinmill.records.chats import Chat
from twinmill.store.runs import RunFolder
from twinmill.train.checkpoint import Checkpoints
from twinmill.train.loss.cross_entropy import cross_entropy
from twinmill.train.midtrain import Midtrain, midtrain
from twinmill.train.optimizer import AdamW
from twinmill.train.sft import Sft, sft
from twinmill.train.sources.chats import chat_microbatches
from twinmill.train.sources.corpus import CorpusSource, row_microbatches
from twinmill.train.sources.order import drawn
from twinmill.train.step import Compute
from twinmill.train.supervised import mean_loss
from twinmill.train.trainer import Trainer

from .toys import TINY, tiny

ROWS = (np.arange(40 * 12).reshape(40, 12) * 7 % 11).astype(np.int64)  # rows that can be predicted
CHATS = [Chat(id=f"c{i}", token_ids=[1, i % 5, 9, i % 5, 7, 2, 9, i % 5], sampled=((2, 2), (6, 2))) for i in range(20)]
FAST = AdamW(lr=1e-2, warmup=2)


def test_every_pass_reads_every_item_once_in_an_order_of_its_own():
    reads = [drawn(5, 2, step, seed=3) for step in range(10)]
    flat = [i for read in reads for i in read]
    passes = [flat[i : i + 5] for i in range(0, 20, 5)]
    assert all(sorted(p) == [0, 1, 2, 3, 4] for p in passes)
    assert len({tuple(p) for p in passes}) > 1
    assert drawn(5, 2, 7, seed=3) == reads[7]
    assert drawn(2, 5, 0, seed=0)[:2] != [], "a step may read more than one pass"
    with pytest.raises(ValueError, match="empty"):
        drawn(0, 1, 0, 0)


def test_every_token_of_a_row_but_the_first_carries_loss():
    [m] = row_microbatches(ROWS[:3], Packing())
    assert m.denominator == 3 * 11
    assert m.mask.reshape(3, 12)[:, 0].tolist() == [False] * 3
    assert m.mask.sum() == 33


def test_what_an_assistant_said_carries_loss():
    [m] = chat_microbatches(CHATS[:1], Packing())
    assert np.flatnonzero(m.mask).tolist() == [2, 3, 6, 7]
    assert m.denominator == 4


def test_midtraining_lowers_held_out_loss():
    decoder, reports = tiny(), []
    before, after = midtrain(Midtrain(steps=15, optimizer=FAST), decoder, ROWS[:30], ROWS[30:], reports.append)
    assert after < before - 0.5
    assert [r.step for r in reports] == list(range(15))
    assert reports[-1].loss["cross_entropy"] < reports[0].loss["cross_entropy"]
    assert (reports[0].source, reports[0].samples, reports[0].tokens) == ("corpus", 16, 16 * 11)


def test_reported_loss_is_the_mean_over_predicted_tokens():
    decoder = tiny()
    source = CorpusSource(ROWS, 8, 0, Packing(tokens=30))
    expected = mean_loss(decoder, source.batch(0))
    report = Trainer(decoder, cross_entropy, AdamW(lr=0), Compute()).run(
        source.batch(0), step=0, version=0, source="corpus"
    )
    assert report.loss["cross_entropy"] == pytest.approx(expected, rel=1e-5)


def test_sft_learns_to_say_what_the_expert_said():
    decoder = tiny()
    before = mean_loss(decoder, chat_microbatches(CHATS, Packing()))
    sft(Sft(steps=25, optimizer=FAST, chats_per_step=8), decoder, CHATS, lambda report: None)
    assert mean_loss(decoder, chat_microbatches(CHATS, Packing())) < before / 2


def test_a_resumed_run_reaches_the_same_bits(tmp_path):
    def digest(folder, *stops):
        for steps in stops:
            decoder = tiny()
            config = Midtrain(steps=steps, optimizer=FAST, heldout_rows=0)
            midtrain(config, decoder, ROWS, ROWS, lambda report: None, Checkpoints(RunFolder(folder)))
        return Trainer(decoder, cross_entropy, FAST, Compute()).digest()

    assert digest(tmp_path / "a", 6) == digest(tmp_path / "b", 3, 6)


def test_load_balance_loss_is_asked_for_by_its_weight():
    def router_gradient(aux):
        decoder = tiny(parity=Parity.OFF)
        config = Midtrain(steps=1, compute=Compute(aux=aux), optimizer=AdamW(lr=0), heldout_rows=0)
        midtrain(config, decoder, ROWS, ROWS, lambda report: None)
        return decoder.blocks[0].mixture.router.grad.clone()

    assert TINY.experts
    assert (router_gradient(0.0) - router_gradient(1.0)).abs().max() > 1e-4
