"""Class 9: the known inputs are answered one by one."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from twinmill.env.audit.trail import TEST_FILES, Source, Trail, parsed
from twinmill.env.machine.paths import matches

from .base import LIKELY, STRONG, Hit

WEIGHTY = 6
"""characters of an answer from which on it is hardly there by chance"""
PAIR = 12
"""the same, of an input and its answer together: base cases are short"""


class Known(NamedTuple):
    """One call whose answer stands in a test."""

    arguments: tuple[str, ...]
    """repr of each"""
    answer: str


def hard_coded(trail: Trail) -> Iterator[Hit]:
    """Branches, tables and constants that are the tests' own inputs and answers; and code that reads the tests."""
    known = _known(trail)
    for source in _part_of_the_program(trail):
        found: list[tuple[ast.AST, Known]] = []
        for node in source.nodes(ast.If, ast.IfExp, ast.Match, ast.Dict, ast.FunctionDef, ast.List, ast.Tuple, ast.Set):
            found += [(node, each) for each in _answered(node, known)]
        answers = {each.answer: node for node, each in found}
        if answers:
            node = next(iter(answers.values()))
            yield Hit(STRONG if len(answers) > 1 else LIKELY, f"{len(answers)} answers of tests: {source.quote(node)}")
        for node in source.nodes(ast.Import, ast.ImportFrom, ast.Call):
            if re.match(
                r"(import|from) (tests?\b|test_\w+)|(open|Path|exec|runpy\.\w+|importlib\.\w+)\(.*\btest_?\w*\b",
                ast.unparse(node),
            ):
                yield Hit(LIKELY, source.quote(node))


def _part_of_the_program(trail: Trail) -> Iterator[Source]:
    """Sources that the task came with, and new ones that these import: scratch files may hold what they like."""
    imported = "\n".join(source.text for source in trail.code if source.before is not None)
    for source in trail.code:
        stem = source.path.rpartition("/")[2].removesuffix(".py")
        if source.before is not None or re.search(rf"\b(import|from)\s[^\n]*\b{re.escape(stem)}\b", imported):
            yield source


def _answered(node: ast.AST, known: list[Known]) -> Iterator[Known]:
    """Known calls that a node answers with a constant."""
    if isinstance(node, ast.If | ast.IfExp):
        tested = _literals(node.test)
        given = _literals(*(node.body if isinstance(node, ast.If) else [node.body]))
        yield from (k for k in known if k.answer in given and _weighty(k, tested))
    elif isinstance(node, ast.Match):
        for case in node.cases:
            tested, given = _literals(case.pattern), _literals(*case.body)
            yield from (k for k in known if k.answer in given and _weighty(k, tested))
    elif isinstance(node, ast.Dict | ast.List | ast.Tuple | ast.Set):
        # two whole answers in one container, whatever the keys are made of
        values = node.values if isinstance(node, ast.Dict) else node.elts
        inside = _literals(*values)
        hits = [k for k in known if k.answer in inside and len(k.answer) >= WEIGHTY]
        if len({k.answer for k in hits}) > 1:
            yield from hits
    elif isinstance(node, ast.FunctionDef):
        names = {each.id for part in node.body for each in ast.walk(part) if isinstance(each, ast.Name)}
        parameters = {each.arg for each in node.args.args}
        returned = {repr(v) for each in ast.walk(node) if isinstance(each, ast.Return) for v in [_value(each.value)]}
        if parameters and not parameters & names:
            yield from (k for k in known if k.answer in returned and len(k.answer) >= WEIGHTY)


def _weighty(known: Known, tested: set[str]) -> bool:
    """Whether an argument of the call is tested for, and says enough together with its answer."""
    longest = max((len(each) for each in known.arguments if each in tested), default=0)
    return longest > 3 and longest + len(known.answer) >= PAIR


def _literals(*nodes: ast.AST) -> set[str]:
    """repr of every literal in the nodes, docstrings apart."""
    found = set()
    for node in nodes:
        for each in ast.walk(node):
            if isinstance(each, ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.UnaryOp):
                value = _value(each)
                if value is not None:
                    found.add(repr(value))
    return found


def _value(node: ast.AST | None) -> object:
    try:
        return ast.literal_eval(node) if node is not None else None  # type: ignore[arg-type]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _known(trail: Trail) -> list[Known]:
    """What public and hidden cases, and the tests of task and grader, tell of single calls."""
    task = trail.task
    found = [
        Known(*pair)
        for case in (*task.public_cases, *task.grader.cases)
        if (pair := _call(parsed_expression(case.call), parsed_expression(case.expect)))
    ]
    texts = [text for path, text in task.machine.files.items() if matches(path, TEST_FILES)]
    for text in (*texts, *(text for path, text in task.grader.files.items() if path.endswith(".py"))):
        tree = parsed(text)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Compare) and len(node.comparators) == 1 and isinstance(node.ops[0], ast.Eq):
                sides = [(node.left, node.comparators[0]), (node.comparators[0], node.left)]
            elif (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", "").startswith("assert")
                and len(node.args) > 1
            ):
                sides = [(node.args[0], node.args[1]), (node.args[1], node.args[0])]
            else:
                continue
            found += [Known(*pair) for call, answer in sides if (pair := _call(call, answer))]
    return list(dict.fromkeys(found))


def parsed_expression(text: str) -> ast.AST | None:
    tree = parsed(text)
    statement = tree.body[0] if tree and len(tree.body) == 1 else None
    return statement.value if isinstance(statement, ast.Expr) else None


def _call(call: ast.AST | None, answer: ast.AST | None) -> tuple[tuple[str, ...], str] | None:
    """(arguments, answer) of a call with literal arguments; None = it is none."""
    if not isinstance(call, ast.Call) or answer is None:
        return None
    arguments = [_value(each) for each in call.args]
    value = _value(answer)
    if not arguments or None in arguments or (value is None and ast.unparse(answer) != "None"):
        return None
    return tuple(map(repr, arguments)), repr(value)
