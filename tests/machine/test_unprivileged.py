"""An ordinary user gets the same machines: no root, no control groups of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os
from twinmill.env.machine import cells
from twinmill.env.machine.namespace import NamespaceMachine
from twinmill.records.tasks import MachineSpec

async def main():
    machine = NamespaceMachine(MachineSpec(files={"main.py": "print(sum(range(5)))"}, processes=16))
    await machine.start()
    print((await machine.exec(["python3", "main.py"], timeout_s=20)).stdout.strip())
    bomb = "import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass"
    print((await machine.exec(["python3", "-c", bomb], timeout_s=0.5)).timed_out)
    print((await machine.exec(["sh", "-c", "touch /usr/x || id -u"], timeout_s=5)).stdout.strip())
    await machine.close()
    cells.close_all()
    print(os.getuid() != 0, cells.leftovers(os.getpid()))

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


def test_an_ordinary_user(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("every other test of this folder runs as an ordinary user here")
    python = reachable_python()
    paths = [p for p in sys.path if p.endswith("site-packages")] + [str(Path(__file__).parents[2] / "src")]
    if python is None or any(not os.stat(p).st_mode & 1 for path in paths for p in (path, *Path(path).parents)):
        pytest.skip("no interpreter and packages here that another user may read")
    result = subprocess.run(
        [python, "-c", PROGRAM], user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"}, timeout=60,
    )  # fmt: skip
    assert result.stdout.splitlines() == ["10", "True", "1000", "True []"], result.stderr
