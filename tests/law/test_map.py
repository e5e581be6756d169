"""docs/MAP.md is executable: every path in it exists, and every room is on it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (.+?) \| `(.+?)` \|$", (ROOT / "docs" / "MAP.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("concept", "path"), ROWS)
def test_the_path_of_a_concept_exists(concept, path):
    assert (ROOT / path).exists(), f"docs/MAP.md: {concept} is not at {path}"


def test_every_room_is_on_the_map():
    rooms = {p.name for p in (ROOT / "src" / "twinmill").iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert len(ROWS) > 50
    assert rooms == {path.split("/")[2] for _, path in ROWS if path.startswith("src/twinmill/")}
