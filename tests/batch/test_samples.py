import numpy as np
import pytest

from twinmill.batch.drops import Drop
from twinmill.batch.samples import Lost, MixtureShape, SampleError, assemble
from twinmill.records.base import Ref
from twinmill.records.episodes import Boundary, DropReason, Failure, Turn, VersionRun

from .toys import episode, group, segment, turn

REF = Ref(key="experts/7", digest="d", bytes=1)


def test_a_segment_becomes_one_sample_token_by_token():
    e = episode("7-0-0", segment(turn([1, 2], [9, 3], runs=((3, 1), (4, 1)), logprob=-0.1), turn([5], [6], 4)))
    attempts = assemble(group([1.0], [e]))
    [s] = attempts.samples_S
    assert s.token_ids.tolist() == [1, 2, 9, 3, 5, 6]
    assert s.mask.tolist() == [False, False, True, True, False, True]
    assert s.versions.tolist() == [-1, -1, 3, 4, -1, 4]
    assert s.logprobs == pytest.approx([0, 0, -0.1, -0.1, 0, -0.5])
    assert s.version_runs == (VersionRun(version=3, count=1), VersionRun(version=4, count=2))
    assert s.advantages.tolist() == [0] * 6


def test_every_segment_is_a_sample_of_its_attempt():
    chain = episode("7-1-0", segment(turn([1], [2])), segment(turn([3], [4]), index=1))
    attempts = assemble(group([1.0, 0.0], [episode("7-0-0", segment(turn([1], [2]))), chain]))
    assert attempts.owner_S == (0, 1, 1)
    assert [s.segment for s in attempts.samples_S] == [0, 0, 1]


def test_a_segment_without_sampled_tokens_is_no_sample():
    e = episode("7-0-0", segment(turn([1], [2])), segment(turn([3], []), index=1), segment(index=2))
    assert len(assemble(group([1.0], [e])).samples_S) == 1


@pytest.mark.parametrize(
    "broken",
    [
        Turn(
            index=4,
            input_ids=[1],
            sampled_ids=[2, 3],
            logprobs=[-1.0],
            version_runs=(),
            finish=turn([1], [2]).finish,
        ),
        turn([1], [2, 3], runs=((0, 1),)),
        turn([1], [2, 3], runs=((0, 3),)),
    ],
)
def test_unequal_lengths_raise_and_name_the_episode(broken):
    with pytest.raises(SampleError, match=r"7-0-0, segment 0, turn"):
        assemble(group([1.0], [episode("7-0-0", segment(broken))]))


def test_versions_never_decrease_even_across_a_summary():
    e = episode("7-0-0", segment(turn([1], [2], 3)), segment(turn([3], [4], 2), index=1))
    with pytest.raises(SampleError, match="version 2 after version 3"):
        assemble(group([1.0], [e]))


def test_a_token_without_a_version_raises():
    with pytest.raises(SampleError, match="version -1"):
        assemble(group([1.0], [episode("7-0-0", segment(turn([1], [2], -1)))]))


def test_a_logprob_that_is_not_finite_raises():
    with pytest.raises(SampleError, match="not finite"):
        assemble(group([1.0], [episode("7-0-0", segment(turn([1], [2], logprob=float("nan"))))]))


def test_a_first_token_without_context_raises():
    with pytest.raises(SampleError, match="no context"):
        assemble(group([1.0], [episode("7-0-0", segment(turn([], [2])))]))


def test_no_reward_and_infrastructure_are_outside_the_statistics():
    failure = Failure(boundary=Boundary.ENGINE, type="EngineError", message="lost")
    lost = episode("0-1-0", segment(turn([1], [2])), error=failure)
    whole = [episode(f"0-{i}-0", segment(turn([1], [2]))) for i in (0, 2)]
    attempts = assemble(group([1.0, 0.0, None], [whole[0], lost, whole[1]]))
    assert attempts.rewards_G.tolist()[:1] == [1.0]
    assert np.isnan(attempts.rewards_G[1:]).all()


def test_verdicts_belong_to_their_episodes():
    one = group([1.0])
    other = group([1.0], slot=5)
    mixed = type(one)(slot=0, task_id="toy", size=1, episodes_G=one.episodes_G, verdicts_G=other.verdicts_G)
    with pytest.raises(SampleError, match="verdict of 5-0-0 beside episode 0-0-0"):
        assemble(mixed)


def test_a_dropped_group_has_no_samples():
    dropped = type(group([]))(slot=3, task_id="toy", size=0, episodes_G=(), verdicts_G=(), drop=DropReason.CLUSTER_LOST)
    with pytest.raises(ValueError, match="slot 3 was dropped"):
        assemble(dropped)


def test_recorded_experts_travel_with_the_sample():
    experts = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2)
    e = episode("7-0-0", segment(turn([1, 2], [3, 4]), experts=REF))
    attempts = assemble(group([1.0], [e]), lambda ref: experts if ref == REF else Lost("gone"))
    assert attempts.samples_S[0].experts.dtype == np.uint16
    assert attempts.samples_S[0].experts.tolist() == experts.tolist()


@pytest.mark.parametrize("positions", [2, 4])
def test_experts_that_do_not_cover_every_position_reject_the_sample_by_name(positions):
    e = episode("7-0-0", segment(turn([1, 2], [3, 4]), experts=REF))
    attempts = assemble(group([1.0], [e]), lambda _: np.zeros((positions, 2, 2), np.uint16))
    assert attempts.samples_S == ()
    [rejected] = attempts.rejected
    assert (rejected.episode_id, rejected.segment, rejected.reason) == ("7-0-0", 0, Drop.MISALIGNED_EXPERTS)
    assert attempts.rewards_G.tolist() == [1.0], "the reward still counts in its group"


def test_missing_experts_reject_only_when_replay_is_on():
    e = episode("7-0-0", segment(turn([1, 2], [3, 4])))
    assert len(assemble(group([1.0], [e])).samples_S) == 1
    [rejected] = assemble(group([1.0], [e]), lambda _: Lost("gone")).rejected
    assert (rejected.reason, rejected.detail) == (Drop.NO_EXPERTS, "no experts were recorded")
    e = episode("7-0-0", segment(turn([1, 2], [3, 4]), experts=REF))
    [rejected] = assemble(group([1.0], [e]), lambda _: Lost("gone")).rejected
    assert (rejected.episode_id, rejected.reason, rejected.detail) == ("7-0-0", Drop.NO_EXPERTS, "experts/7: gone")


@pytest.mark.parametrize("mixture", [MixtureShape(3, 2, 8), MixtureShape(2, 1, 8), MixtureShape(2, 2, 5)])
def test_experts_of_another_model_reject_the_sample_by_name(mixture):
    """Three layers, one expert, or fewer experts than number 5."""
    e = episode("7-0-0", segment(turn([1, 2], [3, 4]), experts=REF))
    experts = np.full((3, 2, 2), 5, np.uint16)
    [rejected] = assemble(group([1.0], [e]), lambda _: experts, mixture).rejected
    assert (rejected.episode_id, rejected.reason) == ("7-0-0", Drop.MISALIGNED_EXPERTS)
    assert "2 experts up to number 5 in 2 layers were recorded; the model has" in rejected.detail
    assert assemble(group([1.0], [e]), lambda _: experts, MixtureShape(2, 2, 6)).rejected == ()
