"""kill -9 at every named write of the store: every slot is trained exactly once and none is dropped because of a kill."""

import json
import subprocess
import sys
from pathlib import Path

from twinmill.store.blobs import NAMED_WRITES

ROOT = Path(__file__).parents[2]
PARTS = 2
"""processes that share the rounds"""


def test_every_named_write_is_a_crash_point_that_a_run_survives(tmp_path):
    command = [sys.executable, "-m", "tests.cases.crash_world"]
    parts = [
        subprocess.Popen(
            [*command, str(tmp_path / str(part)), "7", str(part), str(PARTS)],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
        )
        for part in range(PARTS)
    ]
    try:
        lines = [json.loads(line) for process in parts for line in process.communicate(timeout=280)[0].splitlines()]
    finally:
        for process in parts:
            process.kill()
    assert [process.returncode for process in parts] == [0] * PARTS
    first, *_ = [line for line in lines if "points" in line]
    rounds = [line for line in lines if "points" not in line]
    # experts' blobs, cursors, leases and collections are not part of this small world; their own tests kill them
    reached = {point.partition(":")[0] for point in first["points"]}
    assert reached >= set(NAMED_WRITES) - {"blob.ref", "cursor.save", "weights.lease", "weights.collect"}, first
    assert len(rounds) == len(first["points"])
    digests = set()
    for found in rounds:
        assert found["codes"][0] == -9, found  # it really died where it was meant to
        assert found["codes"][-1] == 0, found
        assert found["problems"] == [], found
        assert found["trained"] == 8, found
        assert found["dropped"] == {}, found
        assert found["open"] == [] and found["untrained"] == [], found
        assert found["newest"] == 4, found
        if int(found["name"].split("-")[1]) % 2 == 0:
            digests.add(found["digest"])
    assert len(digests) == 1, "with window 0 every history of kills must end in the same weights"
