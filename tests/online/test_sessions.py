"""A foreign harness's sessions: token-exact, in segments, and at the end an ordinary episode of the episodes log."""

import asyncio

import numpy as np
import openai
import pytest

from twinmill.batch.samples import assemble
from twinmill.engine.scripted import Said
from twinmill.online.gateway.slots import Slots
from twinmill.records.engines import ScoreRequest
from twinmill.records.episodes import DropReason, Finish, OpenedBy, StopReason
from twinmill.store.audit import audit
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.ledger import EpisodesLog
from twinmill.store.routes import decode

from .rigs import BASH, Reciter, bash, nano, running, text, user


@pytest.fixture
def blobs(tmp_path) -> Blobs:
    return open_blobs(f"file://{tmp_path}/store")


def landed(blobs: Blobs) -> list:
    log = EpisodesLog(blobs)
    return [attempt for lane in log.lanes() for _, attempt in log.tail(lane)]


def load(blobs: Blobs):
    return lambda ref: decode(blobs.get_ref(ref))


def say(client, history: list, **more):
    """One call, and the history with what came of it, as harnesses keep it."""
    answer = client.chat.completions.create(model="whatever-the-product-says", messages=history, **more)
    return answer, [*history, answer.choices[0].message.to_dict()]


def test_a_session_lands_as_an_episode_whose_tokens_are_those_that_were_sampled(blobs):
    # "<|call|>bash" is sampled in ids that no tokenizer would give: they must come back as they were
    odd = [*nano().text_ids("a"), *nano().text_ids("b"), *nano().text_ids("c")]
    assert odd != nano().text_ids("abc")
    turns = [[*odd, *bash("ls")], bash("cat x"), text("done")]
    engine = Reciter(turns, version=3)
    with running(engine, blobs=blobs) as on:
        session = on.session("repair/17")
        client = on.client(base_url=session["base_url"])
        answer, history = say(client, [user("Fix it.")], tools=[BASH])
        assert answer.twinmill["new_segment"] == "the first call"
        engine.version = 4
        answer, history = say(client, [*history, {"role": "tool", "content": "x", "tool_call_id": "1"}], tools=[BASH])
        assert answer.twinmill["new_segment"] is None
        answer, history = say(
            client, [*history, {"role": "tool", "content": "1", "tool_call_id": "2"}, user("?")], tools=[BASH]
        )
        ended = on.reward(session, 0.5, scores={"tests": 0.5}).json()
        assert (ended["group_complete"], ended["slot"], ended["turns"]) == (True, 0, 3)
    [attempt] = landed(blobs)
    episode = attempt.episode
    [segment] = episode.segments
    assert [turn.sampled_ids for turn in segment.turns] == turns
    whole = [i for turn in segment.turns for i in (*turn.input_ids, *turn.sampled_ids)]
    assert whole[: len(engine.requests[-1].token_ids)] == engine.requests[-1].token_ids, "the engine saw these very ids"
    assert nano().decode(segment.turns[2].input_ids) == "<|tool|>1<|end|><|user|>?<|end|><|bot|>"
    assert [turn.observation for turn in segment.turns] == ["x", "1\n?", None]
    assert [call.arguments for call in segment.turns[1].tool_calls] == [{"command": "cat x"}]
    assert episode.versions == (3, 4)
    assert (episode.task_id, episode.stop, episode.error) == ("repair/17", StopReason.FINISHED, None)
    assert (attempt.verdict.reward, attempt.verdict.scores["tests"].value) == (0.5, 0.5)
    assert load(blobs)(segment.experts).shape == (len(whole) - 1, 2, 2)
    found = audit(blobs)
    assert [p for p in found.problems if "which does not exist" not in p] == [], (
        "the versions are in no weights log here"
    )


