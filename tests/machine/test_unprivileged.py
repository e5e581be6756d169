"""An ordinary user gets the same machines: no root, no control groups of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twinmill.env.machine import native

PROGRAM = """
import asyncio, os
from twinmill.env.machine import cells
from twinmill.env.machine import make_machine
from twinmill.env.machine.leftovers import leftovers
from twinmill.records.tasks import MachineSpec
import sys

async def main():
    machine = make_machine(sys.argv[1], MachineSpec(files={"main.py": "print(sum(range(5)))"}, processes=16))
    await machine.start()
    print((await machine.exec(["python3", "main.py"], timeout_s=20)).stdout.strip())
    bomb = "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass"
    print((await machine.exec(["python3", "-c", bomb], timeout_s=0.5)).timed_out)
    print((await machine.exec(["sh", "-c", "touch /usr/x || id -u"], timeout_s=5)).stdout.strip())
    children = await machine.fork(2)
    print([sorted(await child.get(["**"])) for child in children], machine.limits_in_force["made by"].split(",")[0])
    for each in (machine, *children): await each.close()
    cells.close_all()
    print(os.getuid() != 0, leftovers(os.getpid()))

asyncio.run(main())
"""


def reachable_python():
    """An interpreter of our version that any user may run."""
    for name in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        path = Path(name).resolve()
        try:
            everyone = all(p.stat().st_mode & 1 for p in (path, *path.parents))
            same = everyone and subprocess.run(
                [path, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=True
            ).stdout.strip() == str(sys.version_info[:2])
        except (OSError, subprocess.CalledProcessError):
            continue
        if same:
            return path
    return None


@pytest.mark.parametrize(("backend", "made_by"), [("native", "the native launcher"), ("bubblewrap", "bubblewrap")])
def test_an_ordinary_user(backend, made_by):
    if os.geteuid() != 0:
        pytest.skip("every other test of this folder runs as an ordinary user here")
    if backend == "native" and native.supported():
        pytest.skip(native.supported())
    python = reachable_python()
    paths = [p for p in sys.path if p.endswith("site-packages")] + [str(Path(__file__).parents[2] / "src")]
    if python is None or any(not os.stat(p).st_mode & 1 for path in paths for p in (path, *Path(path).parents)):
        pytest.skip("no interpreter and packages here that another user may read")
    result = subprocess.run(
        [python, "-c", PROGRAM, backend], user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"}, timeout=60,
    )  # fmt: skip
    assert result.stdout.splitlines() == [
        "10", "True", "1000", f"[['main.py'], ['main.py']] {made_by}", "True []",
    ], result.stderr  # fmt: skip
