"""What a torch-free process imports of this room stays torch-free, and silent."""

import subprocess
import sys

LIGHT = ("base", "client", "embedded", "frames", "router", "scripted", "server", "sync")


def test_no_torch_and_no_output():
    names = ", ".join(f"twinmill.engine.{name}" for name in LIGHT)
    code = f"import sys, {names}; from twinmill.engine.embedded import EngineConfig; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")
