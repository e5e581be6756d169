"""Episodes and weights as text."""

import io

from rich.console import Console

from twinmill.board.episodes import episode_table, episode_text
from twinmill.board.weights import density_table, parts_table, slot_ranges, weights_table
from twinmill.records.base import Ref
from twinmill.records.episodes import (
    Attempt,
    Boundary,
    Episode,
    Failure,
    Finding,
    FindingAction,
    Finish,
    OpenedBy,
    Score,
    Segment,
    StopReason,
    Turn,
    Usage,
    Verdict,
    VersionRun,
)
from twinmill.records.tasks import ToolCall
from twinmill.records.weights import GridSpec, Part, VersionKind, WeightVersion


def ids(text):
    """A byte-level vocabulary: one character may be several tokens."""
    return list(text.encode())


def decode(tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def attempt(*, observation="ok", sampled="é = a + b", runs=((3, 1), (4, 9)), **changes):
    sampled_ids = ids(sampled)
    turn = Turn(
        index=0,
        input_ids=ids("Fix [bold]main.py[/bold]\n" + "\n".join(f"line {n}" for n in range(100))),
        sampled_ids=sampled_ids,
        logprobs=[-0.5] * (len(sampled_ids) - 1) + [-4.0],
        version_runs=tuple(VersionRun(version=v, count=n) for v, n in runs),
        finish=Finish.STOP,
        tool_calls=(ToolCall(name="replace", arguments={"path": "main.py", "line": 3}),),
        observation=observation,
        seconds=0.25,
    )
    fields = dict(
        id="12-3-0",
        task_id="tinyrepo/0/train/17",
        group_id="12",
        attempt=3,
        segments=(Segment(index=0, opened_by=OpenedBy.TASK, turns=(turn,)),),
        stop=StopReason.FINISHED,
        versions=(3, 4),
        usage=Usage(turns=1, prompt_tokens=140, sampled_tokens=10),
        cluster="east",
        seed=9,
        machine_after={"main.py": "x = 1\n"},
    )
    scores = {"tests": Score(value=1.0, grader="cases", evidence="3 of 3")}
    verdict = changes.pop("verdict", Verdict(episode_id="12-3-0", scores=scores, reward=1.0))
    findings = changes.pop("findings", ())
    return Attempt(slot=12, attempt=3, episode=Episode(**{**fields, **changes}), verdict=verdict, findings=findings)


def shown(renderable, width=100, **settings):
    console = Console(file=io.StringIO(), width=width, **settings)
    console.print(renderable)
    return console.file.getvalue()


def test_an_episode_shows_everything_that_happened():
    text = shown(episode_text(attempt(), decode))
    for words in (
        "episode 12-3-0", "tinyrepo/0/train/17", "v3 to v4", "finished", "Fix [bold]main.py[/bold]", "v3 x1  v4 x9",
        "mean log-probability -0.850, least -4.000 at 'b'", "replace(path='main.py', line=3)", "observed  ok",
        "reward 1.000", "3 of 3", "left in main.py", "x = 1", "250 ms",
    ):  # fmt: skip
        assert words in text, words


def test_long_texts_are_shortened_unless_all_is_asked_for():
    short, full = shown(episode_text(attempt(), decode)), shown(episode_text(attempt(), decode, full=True))
    assert "... 61 lines ..." in short
    assert "line 50" not in short
    assert "line 50" in full


def test_sampled_text_is_coloured_by_version():
    text = shown(episode_text(attempt(runs=((3, 2), (4, 8))), decode), force_terminal=True, color_system="standard")
    assert "\x1b[35mé" in text  # version 3
    assert "\x1b[34m = a + b" in text  # version 4


def test_every_token_can_be_shown_and_unlikely_ones_are_underlined():
    text = shown(episode_text(attempt(), decode, tokens=True), force_terminal=True, color_system="standard")
    assert "\x1b[4;34mb\x1b[0m\x1b[2m -4.00" in text
    assert "\x1b[34m=\x1b[0m\x1b[2m -0.50" in text


def test_what_a_model_or_tool_wrote_cannot_move_the_cursor():
    nasty = "\x1b[2J\x1b]0;title\x07 ok\r\x9b31m"
    entry = attempt(
        sampled=nasty,
        runs=((3, len(nasty.encode())),),
        observation=nasty,
        machine_after={"a\x1bb": nasty},
        verdict=Verdict(episode_id="x", scores={"t": Score(value=0, evidence=nasty)}, reward=0.0),
    )
    text = shown(episode_text(entry, decode, tokens=True, full=True))
    assert not [c for c in text if ord(c) < 32 and c != "\n"]
    assert "\x9b" not in text
    assert "␛[2J" in text


def test_what_was_lost_or_not_graded_is_said_and_is_no_zero():
    error = Failure(boundary=Boundary.MACHINE, type="MachineLostError", message="gone")
    entry = attempt(
        stop=StopReason.ERROR,
        error=error,
        versions=(-1, -1),
        machine_after=None,
        verdict=Verdict(episode_id="x", scores={}, reward=None, error=error),
        findings=(Finding(episode_id="x", rule="peek", severity=0.5, evidence="cat", action=FindingAction.MASK),),
    )
    text = shown(episode_text(entry, decode))
    assert "lost      machine: MachineLostError: gone" in text
    assert "reward ungraded" in text
    assert "could not be read" in text
    assert "peek (mask, severity 0.5): cat" in text
    row = shown(episode_table([entry]), width=130).splitlines()[1]
    assert "ungraded" in row
    assert "–" in row
    assert "1 findings, machine: MachineLostError" in row
    assert "12-3-0   tinyrepo/0/train/17  ungraded" in shown(episode_table([entry]))  # remarks give way first


def test_episode_rows():
    head, row, *rest = shown(episode_table([attempt()])).splitlines()
    assert head.split()[:4] == ["episode", "task", "reward", "stop"]
    assert " ".join(row.split()) == "12-3-0 tinyrepo/0/train/17 1.000 finished 1 10 v3 to v4 east"
    assert not rest


def weight_version(number, kind, size, **fields):
    ref = Ref(key="weights/objects/0123456789abcdef00", digest="0123456789abcdef00", bytes=size)
    part = Part(object=ref, first_tile=0, tiles=3, changed=40 * number, head_bytes=300, head_digest="d")
    base = dict(
        run_id="r", lineage="l", step=number, slots=(8, 9, 10, 12), model_digest="abcdef0123456789", full_bytes=1000,
        table=ref, grid=GridSpec(), parts=(part,), payload_bytes=size, changed=40 * number, last_full=0,
    )  # fmt: skip
    return WeightVersion(number=number, kind=kind, **{**base, **fields})


def test_weights_rows():
    rows = [
        weight_version(0, VersionKind.FULL, 1000, parent=None, checkpoint="c/0", created_at=10.0),
        weight_version(1, VersionKind.DELTA, 52, parent=0),
    ]
    lines = shown(
        weights_table(rows, now=75.0),
    ).splitlines()
    assert " ".join(lines[1].split()) == "v0 full – 0 8-10, 12 0 1.0 kB 100.0 % 1:05 abcdef012345 yes"
    assert " ".join(lines[2].split()) == "v1 delta v0 1 8-10, 12 40 52 B 5.2 % – abcdef012345 –"


def test_rows_of_one_version():
    lines = shown(parts_table(weight_version(1, VersionKind.DELTA, 520, parent=0))).splitlines()
    assert " ".join(lines[1].split()) == "0123456789abcdef 0-2 40 520 B 300 B"
    lines = shown(density_table({"attention": (5, 200), "norms": (0, 10)})).splitlines()
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "attention 5 200 2.50 %", "norms 0 10 0.00 %", "all 5 210 2.38 %",
    ]  # fmt: skip


def test_slot_ranges():
    assert slot_ranges(()) == "–"
    assert slot_ranges((3,)) == "3"
    assert slot_ranges((12, 8, 9, 10)) == "8-10, 12"
