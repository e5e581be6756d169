"""Keys, and how much a gateway takes at once."""

import threading
import time

import openai
import pytest

from twinmill.store.blobs import open_blobs

from .rigs import Reciter, running, text, user


@pytest.mark.parametrize("key", ["wrong", "öß", "good2", "'"])
def test_who_has_no_key_is_refused(key):
    with running(Reciter([]), keys=("good", "better")) as on, on.http() as http:
        headers = {"Authorization": f"Bearer {key}".encode()}
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/sessions"),
            ("GET", "/v1/sessions/x"),
        ):
            answer = http.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), path
        assert http.get("/health").status_code == 200, "whoever balances loads has no key"
    with running(Reciter([]), keys=("good",)) as on, pytest.raises(openai.AuthenticationError):
        on.client("wrong").models.list()


def test_every_key_opens():
    with running(Reciter([text("x")] * 2), keys=("good", "better")) as on:
        for key in ("good", "better"):
            assert on.client(key).chat.completions.create(model="nano", messages=[user("Hi")])


def test_a_sessions_key_opens_its_calls_and_nothing_else(tmp_path):
    with running(Reciter([text("x")] * 2), keys=("good",), blobs=open_blobs(f"file://{tmp_path}/store")) as on:
        mine, other = on.session(key="good"), on.session(key="good")
        client = on.client(mine["api_key"], mine["base_url"])
        assert client.chat.completions.create(model="any", messages=[user("Hi")])
        assert client.models.list().data[0].id == "nano"
        for base_url in (other["base_url"], f"{on.url}/v1"):
            with pytest.raises(openai.AuthenticationError):
                on.client(mine["api_key"], base_url).chat.completions.create(model="nano", messages=[user("Hi")])
        assert on.reward(mine, 1.0, key=mine["api_key"]).status_code == 401, "an agent must not reward itself"
        with on.http(mine["api_key"]) as http:
            assert http.delete(f"/v1/sessions/{mine['id']}").status_code == 401
            assert http.get(f"/v1/sessions/{mine['id']}").status_code == 401
        assert on.reward(mine, 1.0, key="good").status_code == 200


def test_a_body_that_is_too_large_is_refused_before_it_is_read_whole():
    def endless():
        for _ in range(10_000):
            yield b" " * 1000

    with running(Reciter([]), body_bytes=5000) as on, on.http() as http:
        for body in (b" " * 5001, endless()):
            answer = http.post("/v1/chat/completions", content=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_a_body_that_does_not_come_is_not_waited_for():
    def slow():
        yield b"{"
        time.sleep(1.5)
        yield b"}"

    with running(Reciter([]), body_s=0.3) as on, on.http() as http:
        assert http.post("/v1/chat/completions", content=slow()).status_code == 408


def test_more_calls_than_are_taken_at_once_come_again_later():
    engine = Reciter([text("x")] * 3, token_s=0.5)
    with running(engine, calls=1) as on:
        ask = dict(model="nano", messages=[user("Hi")])
        first = threading.Thread(target=lambda: on.client().chat.completions.create(**ask))
        first.start()
        while not engine.requests:
            time.sleep(0.01)
        with pytest.raises(openai.RateLimitError) as busy:
            on.client().chat.completions.create(**ask)
        assert busy.value.response.headers["Retry-After"] == "1"
        first.join()
        engine.token_s = 0.0
        assert on.client().chat.completions.create(**ask, stream=True).response.status_code == 200
        patient = on.client().with_options(max_retries=20)
        assert patient.chat.completions.create(**ask), "a stream's end frees its place"


def test_more_sessions_than_are_kept_come_again_later(tmp_path):
    with running(Reciter([]), sessions=1, blobs=open_blobs(f"file://{tmp_path}/store")) as on:
        on.session()
        with on.http() as http:
            assert http.post("/v1/sessions", json={"task": "t"}).status_code == 429
