"""What the fuzzer calls holds for sound bytes and for some that are not; slow: the fuzzer itself, for half a minute."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.publish.fuzz_checks import PARSERS, check, seeds

SECONDS = 30


def test_sound_bytes_are_read() -> None:
    assert {data[0] for data in seeds()} == set(range(len(PARSERS)))
    for data in seeds():
        check(data)


def test_bytes_that_were_tampered_with_are_refused_or_read_alike() -> None:
    rng = random.Random(0)
    for data in seeds():
        for _ in range(5):
            changed = bytearray(data)
            changed[rng.randrange(2, len(data))] ^= 1 << rng.randrange(8)
            check(bytes(changed[: rng.choice((len(data), rng.randrange(len(data))))]))


@pytest.mark.slow
def test_coverage_guided(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("THE FUZZER DID NOT RUN: atheris is not installed; pip install 'twinmill[fuzz]'")
    command = [sys.executable, "-m", "tests.publish.fuzz_reader", str(SECONDS), str(tmp_path / "corpus")]
    root = Path(__file__).parents[2]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=SECONDS + 120, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    assert "stat::number_of_executed_units" in found.stderr
