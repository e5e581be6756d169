from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinmill.batch.pack import Packing, by_sample, pack
from twinmill.batch.rows import families
from twinmill.records.samples import Sample

from .toys import sample


def beginning(token_ids, n, *, name="e", seed=0, experts=None):
    """A sample that begins with `token_ids`, of which n more were sampled."""
    whole = sample(len(token_ids) + n, name=name, prompt=len(token_ids), seed=seed)
    ids = np.concatenate((token_ids, whole.token_ids[len(token_ids) :]))
    return msgspec.structs.replace(whole, token_ids=ids, experts=experts)


def a_group(prompt, lengths, *, name="g", seed=0):
    ids = np.random.default_rng((prompt, seed)).integers(0, 50, prompt)
    return [beginning(ids, n, name=f"{name}{i}", seed=i) for i, n in enumerate(lengths)]


def shares(found):
    return [([s.episode_id for s in family.samples], family.shared) for family in found]


def test_two_samples_that_begin_alike_by_hand(monkeypatch):
    monkeypatch.setattr("twinmill.batch.rows.SEGMENT", 0)
    a = beginning([1, 2, 5], 1, name="a")
    b = beginning([1, 2, 5], 2, name="b", seed=1)
    e = np.arange(3, dtype=np.uint16).reshape(3, 1, 1)
    a = msgspec.structs.replace(a, token_ids=np.array([1, 2, 5, 9]), experts=e)
    b = msgspec.structs.replace(b, token_ids=np.array([1, 2, 5, 7, 8]), experts=np.concatenate((e, e[:1] + 3)))
    [m] = pack([a, b], Packing(), 1.0).microbatches
    assert m.segment_lens == (2, 2, 3)
    assert m.parents == (-1, 0, 0)
    assert m.token_ids.tolist() == [1, 2, 5, 9, 5, 7, 8]
    assert m.positions.tolist() == [0, 1, 2, 3, 2, 3, 4]
    assert m.mask.tolist() == [False, False, False, True, False, True, True]
    assert m.experts[:, 0, 0].tolist() == [0, 1, 2, -1, 2, 3, -1]
    assert m.sample_ids == ("a/0", "b/0")
    assert by_sample(m, m.token_ids)["b/0"].tolist() == [1, 2, 5, 7, 8]


def test_the_last_token_of_the_prompt_stays_with_each_attempt():
    assert shares(families(a_group(40, (5, 9, 2)), 1000)) == [(["g0", "g1", "g2"], 39)]


def test_a_prompt_is_shared_as_far_as_its_recorded_experts_are_equal():
    group = [
        msgspec.structs.replace(s, experts=np.ones((len(s.token_ids) - 1, 2, 2), np.uint16))
        for s in a_group(40, (5,) * 3)
    ]
    late = group[1].experts.copy()
    late[31, 1, 0] = 3
    group[1] = msgspec.structs.replace(group[1], experts=late)
    assert shares(families(group[:2], 1000)) == [(["g0", "g1"], 31)]
    both = [*group, msgspec.structs.replace(group[1], episode_id="g3")]
    late[:] = 2
    assert shares(families(both, 1000)) == [(["g0", "g2"], 39), (["g1", "g3"], 39)]


def test_what_all_tasks_begin_with_does_not_keep_a_group_from_sharing_its_prompt():
    system = np.arange(30)
    one, other = (
        [
            beginning(np.concatenate((system, s.token_ids[:40])), 5, name=s.episode_id)
            for s in a_group(41, (5,) * n, name=name, seed=seed)
        ]
        for name, n, seed in (("a", 1, 1), ("b", 4, 2))
    )
    assert shares(families([*other[:2], *one, *other[2:]], 1000)) == [(["b0", "b1", "b2", "b3"], 69), (["a0"], 0)]
    assert shares(families([one[0], other[0]], 1000)) == [(["a0", "b0"], 30)]


def test_what_is_not_worth_a_segment_is_not_shared():
    assert shares(families(a_group(13, (20, 20)), 1000)) == [(["g0"], 0), (["g1"], 0)]
    assert shares(families(a_group(13, (20,) * 8), 1000)) == [([f"g{i}" for i in range(8)], 12)]


def test_a_group_stands_in_one_row_where_it_fits():
    """Each group computes 49 + 4 * 11 = 93 tokens; written out in full, 240 of them would not fit into one row."""
    groups = [a_group(50, (10,) * 4, name=name, seed=i) for i, name in enumerate("abc")]
    mixed = [s for four in zip(*groups, strict=True) for s in four]
    rows = pack(mixed, Packing(tokens=190), 1.0).microbatches
    assert [len(m.token_ids) for m in rows] == [186, 93]
    assert [m.sample_ids for m in rows] == [
        ("a0/0", "a1/0", "a2/0", "a3/0", "b0/0", "b1/0", "b2/0", "b3/0"),
        ("c0/0", "c1/0", "c2/0", "c3/0"),
    ]
    assert rows[0].parents == (-1, 0, 0, 0, 0, -1, 5, 5, 5, 5)


