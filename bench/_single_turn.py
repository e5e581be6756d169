"""The problem that both sides of `bench trl` work on: one turn, one cheap reward, no machine. Standard library only, for it
is imported in either environment."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

GROUP = 8
"""attempts that are compared with one another"""
NEW_TOKENS = 64
"""most tokens of one completion"""
PROMPTS_PER_STEP = 16
"""groups of one optimizer step"""
LEARNING_RATE = 1e-6
"""small: both sides go on sampling from nearly the same model, and so nearly the same lengths"""
SAMPLES_PER_STEP = GROUP * PROMPTS_PER_STEP


class Problem(NamedTuple):
    task_id: str
    prompt_ids: list[int]
    prompt_text: str
    """tokenizes to prompt_ids; both sides check that"""
    right_ids: list[int]
    """what an expert would say in this turn, the stop token included"""


def reward(sampled_ids: Sequence[int], right_ids: Sequence[int]) -> float:
    """Overlap of two bags of tokens, 0..1 (F1). Example: [4, 9, 9, 6] and [4, 9, 7, 6] share 3 of 4: 0.75."""
    shared = sum((Counter(sampled_ids) & Counter(right_ids)).values())
    return 2.0 * shared / (len(sampled_ids) + len(right_ids))


def write(path: Path, problems: Sequence[Problem]) -> None:
    path.write_text(json.dumps([problem._asdict() for problem in problems]))


def read(path: Path) -> list[Problem]:
    return [Problem(**row) for row in json.loads(path.read_text())]
