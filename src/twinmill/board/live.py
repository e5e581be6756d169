"""The board in the terminal while a run goes on; plain lines, now and then, where stdout is no terminal.

    board = Board(folder / "metrics", title=run_id, console=console)
    with board:
        Supervisor(..., on_line=printer.line, on_tick=board.tick).run()

No thread of its own: `tick` is called by whoever waits for the run anyway, and returns at once when nothing
is due. Lines printed to the same Console appear above the board.
"""

import contextlib
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live

from .follow import Follower
from .panels import event_line, panels, plain
from .state import RunView, fold

_LIVE_EVERY_S = 1.0  # a redraw costs some 25 ms of a core that the mills could use
_PLAIN_EVERY_S = 5.0


class Board:
    def __init__(self, metrics: str | Path, *, title: str, console: Console, plain_every_s: float = _PLAIN_EVERY_S):
        """`plain_every_s`: seconds between lines where the console is no terminal."""
        self.view = RunView()
        self._follower = Follower(metrics)
        self._title = title
        self._console = console
        self._every_s = _LIVE_EVERY_S if console.is_terminal else plain_every_s
        self._due = 0.0
        self._told = 0
        self._gone = False
        self._live = (
            Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
            if console.is_terminal
            else None
        )

    def __enter__(self) -> "Board":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the last state on the screen."""
        fold(self._follower.new(), self.view)
        if self._live and not self._gone:
            self._live.transient = False
            self._show()
            with contextlib.suppress(OSError):
                self._live.stop()

    def tick(self) -> None:
        """Take in what is new and redraw, if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._every_s
        fold(self._follower.new(), self.view)
        self._show()

    def _show(self) -> None:
        """When the terminal is gone (closed window, closed pipe) the board falls silent: the run goes on."""
        if self._gone:
            return
        try:
            self._draw()
        except (OSError, SystemExit):  # a Console's answer to a closed pipe is to leave the program
            self._gone = True

    def _draw(self) -> None:
        now = time.time()
        if self._live is None:
            for line in (*map(event_line, self.view.events[self._told :]), plain(self.view, now)):
                self._console.print(line, soft_wrap=True, highlight=False, markup=False)
            self._told = len(self.view.events)
            return
        board = panels(
            self.view,
            title=self._title,
            width=self._console.width,
            now=now,
            damaged=self._follower.damaged,
        )
        self._live.update(board, refresh=True)
