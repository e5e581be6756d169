"""What graders share: sending a guest into a machine and reading the lines that carry its nonce."""

import json
import secrets
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from twinmill.env.machine.base import ExecResult, Machine

OUTPUT_BYTES = 1 << 20
_FIRST = "import sys; sys.path[:] = [place for place in sys.path if place]\n"
"""a guest's own imports must find nothing of the workspace, which `python3 -c` would search first"""


@cache
def guest(*names: str) -> str:
    """The source of a guest program: its files, one behind the other."""
    return _FIRST + "\n".join((Path(__file__).parent / f"{name}.py").read_text() for name in names)


@dataclass
class Lines:
    """The well-formed lines of one run, first one of an id first; anything else on the channel is ignored."""

    result: ExecResult
    by_id: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: int | None = None
    """what the closing line counts; None = it never came"""


async def ask(machine: Machine, source: str, question: dict[str, Any], *, timeout_s: float) -> Lines:
    """Run a guest with a fresh nonce and the question on its standard input."""
    nonce = secrets.token_hex(16)
    stdin = json.dumps({**question, "nonce": nonce}).encode()
    argv = ["python3", "-c", source]
    lines = Lines(await machine.exec(argv, timeout_s=timeout_s, stdin=stdin, output_bytes=OUTPUT_BYTES))
    for text in lines.result.stdout.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(line, dict) or line.get("n") != nonce:
            continue
        if isinstance(line.get("id"), str):
            lines.by_id.setdefault(line["id"], line)
        elif isinstance(line.get("end"), int):
            lines.ended = line["end"]
    return lines