def test_the_trainer_reads_it_and_the_engine_scores_it_the_same(blobs, real):
    with running(real, blobs=blobs, context_tokens=512) as on:
        first, second = on.session(group="g", attempts=2), on.session(group="g", attempts=2)
        for session in (first, second):
            client = on.client(base_url=session["base_url"])
            history = [user("Fix main.py. The tests fail.")]
            for k in range(3):
                _, history = say(client, history, tools=[BASH], max_tokens=24, stream=False)
                history = [*history, user(f"That was turn {k}; go on.")]
        assert not on.reward(first, 1.0).json()["group_complete"]
        assert on.reward(second, 0.0).json()["group_complete"]
    log = EpisodesLog(blobs)
    group = log.group_of(log.close_of(0))
    attempts = assemble(group, load(blobs))
    assert list(attempts.rewards_G) == [1.0, 0.0]
    assert attempts.rejected == ()
    assert [len(episode.segments) for episode in group.episodes_G] == [1, 1]
    assert attempts.samples_S[0].token_ids.tolist() != attempts.samples_S[1].token_ids.tolist(), "seeds differ"
    for sample in attempts.samples_S:
        scores = asyncio.run(real.score(ScoreRequest(token_ids=sample.token_ids.tolist())))
        assert sample.mask.sum() >= 3
        scored = np.array([0.0, *scores.logprobs], np.float32)
        assert (scored[sample.mask] == sample.logprobs[sample.mask]).all(), "to the last bit: the backend is strict"
        assert sample.experts.shape == (len(sample.token_ids) - 1, 4, 2)


def test_other_histories_open_segments_and_the_answer_says_why(blobs):
    engine = Reciter([text("one"), text("two"), text("sub"), text("three"), text("fresh"), text("again")])
    with running(engine, blobs=blobs) as on:
        session = on.session()
        client = on.client(base_url=session["base_url"])
        first, history = say(client, [user("go")])
        _, history = say(client, [*history, user("more")])
        main = list(engine.requests[-1].token_ids)
        sub, _ = say(client, [user("you are a helper")])
        back, _ = say(client, [*history, user("and more")])
        cut, _ = say(client, [user("summary of all that"), user("go on")])
        again, _ = say(client, [*history, user("and more")])
        on.reward(session, 1.0)
        assert first.twinmill["segment"] == 0
        assert sub.twinmill["new_segment"] == "the history does not extend what was said in this session"
        assert "earlier point, in segment 0" in back.twinmill["new_segment"]
        assert "does not extend" in cut.twinmill["new_segment"]
        assert "earlier point, in segment 0" in again.twinmill["new_segment"]
    [attempt] = landed(blobs)
    segments = attempt.episode.segments
    assert [s.opened_by for s in segments] == [
        OpenedBy.TASK, OpenedBy.HISTORY, OpenedBy.RESTORE, OpenedBy.HISTORY, OpenedBy.RESTORE,
    ]  # fmt: skip
    assert segments[2].turns[0].input_ids[: len(main)] == main
    assert segments[2].turns[0].input_ids == segments[4].turns[0].input_ids
    assert [r.sampling.seed - attempt.episode.seed for r in engine.requests] == [0, 0, 1, 2, 3, 4]
    assert len(assemble(EpisodesLog(blobs).group_of(EpisodesLog(blobs).close_of(0)), load(blobs)).samples_S) == 5


def test_a_harness_may_strip_what_was_said_and_rewrite_arguments(blobs):
    engine = Reciter([bash("ls", "  spaces  "), text("ok")])
    with running(engine, blobs=blobs) as on:
        client = on.client(base_url=on.session()["base_url"])
        answer, _ = say(client, [user("go")], tools=[BASH])
        echo = {
            "role": "assistant", "content": answer.choices[0].message.content.strip(), "extra": {"thinking": None},
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "bash", "arguments": '{ "command":"ls" }'}}],
        }  # fmt: skip
        answer, _ = say(client, [user("go"), echo, {"role": "tool", "content": "f", "tool_call_id": "x"}], tools=[BASH])
    assert answer.twinmill["new_segment"] is None


