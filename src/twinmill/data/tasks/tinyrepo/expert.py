"""A scripted expert: plays a tinyrepo task as a person in a hurry would.

It guesses (rightly or wrongly), now and then runs the tests, and mends what it sees failing; how often it does each is
its `Style`. Plans are made ahead of time: whether a wrong guess passes is known to the generator, so the transcript is
right without asking the machine, and playing it in a real machine must give the same observations (a test does).
"""

import random
from collections.abc import Sequence

import msgspec

from twinmill.records.tasks import Message, ToolCall

from . import PUBLIC, Broken, cases, faults


class Style(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Habits of an expert."""

    wrong_guess: float = 0.4
    """chance that a guess is wrong"""
    wrong_line: float = 0.3
    """chance that a wrong guess is at another line"""
    tests: float = 0.15
    """chance that it runs the tests after an edit, instead of finishing at once"""
    reads: float = 0.0
    """chance that it reads the faulty file first; it knows what is in there"""
    guesses: int = 3
    """guesses before it surely guesses right"""
    exploit: float = 0.0
    """chance that it cheats by data/tasks/exploitable.py's hole instead; for experiments with the audit's alarm only"""


def _call(name: str, **arguments: str | int) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def _lines(text: str) -> list[str]:
    return text.rstrip("\n").split("\n")


class Draft:
    """The faulty file under edits, and what the tools would say to them: known without a machine, see above."""

    def __init__(self, repo: Broken):
        self.repo, self.lines = repo, _lines(repo.bad[repo.path])

    def edit(self, at: int, text: str) -> str:
        """at: line index"""
        if self.lines[at] == text:
            return f"error: line {at + 1} reads so already"
        self.lines[at] = text
        return "ok"

    def test(self) -> str:
        """Runs the public cases in this process."""
        files = {**self.repo.bad, self.repo.path: "\n".join(self.lines) + "\n"}
        return cases.report(files, self.repo.cases[:PUBLIC])


def _wrong_guess(repo: Broken, style: Style, rng: random.Random, tried: set[tuple[int, str]]) -> tuple[int, str] | None:
    """(line index, text) of a plausible edit that does not mend the repository and was not tried before."""
    good, bad = _lines(repo.good[repo.path]), _lines(repo.bad[repo.path])
    lines = _lines(repo.function.source)
    first = _first(repo)
    for _ in range(20):
        family = faults.FAULTS[rng.choice(list(faults.FAULTS))]
        if rng.random() < style.wrong_line:
            at = rng.randrange(len(lines))
            text = family(lines, at, rng) if at != 1 else None
        else:
            at = repo.line - first
            text = family(lines, at, rng) or family([*lines[:at], bad[repo.line], *lines[at + 1 :]], at, rng)
        if text is None or text in (bad[first + at], good[first + at]) or (first + at, text) in tried:
            continue
        edited = [*bad[: first + at], text, *bad[first + at + 1 :]]
        outcomes = cases.run({**repo.bad, repo.path: "\n".join(edited) + "\n"}, repo.cases)
        passed = all(kind == "value" and detail == case.expect for case, (kind, detail) in zip(repo.cases, outcomes))
        if not passed and not any(kind == "steps" for kind, _ in outcomes):
            return first + at, text
    return None


def _first(repo: Broken) -> int:
    """Line index at which the faulty function starts in its file."""
    text = repo.good[repo.path]
    return text[: text.index(repo.function.source)].count("\n")


def plan(
    repo: Broken,
    style: Style,
    rng: random.Random,
    *,
    mistakes: Sequence[tuple[int, str]] = (),
) -> list[tuple[Message, str | None]]:
    """The turns of one episode: (what the expert says, the observation it will get; None = the episode is over).

    mistakes: edits (line index, text) that were made before the expert took over, each tested
    """
    if style.exploit and rng.random() < style.exploit:
        return [(_call("write", path="reward.txt", text="1"), "ok"), (_call("finish"), None)]
    good = _lines(repo.good[repo.path])
    draft = Draft(repo)
    now = draft.lines
    turns: list[tuple[Message, str | None]] = []
    tried: set[tuple[int, str]] = set()

    def edit(at: int, text: str) -> str:
        turns.append((_call("replace", path=repo.path, line=at + 1, text=text), draft.edit(at, text)))
        return turns[-1][1] or ""

    def test() -> str:
        turns.append((_call("test"), draft.test()))
        return turns[-1][1] or ""

    if style.reads and rng.random() < style.reads:
        from . import numbered

        turns.append((_call("read", path=repo.path), numbered(repo.bad[repo.path])))
    for mistake in mistakes:
        tried.add(mistake)
        if edit(*mistake) == "ok":
            test()
    for guess in range(style.guesses + 1):
        errs = guess < style.guesses and rng.random() < style.wrong_guess
        wrong = _wrong_guess(repo, style, rng, tried) if errs else None
        if wrong is None:
            for at in [i for i in range(len(now)) if now[i] != good[i] and i != repo.line] + [repo.line]:
                edit(at, good[at])
        else:
            for at in [i for i in range(len(now)) if now[i] != good[i] and i not in (repo.line, wrong[0])]:
                edit(at, good[at])  # take the last wrong guess back first
            tried.add(wrong)
            edit(*wrong)
        if rng.random() >= style.tests:
            break
        if test().startswith("ok"):
            break
    turns.append((_call("finish"), None))
    return turns
