"""What the processes of a run are started with."""

import os
import subprocess
import sys
from pathlib import Path

from tests.cases.real import SMOKE
from twinmill.cli.run import KEEP_FREED, create, specs

FAULTS = """
import resource, torch
def work():
    for _ in range(8):
        torch.ones(12 << 20).add_(1)  # 48 MB: above glibc's own threshold for what is mapped, whatever it was raised to
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(env: dict[str, str]) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS], env=os.environ | env, capture_output=True, check=True)
    return int(done.stdout)


def test_the_trainer_keeps_the_memory_that_it_has_freed(tmp_path: Path) -> None:
    """The same work again takes pages from the system only without the setting."""
    processes, _ = specs(create(SMOKE, tmp_path, (), keep=("midtrain", "sft", "rl")))
    (trainer,) = [spec for spec in processes if spec.name == "trainer"]
    assert trainer.env == KEEP_FREED
    assert faults(trainer.env) * 20 < faults({})
