"""What the terminal shows of the processes: their lines, each behind its coloured name, and the supervisor's
notices."""

import itertools

from rich.console import Console
from rich.text import Text

from .outcome import Notice, Outcome

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
_LEVELS = {"info": "dim", "warning": "yellow", "error": "bold red"}


class LinePrinter:
    """Give `line` and `notice` to Supervisor as on_line and on_notice. Whether there are colours is the
    Console's business. When the terminal is gone (closed window, closed pipe) it falls silent: the logs go
    on."""

    def __init__(self, console: Console, names: tuple[str, ...], *, own: str = "twinmill") -> None:
        self._console = console
        self._own = own
        self._width = max(len(name) for name in (*names, own))
        self._colours = dict(zip(names, itertools.cycle(_COLOURS)))

    def line(self, name: str, line: str) -> None:
        self._show(name, self._colours.get(name, ""), Text(line))

    def notice(self, notice: Notice) -> None:
        head = f"{notice.name} {notice.what.value}" if notice.name else notice.what.value
        self._show(self._own, "bold", Text(f"{head}: {notice.text}", style=_LEVELS.get(notice.level, "")))

    def outcome(self, outcome: Outcome) -> None:
        """The last lines of the process that ended the run, and the reason."""
        for line in outcome.tail:
            self._show(outcome.culprit, self._colours.get(outcome.culprit, ""), Text(line))
        style = "bold red" if outcome.culprit else "bold"
        self._show(self._own, "bold", Text(f"run {outcome.ending.value}: {outcome.reason}", style=style))

    def _show(self, name: str, colour: str, text: Text) -> None:
        prefix = Text(f"{name:>{self._width}} │ ", style=colour)
        try:
            self._console.print(prefix + text, soft_wrap=True, highlight=False)
        except (OSError, SystemExit):  # a Console's answer to a closed pipe is to leave the program
            self._console = Console(quiet=True)
