"""The metric lines that are new since the last look, so that a board that is redrawn twice a second reads
each once."""

from pathlib import Path
from typing import Any

import msgspec


class Follower:
    """Reads every *.jsonl of a folder from where it stopped. Files may appear, grow, and be cut back to whole
    lines (a restarted writer drops a torn end). `damaged` counts lines that are no JSON object: a board shows
    them, and goes on.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.damaged = 0
        self._read: dict[Path, int] = {}

    def new(self) -> list[dict[str, Any]]:
        """Whole lines that have arrived, by time, each with "process" added. Never raises for what it
        reads."""
        lines: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            lines.extend(self._new_in(path))
        lines.sort(key=lambda line: line["t"])
        return lines

    def _new_in(self, path: Path) -> list[dict[str, Any]]:
        done = self._read.get(path, 0)
        with path.open("rb") as file:
            file.seek(done)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._read[path] = done + whole
        found = []
        for line in data[:whole].splitlines():
            try:
                value = msgspec.json.decode(line, type=dict[str, Any])
                found.append({**value, "t": float(value["t"]), "process": path.stem})
            except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
                self.damaged += 1
        return found
