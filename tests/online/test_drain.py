"""SIGTERM: what is at work is answered, nothing new is begun, sessions are logged as lost, and the process ends with 0."""

import re
import signal
import subprocess
import sys
import threading
import time

import httpx2 as httpx
import openai
import pytest

from tests.cases.real import _environment
from twinmill.records.episodes import DropReason
from twinmill.store.blobs import open_blobs
from twinmill.store.ledger import EpisodesLog

from .rigs import NANO, PATIENCE_S, Reciter, running, text, user


@pytest.mark.parametrize("stream", [False, True])
def test_calls_at_work_are_answered_and_nothing_new_is_begun(stream):
    said = "one two three four five six seven"
    engine = Reciter([text(said)], token_s=0.2)
    with running(engine, slice_tokens=2) as on:
        client, heard = on.client(), []

        def call() -> None:
            answer = client.chat.completions.create(model="nano", messages=[user("Hi")], stream=stream)
            if stream:
                heard.append("".join(chunk.choices[0].delta.content or "" for chunk in answer))
            else:
                heard.append(answer.choices[0].message.content)

        at_work = threading.Thread(target=call)
        at_work.start()
        while not engine.requests:
            time.sleep(0.01)
        on.drain()
        while not on.gateway.draining:
            time.sleep(0.01)
        late = on.client()
        # the socket closes a moment after the signal; until then the answer is a 503
        with pytest.raises((openai.APIConnectionError, openai.InternalServerError)):
            late.chat.completions.create(model="nano", messages=[user("Hi")])
        at_work.join(PATIENCE_S)
        on.thread.join(PATIENCE_S)
    assert heard == [said]


def test_the_command_serves_says_so_and_ends_on_sigterm(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    command = [
        sys.executable,
        "-m",
        "twinmill.cli.main",
        "serve",
        NANO,
        "--port",
        0,
        "--keys",
        keys,
        "--store",
        tmp_path / "s",
    ]
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        cwd=tmp_path,
    )
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("curl"):
                break
        assert "serving nano, version 0" in said[0]
        url = re.search(r"http://[\d.]+:\d+", said[0])[0]
        shell = said[-1].replace("KEY", "secret")
        done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode != 127:  # curl is not everywhere
            assert '"object":"chat.completion"' in done.stdout, done
        headers = {"Authorization": "Bearer secret"}
        assert (
            httpx.post(f"{url}/v1/sessions", json={"task": "t"}, headers=headers, timeout=PATIENCE_S).status_code == 201
        )
        answers = []
        ask = {"model": "nano", "prompt": "def add(a, b):", "max_tokens": 400, "n": 8}
        at_work = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{url}/v1/completions", json=ask, headers=headers, timeout=PATIENCE_S)
            )
        )
        at_work.start()
        while httpx.get(f"{url}/health", timeout=PATIENCE_S).json()["calls"] == 0 and at_work.is_alive():
            pass
        assert at_work.is_alive(), "there is nothing to drain"
        process.send_signal(signal.SIGTERM)
        at_work.join(PATIENCE_S)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert answers[0].status_code == 200
    assert len(answers[0].json()["choices"]) == 8
    assert (process.returncode, err) == (0, "")
    assert "stopped" in out
    assert EpisodesLog(open_blobs(f"file://{tmp_path}/s")).close_of(0).drop is DropReason.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("no/such/folder",), "no Hugging Face folder"),
        ((NANO, "--host", "0.0.0.0"), "give --keys FILE"),
        ((NANO, "--keys", "/dev/null"), "the file has no key"),
        ((NANO, "--port", "0", "--context", "100"), "multiple of 64"),
        ((NANO, "--port", "0", "--engine", "latest"), "write RUN/CLUSTER"),
    ],
)
def test_what_cannot_be_served_is_one_line(words, says, monkeypatch, capfd, tmp_path):
    from twinmill.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["twinmill", "serve", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    _, err = capfd.readouterr()
    assert end.value.code == 2
    assert says in err and len(err.strip().splitlines()) == 1
