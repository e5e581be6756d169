import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinmill.batch.pack import Packing, pack

from .toys import sample


def test_two_samples_in_one_row_by_hand():
    a, b = sample(4, name="a", seed=1), sample(3, name="b", prompt=2, advantage=-1, seed=2)
    packed = pack([a, b], Packing(tokens=8), 16.0)
    [m] = packed.microbatches
    assert m.segment_lens == (4, 3)
    assert m.positions.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert m.token_ids.tolist() == [*a.token_ids, *b.token_ids]
    assert m.mask.tolist() == [False, True, True, True, False, False, True]
    assert m.advantages.tolist() == [0, 1, 1, 1, 0, 0, -1]
    assert m.weights.tolist() == [1] * 7
    assert m.sample_ids == ("a/0", "b/0")
    assert m.denominator == 16.0
    assert m.experts is None


def test_first_fit_longest_first():
    packed = pack([sample(n, name=str(n)) for n in (3, 5, 4, 2, 6)], Packing(tokens=10), 1.0)
    assert [m.segment_lens for m in packed.microbatches] == [(6, 4), (5, 3, 2)]


def test_a_longer_sample_is_alone_and_whole():
    packed = pack([sample(25), sample(3), sample(3)], Packing(tokens=10), 1.0)
    assert [m.segment_lens for m in packed.microbatches] == [(25,), (3, 3)]


def test_unpacked_gives_each_sample_its_row():
    packed = pack([sample(3), sample(9), sample(2)], Packing(tokens=100, unpacked=True), 1.0)
    assert [m.segment_lens for m in packed.microbatches] == [(3,), (9,), (2,)]


def test_samples_without_advantage_are_counted_not_computed():
    idle = sample(5, advantage=0.0)
    assert pack([idle, sample(3)], Packing(), 1.0).idle == 1
    assert pack([idle], Packing(), 1.0).microbatches == []
    assert len(pack([idle], Packing(keep_idle=True), 1.0).microbatches) == 1
    assert len(pack([idle], Packing(), 1.0, drop_idle=False).microbatches) == 1
    unmasked = sample(5, prompt=5)
    assert pack([unmasked], Packing(keep_idle=True), 1.0, drop_idle=False).idle == 1


def test_experts_get_a_free_position_at_each_segments_end():
    e = np.ones((3, 2, 2), np.uint16)
    [m] = pack([sample(4, experts=e), sample(4, experts=2 * e)], Packing(), 1.0).microbatches
    assert m.experts.shape == (8, 2, 2)
    assert m.experts[:, 0, 0].tolist() == [1, 1, 1, -1, 2, 2, 2, -1]


def test_replay_is_on_for_all_or_none():
    e = np.ones((3, 2, 2), np.uint16)
    with pytest.raises(ValueError, match="for every sample of a step or for none"):
        pack([sample(4, experts=e), sample(4)], Packing(), 1.0)


def test_what_does_not_fit_together_raises_by_name():
    e = np.ones((4, 2, 2), np.uint16)
    with pytest.raises(ValueError, match=r"e/0: 4 token ids but .*experts"):
        pack([sample(4, experts=e)], Packing(), 1.0)
    with pytest.raises(ValueError, match="first token carries loss"):
        pack([sample(4, prompt=0)], Packing(), 1.0)
    with pytest.raises(ValueError, match="denominator"):
        pack([sample(4)], Packing(), 0.0)


@given(lengths=st.lists(st.integers(2, 40), max_size=40), tokens=st.integers(1, 60))
def test_nothing_is_cut_lost_or_doubled(lengths, tokens):
    samples = [sample(n, name=str(i), seed=i) for i, n in enumerate(lengths)]
    rows = pack(samples, Packing(tokens=tokens), 3.0).microbatches
    assert sorted(i for m in rows for i in m.sample_ids) == sorted(f"{i}/0" for i in range(len(samples)))
    for m in rows:
        assert len(m.segment_lens) == 1 or sum(m.segment_lens) <= tokens
        starts = np.cumsum([0, *m.segment_lens])
        for i, name in enumerate(m.sample_ids):
            whole = samples[int(name.split("/")[0])]
            assert m.token_ids[starts[i] : starts[i + 1]].tolist() == whole.token_ids.tolist()
