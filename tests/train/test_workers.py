import threading

import pytest
import torch

from twinmill.batch.pack import Packing, pack
from twinmill.model.parity import Parity
from twinmill.train.optimizer import AdamW, NotFinite
from twinmill.train.workers import in_order

from .test_step import SAMPLES, as_the_engine_would, trainer
from .toys import tiny


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_several_at_once_and_what_comes_of_them_in_order(two_threads):
    both = threading.Barrier(2, timeout=30)

    def work(item):
        both.wait()
        return item, threading.current_thread().name, torch.get_num_threads()

    found = list(in_order(work, [3, 1, 4, 1]))
    assert [item for item, _, _ in found] == [3, 1, 4, 1]
    assert len({name for _, name, _ in found}) == 2
    assert {threads for *_, threads in found} == {1}
    assert torch.get_num_threads() == 2


def test_one_item_keeps_all_threads_and_stays_where_it_is(two_threads):
    assert list(in_order(lambda _: (threading.current_thread(), torch.get_num_threads()), [0])) == [
        (threading.current_thread(), 2)
    ]


@pytest.mark.parametrize("parity", [Parity.OFF, Parity.STRICT, Parity.CORE])
def test_a_step_gives_the_same_bits_with_one_thread_and_with_two(two_threads, parity):
    samples = [as_the_engine_would(tiny(parity=parity), s, record=True) for s in SAMPLES]
    microbatches = pack(samples, Packing(tokens=12), 10.0).microbatches
    assert len(microbatches) > 2

    def digest(threads):
        torch.set_num_threads(threads)
        one = trainer(tiny(parity=parity), optimizer=AdamW(lr=1e-2))
        report = one.run(microbatches, step=0, version=0, source="groups")
        return one.digest(), report.loss, report.tokens, report.fresh

    assert digest(1) == digest(2)


def test_a_poor_microbatch_among_several_changes_nothing(two_threads):
    decoder = tiny()
    t = trainer(decoder, optimizer=AdamW(lr=1e-2))
    before = t.digest()
    microbatches = list(pack(SAMPLES, Packing(tokens=12), 10.0).microbatches)
    microbatches[1].logprobs[microbatches[1].mask] = float("nan")
    with pytest.raises(NotFinite, match=microbatches[1].sample_ids[0]):
        t.run(microbatches, step=0, version=0, source="groups")
    assert t.digest() == before
    assert torch.get_num_threads() == 2
