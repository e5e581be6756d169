"""Start-up: how long --help takes, how many packages a core install brings, how soon a first episode is played."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from _result import finish
from twinmill.records import wire
from twinmill.rollout.evaluate import Score

ROOT = Path(__file__).parents[1]
TWINMILL = (sys.executable, "-m", "twinmill.cli.main")


def median_s(command: Sequence[str], runs: int = 9) -> float:
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return sorted(times)[runs // 2]


def core_packages() -> set[str]:
    """Everything that `pip install twinmill` brings, followed through the metadata of what is installed here."""
    found: set[str] = set()
    todo = ["twinmill"]
    while todo:
        for text in metadata.requires(todo.pop()) or []:
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            name = metadata.metadata(need.name)["Name"].lower()
            if name not in found:
                found.add(name)
                todo.append(name)
    return found


def first_episode_s() -> float:
    """From a fresh process to one graded episode of the shipped model, in a real machine."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "scores.jsonl"
        words = ["eval", str(ROOT / "models" / "nano"), "--tasks=1", "--threads=1", f"--out={out}"]
        seconds = median_s([*TWINMILL, *words], runs=3)
        score = wire.from_json(out.read_bytes(), Score)
    assert score.rewards_T_K[0][0] is not None, "the episode was lost to infrastructure"
    return seconds


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    packages = core_packages()
    print("core packages:", ", ".join(sorted(packages)))
    measured = {
        "help_seconds": median_s([*TWINMILL, "--help"]),
        "core_packages": len(packages),
        "first_episode_seconds": first_episode_s(),
    }
    finish("startup", measured, {"help_seconds": "< 0.5", "core_packages": "<= 50"})


if __name__ == "__main__":
    main()
