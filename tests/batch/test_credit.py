import math

import msgspec
import numpy as np
import pytest

from twinmill.batch.credit import ALGORITHMS, Credit, credit
from twinmill.batch.credit.length_penalty import LengthPenalty, counts, length_penalty, penalty
from twinmill.batch.samples import assemble
from twinmill.records.episodes import Usage

from .toys import episode, group, segment, turn

GROUP_MEAN = Credit()


def advantages(rewards, config=GROUP_MEAN):
    """One number per attempt, read off its samples' sampled tokens."""
    out = credit(assemble(group(rewards)), config)
    for s in out.samples_S:
        assert s.advantages.tolist() == [0, 0, s.advantages[2], s.advantages[2]], "prompt tokens carry none"
    return [float(s.advantages[-1]) for s in out.samples_S]


def test_group_mean_by_hand():
    assert advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert advantages([0.75, 0.25]) == [0.25, -0.25]


def test_leave_one_out_by_hand():
    assert advantages([1.0, 0.0, 0.0], Credit(algorithm="leave_one_out")) == [1.0, -0.5, -0.5]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_reward_is_outside_the_mean_and_gets_no_credit(algorithm):
    given = advantages([1.0, 0.0, None], Credit(algorithm=algorithm))
    assert given[2] == 0
    assert given[:2] == advantages([1.0, 0.0], Credit(algorithm=algorithm))
    assert advantages([None, None], Credit(algorithm=algorithm)) == [0, 0]
    assert advantages([0.3, None], Credit(algorithm=algorithm)) == [0, 0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_rewards_give_exactly_nothing(algorithm):
    """0.1 * 7 / 7 != 0.1 in floating point; such dust would be trained on."""
    assert advantages([0.1] * 7, Credit(algorithm=algorithm)) == [0.0] * 7


def test_neither_length_nor_spread_is_divided_by():
    small, large = advantages([0.51, 0.49]), advantages([1.0, 0.0])
    assert large[0] / small[0] == pytest.approx(50, rel=1e-5)
    long = episode("0-0-0", segment(turn([1], range(2, 12))))
    short = episode("0-1-0", segment(turn([1], [2])))
    out = credit(assemble(group([1.0, 0.0], [long, short])), Credit())
    assert out.samples_S[0].advantages.sum() == 5.0
    assert out.samples_S[1].advantages.sum() == -0.5


def test_one_advantage_covers_the_whole_chain():
    chain = episode("0-0-0", segment(turn([1], [2])), segment(turn([3], [4, 5]), index=1))
    out = credit(assemble(group([1.0, 0.0], [chain, episode("0-1-0", segment(turn([1], [2])))])), Credit())
    assert [s.advantages.tolist() for s in out.samples_S] == [[0, 0.5], [0, 0.5, 0.5], [0, -0.5]]


def with_reference(attempts, values):
    scored = [
        msgspec.structs.replace(s, ref_logprobs=np.where(s.mask, v, 0).astype(np.float32))
        for s, v in zip(attempts.samples_S, values, strict=True)
    ]
    return attempts._replace(samples_S=tuple(scored))


def test_kl_enters_the_reward_before_the_mean():
    """Engine -0.5 on two tokens. References -1.5 and -0.5: KL sums 2 and 0; rewards 1 - .1 * 2 and 0."""
    attempts = with_reference(assemble(group([1.0, 0.0])), [-1.5, -0.5])
    out = credit(attempts, Credit(kl=0.1))
    assert out.rewards_G == pytest.approx([0.8, 0.0])
    assert [s.advantages[-1] for s in out.samples_S] == pytest.approx([0.4, -0.4])
    assert out.varied


def test_kl_counts_every_segment_of_an_attempt():
    chain = episode("0-0-0", segment(turn([1], [2])), segment(turn([3], [4, 5]), index=1))
    attempts = with_reference(assemble(group([0.0], [chain])), [-1.0, -2.5])
    assert credit(attempts, Credit(kl=1.0)).rewards_G == pytest.approx([-(0.5 + 2 * 2.0)])


def test_kl_without_a_reference_is_refused():
    with pytest.raises(ValueError, match="no reference log-probabilities"):
        credit(assemble(group([1.0])), Credit(kl=0.1))


def test_variance_is_judged_on_what_the_graders_said():
    attempts = with_reference(assemble(group([1.0, 1.0])), [-1.5, -0.5])
    assert not credit(attempts, Credit(kl=0.1)).varied


def test_an_unknown_algorithm_lists_the_known_ones():
    with pytest.raises(ValueError, match="group_mean, leave_one_out"):
        credit(assemble(group([1.0])), Credit(algorithm="grpo"))


def test_penalty_closed_forms():
    assert penalty(0, 0.3, 0.7) == 0
    assert penalty(7, 0.2, 0) == pytest.approx(7)
    assert penalty(7, 0.2, 1) == pytest.approx(math.log(1 + 0.2 * 7) / 0.2)
    assert penalty(3, 1, 0.5) == pytest.approx(2.0)  # (4^0.5 - 1) / 0.5
    assert penalty(1e12, 0.5, 3) == pytest.approx(1 / (0.5 * 2))
    for k, q in ((0.1, 0.5), (2, 1), (3, 2)):
        assert penalty(1e-6, k, q) == pytest.approx(1e-6, rel=1e-4)
    assert penalty(5, 0.1, 1 + 1e-7) == pytest.approx(penalty(5, 0.1, 1), rel=1e-5)
    with pytest.raises(ValueError, match="k > 0"):
        penalty(1, 0, 1)


def test_the_six_counts_by_hand():
    e = episode(
        "0-0-0",
        segment(turn([1] * 5, [90, 8, 91, 7], calls=2), turn([1] * 3, [7, 7], calls=1, index=1)),
        segment(turn([1] * 9, [90, 6]), index=1),
    )
    got = counts(e, (90, 91))
    assert got == (3 + 2, 1 + 2, 3, 0, 3, 3)
    assert counts(e, None) == (0, 4 + 2, 3, 2, 3, 3)


def test_poor_tool_calls_are_paid_from_the_reward():
    clumsy, deft = (episode(f"0-{i}-0", segment(turn([1], [2]))) for i in range(2))
    clumsy = msgspec.structs.replace(clumsy, usage=Usage(tool_errors=3))
    out = credit(assemble(group([0.0, 0.0], [clumsy, deft])), Credit(tool_error=0.1))
    assert out.rewards_G == pytest.approx([-0.3, 0.0])
    assert [float(s.advantages[-1]) for s in out.samples_S] == pytest.approx([-0.15, 0.15])
    assert not out.varied
    with pytest.raises(ValueError, match="tool_error -1"):
        Credit(tool_error=-1)


def test_length_penalty_is_paid_from_the_reward():
    config = LengthPenalty(scale=0.5, k=1, q=0, tool_call=1, final=0.1, calls=2, turns=3)
    e = episode("0-0-0", segment(turn([1], [2, 2], calls=1), turn([1], [3], index=1)))
    assert length_penalty(e, config) == pytest.approx(0.5 * (2 * 1 + 1 * 0.1 + 1 * 2 + 2 * 3))
    short = episode("0-1-0", segment(turn([1], [3])))
    out = credit(assemble(group([1.0, 1.0], [e, short])), Credit(length=config))
    assert out.rewards_G == pytest.approx([1 - 5.05, 1 - 1.55])
    assert not out.varied
