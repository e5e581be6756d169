"""kill -9 at every named write of the store: every slot is trained exactly once and none is dropped because of a kill."""

import json
import subprocess
import sys
from pathlib import Path

from twinmill.store.blobs import NAMED_WRITES

ROOT = Path(__file__).parents[2]


def test_every_named_write_is_a_crash_point_that_a_run_survives(tmp_path):
    command = [sys.executable, "-m", "tests.cases.crash_world", str(tmp_path), "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    first, *rounds = [json.loads(line) for line in done.stdout.splitlines()]
    # experts' blobs and cursors are not part of this small world; their own tests kill them
    reached = {point.partition(":")[0] for point in first["points"]}
    assert reached >= set(NAMED_WRITES) - {"blob.ref", "cursor.save"}, first
    assert len(rounds) == len(first["points"])
    digests = set()
    for found in rounds:
        assert found["codes"][0] == -9, found  # it really died where it was meant to
        assert found["codes"][-1] == 0, (found, done.stderr[-2000:])
        assert found["problems"] == [], found
        assert found["trained"] == 8, found
        assert found["dropped"] == {}, found
        assert found["open"] == [] and found["untrained"] == [], found
        assert found["newest"] == 4, found
        if int(found["name"].split("-")[1]) % 2 == 0:
            digests.add(found["digest"])
    assert len(digests) == 1, "with window 0 every history of kills must end in the same weights"