def test_a_group_too_large_for_a_row_is_divided():
    group = a_group(50, (10, 10, 10, 80))
    rows = pack(group, Packing(tokens=75), 1.0).microbatches
    assert [(m.sample_ids, m.segment_lens, m.parents) for m in rows] == [
        (("g3/0",), (130,), (-1,)),  # longer than a row on its own
        (("g0/0", "g1/0"), (49, 11, 11), (-1, 0, 0)),
        (("g2/0",), (60,), (-1,)),
    ]


@pytest.mark.parametrize("packing", [Packing(share=False), Packing(unpacked=True), Packing(unpacked=True, share=True)])
def test_nothing_is_shared_where_that_is_switched_off_or_rows_are_unpacked(packing):
    rows = pack(a_group(40, (5, 9)), packing, 1.0).microbatches
    assert [lens for m in rows for lens in m.segment_lens] == ([49, 45] if not packing.unpacked else [45, 49])
    assert {parent for m in rows for parent in m.parents} == {-1}


def test_experts_of_another_model_are_refused_by_name():
    a, b = a_group(4, (2, 2))
    with_two = msgspec.structs.replace(a, experts=np.ones((5, 2, 2), np.uint16))
    with_one = msgspec.structs.replace(b, experts=np.ones((5, 2, 1), np.uint16))
    with pytest.raises(ValueError, match=r"g1/0 has recorded experts of shape \(2, 1\).* g0/0 of \(2, 2\)"):
        pack([with_two, with_one], Packing(), 1.0)


@st.composite
def alike(draw):
    """Samples whose prompts, experts and masks agree by chance in a part, drawn from few values."""
    samples = []
    for i in range(draw(st.integers(1, 12))):
        rng = np.random.default_rng(draw(st.integers(0, 2)))
        n = draw(st.integers(2, 60))
        ids, experts = rng.integers(0, 50, 60)[:n], rng.integers(0, 4, (60, 2, 2))[: n - 1].astype(np.uint16)
        ids[draw(st.integers(0, n - 1)) :] += draw(st.integers(0, 1))
        experts[draw(st.integers(0, n - 1)) :] += draw(st.integers(0, 1))
        mask = (np.arange(n) >= draw(st.integers(1, n))) & (rng.random(n) < 0.7)
        mask[-1] = True
        random = rng.random((3, n)).astype(np.float32)
        samples.append(
            Sample(
                episode_id=str(i),
                segment=0,
                token_ids=ids,
                mask=mask,
                logprobs=-random[0] * mask,
                advantages=(random[1] + 1) * mask,
                weights=random[2] * mask,
                versions=np.where(mask, i, -1),
                experts=experts,
            )
        )
    return samples


@patch("twinmill.batch.rows.SEGMENT", 0)  # so that they share whatever they can
@given(samples=alike(), tokens=st.integers(1, 300))
def test_every_sample_is_whole_and_its_loss_lies_behind_what_it_shares(samples, tokens):
    rows = pack(samples, Packing(tokens=tokens), 3.0).microbatches
    assert sorted(i for m in rows for i in m.sample_ids) == sorted(f"{s.episode_id}/0" for s in samples)
    for m in rows:
        assert len(m.sample_ids) == 1 or len(m.token_ids) <= tokens
        assert sum(m.segment_lens) == len(m.token_ids)
        starts = np.cumsum((0, *m.segment_lens))
        for i, parent in enumerate(m.parents):
            assert not m.mask[starts[i]]
            if parent >= 0:
                assert m.parents[parent] == -1
                assert not m.mask[starts[parent] : starts[parent + 1]].any()
        for name in ("token_ids", "mask", "logprobs", "advantages", "weights"):
            whole = by_sample(m, getattr(m, name))
            for id_ in m.sample_ids:
                want = getattr(samples[int(id_.split("/")[0])], name)
                assert np.array_equal(whole[id_], want)
        positions, experts, versions = (by_sample(m, x) for x in (m.positions, m.experts, m.versions))
        for id_ in m.sample_ids:
            own = samples[int(id_.split("/")[0])]
            assert np.array_equal(positions[id_], np.arange(len(own.token_ids)))
            assert np.array_equal(experts[id_][:-1], own.experts)
            assert (experts[id_][-1] == -1).all()
            assert np.array_equal(versions[id_][own.mask], own.versions[own.mask])
    unshared = pack(samples, Packing(tokens=tokens, share=False), 3.0).microbatches
    assert sum(len(m.token_ids) for m in rows) <= sum(len(m.token_ids) for m in unshared)
