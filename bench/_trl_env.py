"""An environment of its own for TRL, made once and kept in the user's cache: about 1.2 GB."""

import os
import subprocess
import sys
from pathlib import Path

from _runs import ROOT

TRL = "1.16.0"
INSTALL_S = 1800.0
"""deadline of one pip install"""


def python(cache: Path | None = None) -> Path:
    """The interpreter of the environment, which is made if need be. torch and transformers are those that set-up pins
    for this package, so that both sides compute with the same kernels."""
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twinmill"
    folder = cache / f"trl-{TRL}"
    found, ready = folder / "bin" / "python", folder / ".ready"
    constraints = ROOT / "constraints.txt"
    if ready.exists() and ready.read_text() == constraints.read_text():
        return found
    print(f"making an environment for TRL {TRL} in {folder} (about 1.2 GB; once)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    pip = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(constraints)]
    for packages in (["torch"], [f"trl=={TRL}", "transformers"]):  # torch first: a CPU wheel stays one
        subprocess.run([*pip, *packages], check=True, timeout=INSTALL_S)
    ready.write_text(constraints.read_text())
    return found
