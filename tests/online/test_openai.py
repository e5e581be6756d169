"""The official client against a gateway: what it understands, and how it is refused."""

import openai
import pytest

from twinmill.engine.scripted import LOGPROB, ScriptedEngine

from .rigs import BASH, Reciter, bash, nano, running, text, user

BROKEN = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}


def test_models_are_listed_and_health_says_ok():
    with running(Reciter([])) as on:
        assert [model.id for model in on.client().models.list()] == ["nano"]
        assert on.client().models.retrieve("nano").owned_by == "twinmill"
        with on.http() as http:
            assert http.get("/health").json()["status"] == "ok"


def test_a_chat_is_answered_with_logprobs_ids_and_version():
    ids = text("Hello there")
    with running(Reciter([ids], version=7)) as on:
        answer = on.client().chat.completions.create(
            model="nano", messages=[user("Hi")], logprobs=True, extra_body={"return_token_ids": True}
        )
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello there", "stop")
    assert [token.logprob for token in choice.logprobs.content] == [LOGPROB] * len(ids)
    assert "".join(token.token for token in choice.logprobs.content) == "Hello there<|end|>"
    assert choice.token_ids == ids
    assert answer.twinmill == {"version_runs": [[7, len(ids)]]}
    assert answer.system_fingerprint == "version-7"
    assert answer.usage.completion_tokens == len(ids)
    assert answer.usage.prompt_tokens == len(answer.prompt_token_ids)


def test_the_prompt_is_what_the_family_renders():
    engine = Reciter([text("x")])
    with running(engine) as on:
        on.client().chat.completions.create(
            model="nano",
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            ],
        )
    assert nano().decode(engine.requests[0].token_ids) == "<|bos|><|sys|>Be brief.<|end|><|user|>Hi<|end|><|bot|>"


def test_a_stream_says_the_same_slice_by_slice():
    said = "one two three four five six seven eight nine ten, again and again: 日本語 and so on"
    ids = text(said)
    with running(Reciter([ids, ids]), slice_tokens=2) as on:
        client = on.client()
        chunks = list(
            client.chat.completions.create(
                model="nano", messages=[user("Hi")], stream=True, logprobs=True, stream_options={"include_usage": True}
            )
        )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said
    assert len(chunks) > 10, "it streams"
    assert sum(len(chunk.choices[0].logprobs.content) for chunk in chunks if chunk.choices) == len(ids)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == len(ids)


def test_a_real_engine_streams_what_it_would_have_said_at_once(real):
    ask = dict(model="nano", messages=[user("Fix main.py.")], max_tokens=60, seed=5)
    with running(real, context_tokens=512, slice_tokens=3) as on:
        client = on.client()
        whole = client.chat.completions.create(**ask, logprobs=True)
        parts = list(client.chat.completions.create(**ask, stream=True, logprobs=True))
    streamed = "".join(part.choices[0].delta.content for part in parts)
    assert streamed == whole.choices[0].message.content
    logprobs = [token.logprob for part in parts for token in part.choices[0].logprobs.content]
    assert logprobs == [token.logprob for token in whole.choices[0].logprobs.content]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_and_their_results_go_back(stream):
    engine = Reciter([bash("ls -l", "Looking."), text("Two files.")])
    with running(engine, slice_tokens=2) as on:
        client = on.client()
        ask = dict(model="nano", messages=[user("What is here?")], tools=[BASH])
        if stream:
            with client.chat.completions.stream(**ask) as events:
                for _ in events:
                    pass
                first = events.get_final_completion()
        else:
            first = client.chat.completions.create(**ask)
        [choice] = first.choices
        [call] = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Looking."
        assert (call.function.name, call.function.arguments) == ("bash", '{"command": "ls -l"}')
        history = [
            *ask["messages"],
            choice.message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "a b"},
        ]
        second = client.chat.completions.create(model="nano", messages=history, tools=[BASH])
    assert second.choices[0].message.content == "Two files."
    assert (
        nano()
        .decode(engine.requests[-1].token_ids)
        .endswith("<|bot|>Looking.<|call|>bash<|arg|>ls -l<|end|><|tool|>a b<|end|><|bot|>")
    )


