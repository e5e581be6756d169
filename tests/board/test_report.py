"""The report: self-contained, well formed, complete, and drawn for whatever a run has got to."""

import io
import itertools
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as xml
from html.parser import HTMLParser

import pytest

from twinmill.board import lanes
from twinmill.board.curves import curves, smooth
from twinmill.board.report import page_html, tiles, write_report
from twinmill.board.state import fold
from twinmill.board.summary import gain, summary, table
from twinmill.board.theme import DARK, LIGHT
from twinmill.records.runs import RunRecord

from . import synthetic
from .test_state import an_eval, line, span, step

RECORD = RunRecord(
    run_id="laptop-1", recipe="recipes/<laptop>.py", config_digest="9f3a", revision="unknown", seed=7, started=0.0,
    twinmill="0.1.0", python="3.11.7",
)  # fmt: skip


@pytest.fixture(scope="module")
def view():
    return fold(synthetic.lines())


@pytest.fixture(scope="module")
def files(view, tmp_path_factory):
    return write_report(view, tmp_path_factory.mktemp("report"), title="laptop-1", record=RECORD)


class Page(HTMLParser):
    """Collects what a browser would fetch, and checks that tags are closed."""

    VOID = {"meta", "link", "br", "img", "hr", "input"}

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.addresses += [v for k, v in attrs if k in ("src", "href", "xlink:href", "data") and not v.startswith("#")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_needs_no_network_and_is_well_formed(files):
    text = files[0].read_text()
    page = Page(text)
    assert page.open == []
    assert page.addresses == []
    assert not re.search(r"url\((?!#)|@import|<script", text)
    svgs = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(svgs) == 14
    for svg in svgs:
        xml.fromstring(svg)
    assert len(text) < 1_500_000


def test_charts_take_all_their_colours_from_the_page(files):
    text = files[0].read_text()
    assert "#0d0e" not in text
    svg = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert set(re.findall(r"var\(--(\w+)\)", text)) <= set(LIGHT)
    # White and black are what matplotlib draws with where nobody chose a colour.
    assert not re.search(r"(fill|stroke): ?#(?!var)", svg)
    assert LIGHT.keys() == DARK.keys()


def test_the_page_says_what_the_run_did(files):
    words = " ".join(" ".join(Page(files[0].read_text()).text).replace("\u00a0", " ").split())
    for fact in (
        "laptop-1", "56.5 %", "+15.5 points [+5.8, +25.2]", "41.0 % [34.2, 47.8]", "2.610 → 1.970",
        "the two evals taken as independent", "v37 did not match its digest", "1 infrastructure", "recipes/<laptop>.py",
        "Swap pause", "Age of trained tokens",
    ):  # fmt: skip
        assert fact in words, fact


def test_the_picture_is_a_png_of_the_promised_width(files):
    data = files[1].read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1800
    assert 1000 < height < 2400


@pytest.mark.parametrize("seconds", [-1, 1.5, 20, 85])
def test_a_run_that_has_not_got_far_has_a_report_too(seconds, tmp_path):
    page, picture = write_report(fold(synthetic.lines(until=seconds)), tmp_path, title="early")
    assert Page(page.read_text()).open == []
    assert picture.stat().st_size > 2000


def test_names_from_the_run_cannot_become_markup():
    view = fold([line("event", what="<b>", text="<script>alert(1)</script>")])
    assert "<script" not in page_html(view, title="<i>")


def test_writing_a_report_changes_no_setting_of_matplotlib(view, tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    write_report(fold(synthetic.lines(until=30)), tmp_path, title="x")
    assert dict(matplotlib.rcParams) == before


def test_every_curve_is_shown_for_a_full_run_and_none_for_an_empty_one(view):
    assert len(curves(view)) == 12
    assert curves(fold([])) == []
    assert tiles(fold([])) == []


def test_gain_follows_newcombe():
    # By hand: 0.2 -+ sqrt(0.1^2 + 0.1^2).
    found = gain(*fold([an_eval(0, 0.3), an_eval(1, 0.5)]).held_out())
    assert found.points == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2 - 0.02**0.5)
    assert found.high == pytest.approx(0.2 + 0.02**0.5)


def test_summary_marks_what_is_worth_a_look(view):
    rows = {(row.section, row.name): row for row in summary(view)}
    assert rows["learning", "gain"].good is True
    assert rows["loop", "dropped"].good is False
    assert rows["weights", "repaired"] == (
        "weights",
        "repaired",
        "1",
        "did not match, taken from the full version",
        False,
    )
    assert rows["health", "infrastructure"].value == "3 failures, 3 attempts lost"
    assert rows["busy during RL", "train"].note.startswith("waits 4.")
    assert "60 steps, 480 groups, 3 840 samples" in rows["loop", "trained"].value
    flat = fold([step(n) for n in range(3)] + [an_eval(0, 0.5), an_eval(2, 0.5)])
    assert {row.name: row.good for row in summary(flat)}["gain"] is False


def test_table_never_breaks_a_figure(view):
    from rich.console import Console

    console = Console(width=80, file=io.StringIO())
    console.print(table(view, title="laptop-1"))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for row in summary(view):
        assert row.value in text


def test_smoothing_keeps_a_line_and_does_not_lag():
    assert smooth([3.0] * 50) == [3.0] * 50
    fall = [float(50 - n) for n in range(50)]
    assert smooth(fall)[5:45] == pytest.approx(fall[5:45])
    assert smooth([]) == []


def test_bins_hold_the_time_that_went_into_them():
    lane = fold([span("t", 0.5, 2.5), span("t", 4, 4.25, "publish"), span("t", 9, 99)]).spans["t"]
    shares = lanes.binned(lane, lanes.Window(0.0, 10.0), 10)
    assert shares["forward"] == pytest.approx([0.5, 1, 0.5, 0, 0, 0, 0, 0, 0, 1])
    assert shares["publish"] == pytest.approx([0, 0, 0, 0, 0.25, 0, 0, 0, 0, 0])
    both = fold([span("t", 0, 1), span("t", 0, 1, "publish")]).spans["t"]
    assert lanes.binned(both, lanes.Window(0, 1), 1) == {"forward": [0.5], "publish": [0.5]}


def test_joining_keeps_what_the_eye_can_part():
    spans = [span("t", 0, 1), span("t", 1.001, 2), span("t", 3, 4), span("t", 98, 200), span("t", -5, -1)]
    found = lanes.joined(fold(spans).spans["t"], lanes.Window(0.0, 100.0), 0.1)
    assert found == {"forward": [(0, 2), (3, 1), (98, 2)]}


def test_attempts_side_by_side_never_overlap_and_need_no_row_too_many(view):
    window = lanes.close_up(view)
    placed = lanes.side_by_side(view.attempts_of("rollout/east"), window)
    rows: dict[int, list] = {}
    for row, attempt in placed:
        rows.setdefault(row, []).append(attempt)
    for attempts in rows.values():
        for a, b in itertools.pairwise(attempts):
            assert a.end <= b.start
    assert sorted(rows) == list(range(16)), "sixteen were in flight"
    across = [a for _, a in placed for s in view.swaps if s.cluster == "east" and a.start < s.t < a.end]
    assert len(across) > 30, "flips fall into the middle of attempts"


def test_attempts_in_flight_are_counted_per_bin():
    def attempt(start, end):
        return line("attempt", end, cluster="east", slot=0, attempt=0, start=start, end=end)

    view = fold([attempt(0, 2), attempt(0.5, 1.5), attempt(1, 9), attempt(-5, -4)])
    assert view.lanes() == ["rollout/east"]
    found = lanes.in_flight(view.attempts, lanes.Window(0, 3), 3)
    assert found == pytest.approx([1.5, 2.5, 1.0])


def test_rollout_processes_that_only_tell_sums_are_drawn_too(tmp_path):
    view = fold(synthetic.lines(steps=12, by_attempts=False))
    assert not view.attempts
    assert view.lanes()[1] == "rollout/east"
    write_report(view, tmp_path, title="sums")


def test_a_gain_that_the_evaluator_paired_by_task_is_preferred():
    entries = [step(0), an_eval(0, 0.3), an_eval(9, 0.5)]
    paired = line("gain", version=9, points=20.0, ci_low=12.0, ci_high=28.0)
    rows = {row.name: row for row in summary(fold([*entries, paired]))}
    assert rows["gain"].value == "+20.0 [+12.0, +28.0] points"
    assert rows["gain"].note == "the same tasks, paired"
    assert {row.name: row.note for row in summary(fold(entries))}["gain"] == "the two evals taken as independent"


def test_close_up_shows_flips_of_the_middle_of_rl(view):
    window = lanes.close_up(view)
    inside = [swap for swap in view.swaps if window.start <= swap.t <= window.end]
    assert len(inside) >= 6
    assert 2 <= window.end - window.start <= 60
    assert lanes.close_up(fold(synthetic.lines(until=90))) is None


MEASURE = """
<script>document.title = JSON.stringify([document.documentElement.scrollWidth, innerWidth,
  [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width < 200).length,
  getComputedStyle(document.body).backgroundColor])</script>
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("width", [500, 1280])
def test_in_a_browser_nothing_overflows_and_charts_are_large_enough(files, width, tmp_path):
    trial = tmp_path / "page.html"
    trial.write_text(files[0].read_text().replace("</body>", MEASURE + "</body>"))
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom", trial.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r"<title>\[(\d+),(\d+),(\d+),", done.stdout)
    assert found, done.stderr[-500:]
    needed, given, tiny = map(int, found.groups())
    assert needed <= given
    assert tiny == 0