def test_completions_in_a_session_go_on_by_text_and_by_ids(blobs):
    engine = Reciter([text(" b"), text(" d"), text("2"), text("4")])
    with running(engine, blobs=blobs) as on:
        client = on.client(base_url=on.session()["base_url"])
        assert client.completions.create(model="m", prompt="a", max_tokens=9).choices[0].text == " b"
        answer = client.completions.create(model="m", prompt="a b c", max_tokens=9)
        assert answer.twinmill["new_segment"] is None
        assert engine.requests[1].token_ids == [*engine.requests[0].token_ids, *text(" b"), *nano().text_ids(" c")]
        client = on.client(base_url=on.session()["base_url"])
        first = client.completions.create(
            model="m", prompt=[1, 9, 9], max_tokens=9, extra_body={"return_token_ids": True}
        )
        second = client.completions.create(model="m", prompt=[1, 9, 9, *first.choices[0].token_ids, 11], max_tokens=9)
        assert second.twinmill["new_segment"] is None


def test_a_sessions_calls_are_sampled_at_its_own_temperature(blobs):
    engine = Reciter([text("x")])
    with running(engine, blobs=blobs) as on:
        session = on.session(temperature=1.0, seed=9)
        answer, _ = say(on.client(base_url=session["base_url"]), [user("go")], temperature=0.0, top_p=0.5, seed=4)
        sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (1.0, 1.0, 9)
    assert answer.twinmill["temperature"] == 1.0


def test_stop_strings_leave_whole_tokens_and_nothing_behind_them(blobs):
    engine = Reciter([text("alpha beta gamma delta"), text("on")])
    with running(engine, blobs=blobs, slice_tokens=5) as on:
        session = on.session()
        client = on.client(base_url=session["base_url"])
        answer, history = say(client, [user("go")], stop=[" gam"])
        assert answer.choices[0].message.content == "alpha beta"
        answer, _ = say(client, [*history, user("on")])
        assert answer.twinmill["new_segment"] is None
        on.reward(session, 1.0)
    [turn, second] = landed(blobs)[0].episode.segments[0].turns
    assert turn.finish is Finish.STOP
    assert nano().decode(turn.sampled_ids).startswith("alpha beta gam")
    assert turn.sampled_ids == text("alpha beta gamma delta")[: len(turn.sampled_ids)]
    assert len(turn.logprobs) == len(turn.sampled_ids) == sum(run.count for run in turn.version_runs)
    assert nano().decode(second.input_ids).startswith("<|end|><|user|>on"), (
        "the turn is closed, since it did not stop itself"
    )


def test_an_attempt_without_a_reward_is_logged_and_its_place_is_played_again(blobs):
    with running(Reciter([text("x")] * 3), blobs=blobs) as on:
        lost, kept = on.session(group="g", attempts=2), on.session(group="g", attempts=2)
        for session in (lost, kept):
            say(on.client(base_url=session["base_url"]), [user("go")])
        with on.http() as http:
            refused = http.post("/v1/sessions", json={"task": "t", "group": "g", "attempts": 2})
            assert refused.status_code == 409 and "has its 2 attempts" in refused.json()["error"]["message"]
            assert http.post("/v1/sessions", json={"task": "other", "group": "g", "attempts": 2}).status_code == 409
            ended = http.delete(f"/v1/sessions/{lost['id']}")
            assert (ended.status_code, ended.json()["reward"]) == (200, None)
        again = on.session(group="g", attempts=2)
        assert (again["attempt"], again["seed"]) == (lost["attempt"], lost["seed"])
        say(on.client(base_url=again["base_url"]), [user("go")])
        on.reward(again, 1.0)
        on.reward(kept, 0.0)
    close = EpisodesLog(blobs).close_of(0)
    assert (close.drop, close.lost, len(close.entries_G)) == (None, 1, 2)
    assert [a.episode.id for a in landed(blobs)] == ["0-0-0", "0-0-1", "0-1-0"]
    assert landed(blobs)[0].verdict.reward is None


