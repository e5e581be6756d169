"""Run cases on generated sources, in this process, with a bound on steps; and say what failed.

Only the task generator and the scripted expert use this, on code that they wrote themselves. What an agent writes is
run by env.reward inside a machine; tests assert that both say the same words.
"""

import ast
import builtins
import sys
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from twinmill.records.tasks import Case

STEPS = 3000
"""lines a case may execute; a fault that loops for ever is not a task"""
LARGEST_INT_BITS, LARGEST_SIZE = 256, 10_000
"""what a variable may hold: a fault that squares what it walks over needs few lines to need all memory"""
_SHOWN = 80


class TooManySteps(BaseException): ...


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def failure_text(case: Case, outcome: str, detail: str) -> str:
    """One line a person or a model can act on. outcome: value | error | syntax."""
    if outcome == "syntax":
        return _short(detail)
    return f"FAIL {case.call} == {_short(case.expect)} but {'got' if outcome == 'value' else 'raised'} {_short(detail)}"


def syntax_text(error: SyntaxError) -> str:
    return f"{type(error).__name__}: {error.msg} line {error.lineno}"


class Sandboxless:
    """Modules made of source texts, importing only one another."""

    def __init__(self, sources: Mapping[str, str]):
        self.sources = {
            path.removesuffix(".py").replace("/", "."): text for path, text in sources.items() if path.endswith(".py")
        }
        self.modules: dict[str, dict[str, Any]] = {}
        self.steps = 0

    def _import(self, name: str, *_: Any, **__: Any) -> Any:
        if name not in self.sources:
            raise ImportError(f"No module named {name!r}")
        return _Module(self.module(name))

    def module(self, name: str) -> dict[str, Any]:
        if name not in self.modules:
            code: CodeType = compile(self.sources[name], f"<{name}>", "exec")
            scope = {"__name__": name, "__builtins__": {**vars(builtins), "__import__": self._import}}
            self.modules[name] = scope
            exec(code, scope)
        return self.modules[name]

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.steps += 1
            if self.steps > STEPS or any(map(_too_big, frame.f_locals.values())):
                raise TooManySteps
        return self._trace

    def outcome(self, case: Case) -> tuple[str, str]:
        """("value", repr) | ("error", "Type: message") | ("syntax", text) | ("steps", "")"""
        self.steps = 0
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return "value", repr(eval(case.call, self.module(case.module)))
        except SyntaxError as error:
            return "syntax", syntax_text(error)
        except TooManySteps:
            return "steps", ""
        except Exception as error:
            return "error", f"{type(error).__name__}: {error}"
        finally:
            sys.settrace(before)


def _too_big(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() > LARGEST_INT_BITS
    return isinstance(value, (str, list, dict)) and len(value) > LARGEST_SIZE


class _Module:
    def __init__(self, scope: dict[str, Any]):
        self.__dict__.update(scope)


def run(sources: Mapping[str, str], cases: Sequence[Case]) -> list[tuple[str, str]]:
    box = Sandboxless(sources)
    return [box.outcome(case) for case in cases]


def same(found: str, expect: str) -> bool:
    """Whether two texts are of one value, as the grader sees it (env/reward/values_guest.py, which this room may not import; a
    test holds the two together): dicts and sets have no order, but True is no 1."""
    if found == expect:
        return True
    try:
        return _ordered(ast.literal_eval(found)) == _ordered(ast.literal_eval(expect))
    except (ValueError, SyntaxError):  # no literal
        return False


def _ordered(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{_ordered(k)}: {_ordered(v)}" for k, v in value.items())) + "}"
    if isinstance(value, set):
        return "{" + ", ".join(sorted(map(_ordered, value))) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(_ordered, value))})"
    return repr(value)


def report(sources: Mapping[str, str], cases: Sequence[Case]) -> str:
    """What the agent's `test` tool would say: "ok N", or the first failure."""
    for case, (outcome, detail) in zip(cases, run(sources, cases)):
        if outcome != "value" or not same(detail, case.expect):
            return failure_text(case, outcome, detail)
    return f"ok {len(cases)}"
