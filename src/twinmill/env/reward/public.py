"""What the agent's own `test` tool says: public cases run in the agent's machine, in one short, byte-stable text."""

import re
from collections.abc import Sequence

from twinmill.env.machine.base import Machine
from twinmill.records.tasks import Case

from .cases import evaluate, failure_text, passed

_UNSTABLE = re.compile(r" in \d+\.\d+s$", re.MULTILINE)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LONGEST = 2000
"""characters of what the workspace's own tests say"""


async def run_public_cases(machine: Machine, cases: Sequence[Case], *, timeout_s: float = 10.0) -> str:
    """ "ok N", or the first failure. Without cases, the workspace's own unit tests are run.

    Examples: "FAIL add(2, 3) == 5 but got 1", "FAIL add(2, 3) == 5 but raised NameError: name 'x' is not defined",
    "SyntaxError: expected ':' line 3"."""
    if not cases:
        return await _own_tests(machine, timeout_s)
    lines = await evaluate(machine, cases, timeout_s=timeout_s)
    failed = next((case for case in cases if not passed(case, lines)), None)
    return f"ok {len(cases)}" if failed is None else _ADDRESS.sub("", failure_text(failed, lines))


async def _own_tests(machine: Machine, timeout_s: float) -> str:
    result = await machine.exec(["python3", "-m", "unittest", "-q"], timeout_s=timeout_s)
    text = _ADDRESS.sub("", _UNSTABLE.sub("", result.stdout + result.stderr)).strip()
    return text[:_LONGEST] + ("\ntimed out" if result.timed_out else "")
