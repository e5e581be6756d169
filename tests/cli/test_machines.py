"""`twinmill machines serve` and `status`, and a run whose machines are elsewhere."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.real import SMOKE, twinmill
from twinmill.store.runs import RunFolder

from .conftest import Cli

TOKEN = "a-token-for-the-command-line"
NAME = "MACHINES_TOKEN_OF_THIS_TEST"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    monkeypatch.setenv(NAME, TOKEN)
    command = [sys.executable, "-m", "twinmill.cli.main", "machines", "serve", "--port", "0", "--token-env", NAME]
    process = subprocess.Popen(
        [*command, "--folder", str(tmp_path / "server")],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "300"},
    )  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.readline()
    assert "machines (namespace, at most 256) for default at http://127.0.0.1:" in said
    try:
        yield next(word for word in said.split() if word.startswith("http")).rstrip(";")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout.read() == "ended, and no machine is left\n"
        process.stdout.close()


def test_status_shows_tenants_and_leases(served: str, cli: Cli) -> None:
    said = cli("machines", "status", served, "--token-env", NAME)
    assert said.code == 0
    assert "0 of at most 256 machines (namespace), up" in said.out
    for word in ("tenant", "creates/min", "expired", "default"):
        assert word in said.out


def test_status_of_who_has_no_token_or_a_wrong_one(served: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    said = cli("machines", "status", served, "--token-env", "NO_SUCH_VARIABLE")
    assert said.code == 2 and "the environment variable NO_SUCH_VARIABLE is empty" in said.err
    monkeypatch.setenv(NAME, "another-token-of-someone")
    said = cli("machines", "status", served, "--token-env", NAME)
    assert said.code == 2 and "does not know this token" in said.err
    assert "another-token-of-someone" not in said.err + said.out


def test_status_of_a_server_that_is_not_there(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, TOKEN)
    said = cli("machines", "status", "http://127.0.0.1:9", "--token-env", NAME)
    assert said.code == 2 and "did not answer for 2 s" in said.err and "is it running?" in said.err
    said = cli("machines", "status", "127.0.0.1:9", "--token-env", NAME)
    assert said.code == 2 and "remote.url must be http://HOST:PORT" in said.err


WRONG = {
    "no token": (("--token-env", "NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE is empty; put the token into it"),
    "no backend": (("--backend", "fpga"), "no local machines 'fpga'; choose one of namespace, native"),
    "itself": (("--backend", "remote"), "no local machines 'remote'"),
    "none at once": (("--machines", "0"), "--machines is 0; it must be at least 1"),
    "no file": (("--tenants", "nowhere.toml"), "--tenants: nowhere.toml:"),
    "a port that is taken": (("--port", "{port}"), "choose another --port"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_served(name: str, served: str, cli: Cli, tmp_path: Path) -> None:
    words, expected = WRONG[name]
    words = tuple(word.format(port=served.rpartition(":")[2]) for word in words)
    others = {"--port": "0", "--token-env": NAME, "--folder": str(tmp_path / "other")}
    usual = (word for name, value in others.items() if name not in words for word in (name, value))
    said = cli("machines", "serve", *usual, *words)
    assert said.code == 2 and expected in said.err and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names nobody"),
        ("[a]\ntoken = 'secret'\n", "unknown field `token`"),
        ("[a]\nmachines = 3\n", "missing required field `token_env`"),
        ("[a]\ntoken_env = 'SHORT'\n", "tenant a has 5 characters; it must have at least 16"),
        ("[a]\ntoken_env = 'EMPTY'\n", "tenant a: the environment variable EMPTY is empty"),
    ],
)
def test_a_file_of_tenants_that_cannot_be(
    text: str, words: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "short")
    (tmp_path / "tenants.toml").write_text(text)
    said = cli("machines", "serve", "--folder", tmp_path, "--port", "0", "--tenants", tmp_path / "tenants.toml")
    assert said.code == 2 and words in said.err and "Traceback" not in said.err


def test_a_folder_in_use_is_refused(served: str, cli: Cli, tmp_path: Path) -> None:
    said = cli("machines", "serve", "--folder", tmp_path / "server", "--port", "0", "--token-env", NAME)
    assert said.code == 2 and "in use by another server of machines" in said.err


def test_a_run_whose_machines_are_elsewhere(served: str, agent: Path, tmp_path: Path) -> None:
    """Experts play in them; the token is in no file of the run."""
    sets = (f"model={agent}", "machine=remote", f"remote.url={served}", f"remote.token_env={NAME}")
    done = twinmill("sft", SMOKE, "--root", tmp_path / "runs", *(word for item in sets for word in ("--set", item)))
    assert done.returncode == 0, done.stdout + done.stderr
    folder = RunFolder.latest(tmp_path / "runs")
    assert json.loads(folder.config_path.read_bytes())["remote"]["token_env"] == NAME
    assert all(TOKEN.encode() not in path.read_bytes() for path in folder.path.rglob("*") if path.is_file())
    asked = (tmp_path / "server" / "1.jsonl").read_text()
    assert asked.count("LeaseOpened") == asked.count('"reason":"closed"') >= 8  # 4 episodes, each played and graded
