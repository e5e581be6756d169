import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.data.chats import ChatError, chats_of, check, read_chats, write_chats
from twinmill.records.chats import Chat
from twinmill.records.episodes import (
    Episode,
    Finish,
    OpenedBy,
    Segment,
    StopReason,
    Turn,
    Usage,
    Verdict,
    VersionRun,
)


def turn(input_ids, sampled_ids):
    n = len(sampled_ids)
    runs = (VersionRun(version=0, count=n),)
    return Turn(
        index=0, input_ids=input_ids, sampled_ids=sampled_ids, logprobs=[0.0] * n, version_runs=runs, finish=Finish.STOP
    )


def episode(*segments):
    return Episode(
        id="expert-7",
        task_id="toy/1",
        group_id="",
        attempt=0,
        segments=tuple(
            Segment(index=i, opened_by=OpenedBy.TASK, turns=tuple(turns)) for i, turns in enumerate(segments)
        ),
        stop=StopReason.FINISHED,
        versions=(0, 0),
        usage=Usage(),
        cluster="",
        seed=0,
    )


def test_each_segment_becomes_a_chat_by_hand():
    played = episode([turn([1, 2], [9, 3]), turn([5], [6])], [turn([1, 7], [8])], [turn([4], [])])
    verdict = Verdict(episode_id="expert-7", scores={}, reward=1.0)
    assert chats_of(played, verdict) == [
        Chat(id="expert-7/0", token_ids=[1, 2, 9, 3, 5, 6], sampled=((2, 2), (5, 1)), task_id="toy/1", reward=1.0),
        Chat(id="expert-7/1", token_ids=[1, 7, 8], sampled=((2, 1),), task_id="toy/1", reward=1.0),
    ]
    assert chats_of(played)[0].reward is None


@st.composite
def chats(draw):
    parts = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4))
    ids, runs = [], []
    for context, count in parts:
        ids += draw(st.lists(st.integers(0, 2**31), min_size=context, max_size=context))
        runs.append((len(ids), count))
        ids += [7] * count
    return Chat(id=draw(st.text(max_size=8)), token_ids=ids, sampled=tuple(runs), reward=draw(st.none() | st.just(0.5)))


@pytest.mark.parametrize("suffix", [".jsonl", ".msgpack"])
@settings(max_examples=25, deadline=None)
@given(written=st.lists(chats(), max_size=5))
def test_what_is_read_is_what_was_written(tmp_path_factory, suffix, written):
    path = tmp_path_factory.mktemp("chats") / f"c{suffix}"
    assert write_chats(path, written) == len(written)
    assert read_chats(path) == written


CHAT = Chat(id="a", token_ids=[1, 2, 3], sampled=((1, 2),))


@pytest.mark.parametrize("suffix", [".jsonl", ".msgpack"])
def test_a_truncated_file_names_itself_and_the_chat(tmp_path, suffix):
    path = tmp_path / f"c{suffix}"
    write_chats(path, [CHAT, CHAT])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ChatError, match=rf"c\{suffix}, chat 1 \(from 0\)"):
        read_chats(path)


@pytest.mark.parametrize("sampled", [((0, 1),), ((1, 3),), ((1, 0),), ((1, 2), (2, 1)), ((2, 1), (1, 1))])
def test_a_chat_that_contradicts_itself_is_refused(tmp_path, sampled):
    chat = Chat(id="odd", token_ids=[1, 2, 3], sampled=sampled)
    with pytest.raises(ChatError, match="chat odd: sampled run"):
        check(chat)
    with pytest.raises(ChatError):
        write_chats(tmp_path / "c.jsonl", [CHAT, chat])
    assert not list(tmp_path.iterdir()), "whole or not at all"


def test_another_suffix_lists_the_known_ones(tmp_path):
    with pytest.raises(ChatError, match=r"\.jsonl or \.msgpack"):
        write_chats(tmp_path / "c.json", [CHAT])