def test_what_is_no_call_of_a_known_tool_is_text_and_said_to_be_so():
    with running(Reciter([bash("ls")])) as on:
        answer = on.client().chat.completions.create(model="nano", messages=[user("Hi")])
    assert answer.choices[0].message.content == "<|call|>bash<|arg|>ls"
    assert answer.choices[0].message.tool_calls is None
    assert answer.twinmill["tool_call_mistake"] == "no tool 'bash'"


def test_several_answers():
    engine = ScriptedEngine(lambda request: text(f"seed {request.sampling.seed % 100}"))
    with running(engine) as on:
        answer = on.client().chat.completions.create(model="nano", messages=[user("Hi")], n=3, seed=40)
    assert [choice.message.content for choice in answer.choices] == ["seed 40", "seed 41", "seed 42"]
    assert answer.usage.prompt_tokens == len(engine.requests[0].token_ids), "one prompt counts once"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_and_are_not_part_of_it(stream):
    engine = Reciter([text("alpha beta gamma delta")])
    with running(engine, slice_tokens=3) as on:
        answer = on.client().completions.create(
            model="nano", prompt="x", stop=["ma d", "zzz"], max_tokens=50, stream=stream
        )
        if stream:
            chunks = list(answer)
            said, finish = "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason
        else:
            said, finish = answer.choices[0].text, answer.choices[0].finish_reason
    assert (said, finish) == ("alpha beta gam", "stop")


def test_completions_of_texts_and_ids():
    engine = ScriptedEngine(lambda request: text(nano().decode(request.token_ids[-1:]) * 2))
    with running(engine) as on:
        client = on.client()
        answer = client.completions.create(model="nano", prompt=["a", "b"], logprobs=1, max_tokens=9)
        assert [choice.text for choice in answer.choices] == ["aa", "bb"]
        assert len(answer.choices[0].logprobs.tokens) == len(answer.choices[0].logprobs.text_offset)
        ids = nano().text_ids("c")
        assert client.completions.create(model="nano", prompt=ids).choices[0].text == "cc"
        assert engine.requests[-1].token_ids == ids, "ids are taken as they are"


@pytest.mark.parametrize(
    ("change", "kind", "names"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "nano"),
        ({"max_tokens": 5000}, openai.BadRequestError, "at most 4096"),
        ({"max_tokens": 1024}, openai.BadRequestError, "room for 1024 tokens"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, openai.BadRequestError, "wizard"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"logit_bias": {"5": 1.0}}, openai.BadRequestError, "logit_bias"),
        ({"extra_body": {"top_k": 5}}, openai.BadRequestError, "top_k: this server has no such parameter"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
        ({"n": 2, "stream": True}, openai.BadRequestError, "one answer can be streamed"),
        ({"n": 99}, openai.BadRequestError, "at most 16"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            openai.BadRequestError,
            "text only",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [BROKEN]}]},
            openai.BadRequestError,
            "messages[0].tool_calls[0]",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_words(change, kind, names):
    with running(Reciter([])) as on, pytest.raises(kind) as refused:
        on.client().chat.completions.create(**{"model": "nano", "messages": [user("Hi")], **change})
    assert names in refused.value.body["message"]
    assert refused.value.type == "invalid_request_error"


def test_a_lost_engine_is_a_503_that_clients_may_try_again():
    engine = Reciter([text("x")])
    engine.lose("somebody pulled the plug")
    with running(engine) as on:
        with pytest.raises(openai.InternalServerError, match="pulled the plug") as refused:
            on.client().chat.completions.create(model="nano", messages=[user("Hi")])
        assert refused.value.status_code == 503
        with on.http() as http:
            assert http.get("/health").status_code == 503


def test_an_engine_that_is_lost_in_mid_stream_is_an_error_in_the_stream():
    engine = Reciter([text("a b c d e f g h i j k l m n o p q r s t u v w x y z")], token_s=0.05)
    with running(engine, slice_tokens=2) as on:
        stream = on.client().chat.completions.create(model="nano", messages=[user("Hi")], stream=True)
        next(stream)
        engine.lose("somebody pulled the plug")
        with pytest.raises(openai.APIError, match="pulled the plug"):
            list(stream)