def test_a_reward_counts_once_and_is_told_again_to_who_lost_the_answer(blobs):
    with running(Reciter([text("x")]), blobs=blobs) as on:
        session = on.session()
        refused = on.reward(session, 1.0)
        assert (refused.status_code, "nothing was said" in refused.text) == (409, True)
        client = on.client(base_url=session["base_url"])
        say(client, [user("go")])
        first, second = on.reward(session, 1.0), on.reward(session, 1.0)
        assert first.json() == second.json()
        assert on.reward(session, 0.0).status_code == 409
        with pytest.raises(openai.NotFoundError, match="has ended"):
            say(client, [user("go")])
        with on.http() as http:
            assert http.get(f"/v1/sessions/{session['id']}").status_code == 404
    assert len(landed(blobs)) == 1


def test_a_client_that_leaves_has_not_spoken(blobs):
    long = text("a b c d e f g h i j k l m n o p q r s t u v w x y z")
    engine = Reciter([long, long, text("x")], token_s=0.05)
    with running(engine, blobs=blobs, slice_tokens=2) as on:
        session = on.session()
        hasty = on.client(base_url=session["base_url"]).with_options(timeout=0.3)
        with pytest.raises(openai.APITimeoutError):
            say(hasty, [user("go")])
        with on.client(base_url=session["base_url"]).chat.completions.create(
            model="m", messages=[user("go")], stream=True
        ) as stream:
            next(iter(stream))
        answer, _ = say(on.client(base_url=session["base_url"]), [user("go")])
        assert answer.choices[0].message.content == "x"
        assert (answer.twinmill["segment"], answer.twinmill["turn"]) == (0, 0)
        on.reward(session, 1.0)
    [attempt] = landed(blobs)
    assert attempt.episode.usage.turns == 1


def test_an_engine_that_goes_back_is_refused(blobs):
    engine = Reciter([text("x")])
    engine.policy = lambda request: Said(text("x"), version=5 if len(engine.requests) == 1 else 4)
    with running(engine, blobs=blobs) as on:
        client = on.client(base_url=on.session()["base_url"])
        _, history = say(client, [user("go")])
        with pytest.raises(openai.InternalServerError, match="went back from version 5 to 4"):
            say(client, [*history, user("more")])


def test_sessions_that_nobody_comes_back_to_end_ungraded(blobs):
    with running(Reciter([text("x")]), blobs=blobs, idle_s=1.5) as on:
        session = on.session()
        say(on.client(base_url=session["base_url"]), [user("go")])
        log = EpisodesLog(blobs)
        for _ in range(600):
            if log.close_of(0) is not None:
                break
            asyncio.run(asyncio.sleep(0.05))
        assert log.close_of(0).drop is DropReason.UNGRADABLE
    [attempt] = landed(blobs)
    assert (attempt.episode.stop, attempt.verdict.reward) == (StopReason.DEADLINE, None)


def test_what_a_killed_gateway_left_open_is_dropped_by_the_next(blobs):
    async def killed() -> None:
        await Slots(EpisodesLog(blobs), cluster="gateway", seed=0).open("t", "g", 2, 0)

    asyncio.run(killed())
    with running(Reciter([text("x")]), blobs=blobs) as on:
        session = on.session()
        assert session["slot"] == 1
        assert EpisodesLog(blobs).close_of(0).drop is DropReason.INFRASTRUCTURE
    assert EpisodesLog(blobs).close_of(1).drop is DropReason.INFRASTRUCTURE, "stopped before the reward came"
    [attempt] = landed(blobs)
    assert (attempt.episode.stop, attempt.episode.error.type) == (StopReason.ERROR, "Drained")


def test_without_a_store_there_are_no_sessions():
    with running(Reciter([])) as on, on.http() as http:
        answer = http.post("/v1/sessions", json={"task": "t"})
    assert answer.status_code == 503
    assert "start it with a store" in answer.json()["error"]["message"]
