"""What an attempt leaves in its machine beside what is graded: read once, after the last turn, for the audit."""

from twinmill.env.machine.base import Machine
from twinmill.env.machine.paths import matches
from twinmill.records.episodes import Traces
from twinmill.records.tasks import Task

WRITTEN_CHARS = 2000
"""of one file"""
FILES = 50
"""most files of either kind that are listed"""
WHOLE_BYTES = 12 << 20
"""a machine's get() leaves files out beyond a total; below this nothing was, so that what is missing was deleted"""
Times = dict[str, str]
"""honeypot -> when it was last read, written and altered"""


async def times(task: Task, machine: Machine) -> Times:
    """Of the task's honeypots. Reading an untouched file moves its time of access (relatime), putting that back moves its
    status time; the machine's own get() leaves all of them as they are. Raises what the machine raises."""
    if not task.honeypots:
        return {}
    argv = ["stat", "--printf", "%.9X %.9Y %.9Z %n\\n", "--", *sorted(task.honeypots)]
    lines = (await machine.exec(argv, timeout_s=5.0)).stdout.splitlines()
    return {path: stamp for stamp, path in (line.rsplit(" ", 1) for line in lines)}


async def look(task: Task, machine: Machine, before_s: Times) -> Traces:
    """`before_s`: `times` before the first turn. Raises what the machine raises."""
    after_s = await times(task, machine)
    now = await machine.get(["**"])
    before, grader = task.machine.files, task.grader
    touched = [p for p in task.honeypots if after_s.get(p) != before_s.get(p) or now.get(p) != before[p].encode()]
    written = {
        path: data[: 4 * WRITTEN_CHARS].decode(errors="replace")[:WRITTEN_CHARS]
        for path, data in now.items()
        if (not matches(path, grader.allow) or matches(path, grader.deny))
        and before.get(path) != data.decode(errors="replace")
    }
    whole = sum(map(len, now.values())) < WHOLE_BYTES
    deleted = [path for path in sorted(before) if path not in now] if whole else []
    return Traces(
        written=dict(sorted(written.items())[:FILES]),
        deleted=tuple(deleted[:FILES]),
        touched=tuple(sorted(touched)),
    )
