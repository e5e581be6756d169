"""Log forwarding: partial lines, invalid UTF-8, terminal control, floods, and the log file byte for byte."""

import io
import os
import subprocess
import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from twinmill.launch.child import LineBuffer, how_it_ended
from twinmill.launch.lines import LinePrinter
from twinmill.launch.outcome import Ending, Notice, Outcome, What

from .processes import QUICK, Run, spec


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_lines_do_not_depend_on_where_the_bytes_are_cut(data, cuts):
    whole = LineBuffer()
    expected = whole.feed(data) + whole.flush()
    cut = LineBuffer()
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    got = [line for a, b in pairwise(edges) for line in cut.feed(data[a:b])]
    assert got + cut.flush() == expected


def test_what_is_shown_is_clean_and_what_is_logged_is_exact(tmp_path):
    raw = b"caf\xc3\xa9\nbad \xff\xfe byte\n10%\r20%\r30%\n\x1b[31mred\x1b[0m \x1b[2Jclear\x07\nno newline"
    code = f"import os\nfor i in range(0, {len(raw)}): os.write(1, {raw!r}[i:i+1])"
    run = Run([spec("main", code)], tmp_path)
    assert run.of("main") == ["café", "bad \ufffd\ufffd byte", "30%", "red clear", "no newline"]
    head, _, rest = (tmp_path / "main.log").read_bytes().partition(b"\n")
    assert head.startswith(b"=== start 1, pid ")
    assert rest == raw


def test_a_line_that_stands_still_is_shown_before_it_ends(tmp_path):
    code = "import time; print('loading... ', end='', flush=True); time.sleep(2.5); print('done')"
    run = Run([spec("main", code)], tmp_path)
    assert run.of("main") == ["loading... ", "done"]


def test_both_streams_keep_their_order(tmp_path):
    code = "import os\nfor i in range(50): os.write(1 + i % 2, b'%d\\n' % i)"
    run = Run([spec("main", code)], tmp_path)
    assert run.of("main") == [str(i) for i in range(50)]


def test_a_flood_is_forwarded_whole_and_an_endless_line_is_cut(tmp_path):
    code = "import sys\nfor i in range(20000): print(i, 'x' * 50)\nsys.stdout.write('y' * 200_000)"
    run = Run([spec("main", code)], tmp_path)
    lines = run.of("main")
    assert len(lines) == 20000 + 4
    assert lines[19999].startswith("19999 ")
    assert sum(map(len, lines[20000:])) == 200_000


def test_output_of_a_process_that_closed_it_costs_no_busy_loop(tmp_path):
    ticks = []
    code = "import os, time\nos.close(1); os.close(2); time.sleep(1.2)"
    run = Run([spec("main", code)], tmp_path, on_tick=lambda run: ticks.append(1))
    assert run.outcome.code == 0
    assert len(ticks) < 40


def test_restarts_append_to_one_log(tmp_path):
    run = Run([spec("main", "raise SystemExit('boom')", restart=QUICK)], tmp_path)
    text = (tmp_path / "main.log").read_text()
    assert [line[:12] for line in text.splitlines() if line.startswith("===")] == [f"=== start {n}," for n in (1, 2, 3)]
    assert text.count("boom") == 3
    assert run.outcome.tail == ("boom",) * 3


def test_printer_prefixes_names_and_survives_a_closed_terminal():
    out = io.StringIO()
    printer = LinePrinter(Console(file=out, width=40), ("trainer", "engine/east"))
    printer.line("trainer", "[bold]step 3[/bold] loss 0.25 and a text that is longer than the terminal is wide")
    notice = Notice(at=0, level="error", what=What.HUNG, name="engine/east", text="no heartbeat for 20 s")
    printer.notice(notice)
    printer.outcome(Outcome(ending=Ending.FAILED, code=1, reason="trainer: exit 1", culprit="trainer", tail=("a",)))
    assert out.getvalue().splitlines() == [
        "    trainer │ [bold]step 3[/bold] loss 0.25 and a text that is longer than the terminal is wide",
        "   twinmill │ engine/east hung: no heartbeat for 20 s",
        "    trainer │ a",
        "   twinmill │ run failed: trainer: exit 1",
    ]


def test_printer_falls_silent_when_the_pipe_is_closed():
    code = """
import sys
from rich.console import Console
from twinmill.launch.lines import LinePrinter
printer = LinePrinter(Console(), ("trainer",))
for n in range(3): printer.line("trainer", "a")
print("still here", file=sys.stderr)
"""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=30)
    os.close(writer)
    assert done.returncode == 0
    assert done.stderr == "still here\n"


def test_ends_have_names():
    assert how_it_ended(3) == "exit 3"
    assert how_it_ended(-11) == "killed by SIGSEGV"
    assert "out of memory" in how_it_ended(-9)
    assert "SIGKILL" in how_it_ended(None)
