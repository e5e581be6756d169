"""recipes/nano_mistakes.py: what counts as a mistake of the base, and what is never run."""

import asyncio
import runpy
from pathlib import Path

import pytest

from tests.data.test_render import RENDERERS
from twinmill.data.tasks.tinyrepo import TinyRepo
from twinmill.engine.scripted import ScriptedEngine
from twinmill.env.harness.tools import SPECS
from twinmill.records.tasks import Message, ToolCall

RECIPE = runpy.run_path(str(Path(__file__).parents[2] / "recipes" / "nano_mistakes.py"))
RENDER = RENDERERS["nano"]
TASK = "tinyrepo/0/train/7"
REPO = TinyRepo(0).broken(TASK)
GOOD, BAD = (files[REPO.path].split("\n") for files in (REPO.good, REPO.bad))


def edit(at: int, text: str) -> list[int]:
    call = ToolCall(name="replace", arguments={"path": REPO.path, "line": at + 1, "text": text})
    return RENDER.assistant(Message(role="assistant", content="", tool_calls=(call,)), list(SPECS.values()))


def played(*turns: list[int]) -> tuple[list[list], list[str]]:
    """(mistakes, what the model had been shown before each turn)"""
    script = list(turns)
    engine = ScriptedEngine(lambda request: script.pop(0))
    found = asyncio.run(RECIPE["mistakes"](TASK, engine, RENDER, 1.0))
    return found, [RENDER.decode(request.token_ids) for request in engine.requests]


def test_guesses_before_the_right_one_are_mistakes_each_with_what_was_said_to_it() -> None:
    idle = (1 if REPO.line != 1 else 0, BAD[1 if REPO.line != 1 else 0])
    wrong = (REPO.line, "    return 0")
    found, shown = played(edit(*idle), edit(*wrong), edit(REPO.line, GOOD[REPO.line]))
    assert found == [list(idle), list(wrong)]
    assert f"line {idle[0] + 1} reads so already" in shown[1]
    assert "test" in shown[2] and ("FAIL" in shown[2].split("reads so already")[1] or "Error" in shown[2])


def test_what_is_not_made_of_the_tasks_own_words_is_not_run() -> None:
    found, _ = played(edit(REPO.line, "    return open('x', 'w')"))
    assert found == []


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        (GOOD[REPO.line], True),
        ("    return len([])", True),
        ("    return __import__('os')", False),
        ("    return eval('1')", False),
        ("    pass\n    pass", False),
    ],
)
def test_harmless(text: str, harmless: bool) -> None:
    assert RECIPE["harmless"](text, REPO) is harmless
