"""The live board: it fits, it says what is so, and it costs little."""

import io

import pytest
from rich.console import Console

from twinmill.board import units
from twinmill.board.live import Board
from twinmill.board.panels import panels, plain, progress
from twinmill.board.state import fold

from . import synthetic
from .test_state import line, step


def drawn(view, width, now, **settings):
    console = Console(file=io.StringIO(), width=width, legacy_windows=False, **settings)
    console.print(panels(view, title="laptop-1", width=width, now=now))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 96, 109, 110, 140, 200])
@pytest.mark.parametrize("seconds", [0.1, 30, 60, 100, 250, 400])
def test_it_fits_at_any_width_and_time(width, seconds):
    lines = drawn(fold(synthetic.lines(until=seconds)), width, synthetic.START + seconds)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24, "two clusters must fit a terminal of 24 lines"


def test_an_empty_run_says_that_it_waits():
    assert "waiting for the first phase" in "\n".join(drawn(fold([]), 80, 0.0))
    assert plain(fold([]), 0.0) == "[0:00] waiting for the first phase"


def test_during_rl_everything_the_user_was_promised_is_there():
    text = "\n".join(drawn(fold(synthetic.lines(until=250)), 120, synthetic.START + 250))
    for words in (
        "rl ████", "step 41/60 · 1:09 left", "reward", "pass@1 held out", "[38.7, 58.3]", "varied groups", "staleness",
        "train", "engine/west", "waits", "delta of full", "of 13.4 MB", "swap pause", "mismatch k3", "replayed",
        "infrastructure", "3 failures", "restarting  engine/west",
    ):  # fmt: skip
        assert words in text, words


def test_plain_line_holds_the_same_figures():
    text = plain(fold(synthetic.lines(until=250)), synthetic.START + 250)
    assert "\n" not in text
    for words in ("[4:10]", "rl step 41/60, 1:09 left", "reward 0.", "age 0:", "k3 ", "pass@1 48.5 %", "train 9"):
        assert words in text, words


def test_time_left_comes_from_the_pace_so_far():
    view = fold([line("phase", 100.0, name="rl", state="start", steps=40), *(step(n, t=100.0 + n) for n in range(10))])
    share, left, words = progress(view, view.phase, 120.0)
    assert (share, left, words) == (0.25, 60.0, "step 10/40")
    view = fold([line("phase", 100.0, name="eval", state="start", seconds=50)])
    assert progress(view, view.phase, 120.0) == (0.4, 30.0, "0:20 of 0:50")
    view = fold([line("phase", 100.0, name="eval", state="start")])
    assert progress(view, view.phase, 120.0) == (None, None, "0:20")


def test_unreadable_metrics_are_shown():
    view = fold([line("phase", name="rl", state="start"), line("swap", cluster="x")])
    assert "1 lines could not be read" in "\n".join(drawn(view, 80, 10.0))


def test_without_a_terminal_it_prints_a_line_now_and_then(tmp_path):
    synthetic.write(tmp_path, until=250)
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    with Board(tmp_path, title="laptop-1", console=console, plain_every_s=0.0) as board:
        board.tick()
        board.tick()
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4
    assert [" restarting " in lines[0], " repair " in lines[1]] == [True, True]  # each event once
    assert all("| rl step 41/60" in text for text in lines[2:])


def test_it_falls_silent_when_the_terminal_is_gone(tmp_path):
    class Closed(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    synthetic.write(tmp_path, until=60)
    with Board(tmp_path, title="x", console=Console(file=Closed(), force_terminal=False), plain_every_s=0.0) as board:
        board.tick()
        board.tick()
    assert board.view.of("sft"), "it goes on reading"


def test_in_a_terminal_it_draws_and_leaves_the_last_state(tmp_path):
    synthetic.write(tmp_path, until=250)
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    with Board(tmp_path, title="laptop-1", console=console) as board:
        board.tick()
        first = len(console.file.getvalue())
        board.tick()
        assert len(console.file.getvalue()) == first, "a second tick at once is not yet due"
        console.print("a log line")
    text = console.file.getvalue()
    assert "a log line" in text
    assert "laptop-1" in text[text.index("a log line") :]


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (units.percent(0.385), "38 %"),
        (units.percent(None), "–"),
        (units.points(-0.072), "−7.2"),
        (units.size(0), "0 B"),
        (units.size(999.6), "1.0 kB"),
        (units.size(212_400), "212 kB"),
        (units.size(13_400_000), "13.4 MB"),
        (units.size(2.5e15), "2500 TB"),
        (units.count(9_999), "9 999"),
        (units.count(12_345), "12 k"),
        (units.count(999_700), "1.00 M"),
        (units.clock(271), "4:31"),
        (units.clock(3971), "1:06:11"),
        (units.short_time(0.0031), "3.1 ms"),
        (units.short_time(0.36), "360 ms"),
        (units.short_time(4.25), "4.2 s"),
        (units.small(0), "0"),
        (units.small(1.2e-6), "1.2e-06"),
        (units.small(0.25), "0.25"),
        (units.sparkline([0, 1, 2, 3], 4), "▁▃▆█"),
        (units.sparkline([0, 0, 8, 8], 2), "▁█"),
        (units.sparkline([5, 5], 4), "▄▄"),
        (units.sparkline([], 4), ""),
        (units.bar(0.71, 10), "███████░░░"),
        (units.bar(1.7, 4), "████"),
    ],
)
def test_units(shown, wanted):
    assert shown == wanted
