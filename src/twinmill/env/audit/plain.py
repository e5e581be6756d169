"""Texts made plain, so that rules can match them.

Python's constants are folded ("rew" + "ard.txt"), a shell's quotes are taken away (con''ftest.py), and what is spelt in
base64 or hex is read. Not covered: what only running the program would show.
"""

import ast
import base64
import binascii
import re
import shlex
from collections.abc import Callable


def parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)\n\s*\2\b", re.DOTALL)
_DASH_C = re.compile(r"python3?(?:\s+-[A-Za-bd-z]\S*)*\s+-c\s+('[^']*'|\"(?:\\.|[^\"\\])*\")", re.DOTALL)


def inline_python(command: str) -> list[str]:
    """Programs within a shell command."""
    found = [match[3] for match in _HERE.finditer(command)]
    found += [match[1][1:-1].replace('\\"', '"') for match in _DASH_C.finditer(command)]
    return [text for text in found if parsed(text) is not None]


def commands(shell: str) -> list[list[str]]:
    """The simple commands of a shell text as words, without the patterns of sed, awk, grep: those name no files."""
    found = []
    for part in re.split(r"[;|&\n()]+", shell):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            words = part.split()
        while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in _BEFORE):
            words = words[1:]
        if words and words[0].rpartition("/")[2] in _WITH_PATTERN:
            options = [word for word in words[1:] if word.startswith("-")]
            words = [words[0], *options, *[word for word in words[1:] if not word.startswith("-")][1:]]
        if words:
            found.append(words)
    return found


_BEFORE = ("sudo", "nohup", "time", "exec", "xargs", "env", "do", "then", "if", "while", "else", "!", "{")
_WITH_PATTERN = ("sed", "awk", "grep", "egrep", "fgrep", "rg", "perl")


_BLOB = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")
_HEX = re.compile(r"(?:\\x[0-9a-fA-F]{2}){4,}|\b[0-9a-f]{24,}\b")
_JOINED = re.compile(r"""(?<=[\w./$-])(?:''|""|\\(?=[\w./-]))(?=[\w./-])""")
LONG = 20_000
"""characters of a text that are made plain"""


def plain(text: str) -> str:
    """The text, and behind it what it spells in other ways."""
    text = text[:LONG]
    extra = [joined] if (joined := _JOINED.sub("", text)) != text else []
    for blob in _BLOB.findall(text)[:20]:
        try:
            extra.append(base64.b64decode(blob + "=" * (-len(blob) % 4)).decode("ascii"))
        except (binascii.Error, UnicodeDecodeError):
            continue
    for blob in _HEX.findall(text)[:20]:
        try:
            extra.append(bytes.fromhex(blob.replace("\\x", "")).decode("ascii"))
        except (ValueError, UnicodeDecodeError):
            continue
    for program in [text, *inline_python(text)]:
        extra += folded_strings(program)
    return "\n".join([text, *(each for each in extra if each.isprintable() or "\n" in each)])


def folded_strings(source: str) -> list[str]:
    """Strings that a program makes of constants: sums, joins, formats, chr(), reversed slices, decoded bytes."""
    tree = parsed(source)
    if tree is None:
        return []
    folded = (
        _fold(node) for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.Call | ast.JoinedStr | ast.Subscript)
    )
    return [value for value in folded if isinstance(value, str) and len(value) > 2]


def _fold(node: ast.AST, depth: int = 0) -> object:
    """The constant that an expression makes; None = no constant that we know."""
    if depth > 40:
        return None
    value = _SHAPES.get(type(node), lambda node, depth: None)(node, depth)
    return None if isinstance(value, str | bytes) and len(value) > LONG else value


def _sum(node: ast.BinOp, depth: int) -> object:
    left, right = _fold(node.left, depth + 1), _fold(node.right, depth + 1)
    if isinstance(node.op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return left + right
    return None


def _format(node: ast.JoinedStr, depth: int) -> object:
    parts = [_fold(part.value if isinstance(part, ast.FormattedValue) else part, depth + 1) for part in node.values]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else None  # type: ignore[arg-type]


def _called(node: ast.Call, depth: int) -> object:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    arguments = [_fold(argument, depth + 1) for argument in node.args]
    try:
        if name == "join" and isinstance(node.func, ast.Attribute) and len(arguments) == 1:
            between = _fold(node.func.value, depth + 1)
            return between.join(arguments[0]) if isinstance(between, str) else None  # type: ignore[arg-type, call-overload]
        if name == "chr":
            return chr(arguments[0])  # type: ignore[arg-type]
        if name == "b64decode":
            return base64.b64decode(arguments[0]).decode("ascii")  # type: ignore[arg-type]
        if name in ("fromhex", "unhexlify"):
            return bytes.fromhex(arguments[0]).decode("ascii")  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return None


def _sliced(node: ast.Subscript, depth: int) -> object:
    """Only "..."[::-1]."""
    whole, part = _fold(node.value, depth + 1), node.slice
    backwards = isinstance(part, ast.Slice) and part.lower is part.upper is None and _fold_minus(part.step)
    return whole[::-1] if backwards and isinstance(whole, str) else None


def _fold_minus(node: ast.AST | None) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _fold(node.operand) == 1


def _items(node: ast.List | ast.Tuple, depth: int) -> object:
    values = [_fold(item, depth + 1) for item in node.elts]
    return None if None in values else values


_SHAPES: dict[type, Callable[..., object]] = {
    ast.Constant: lambda node, depth: node.value if isinstance(node.value, str | int | bytes) else None,
    ast.BinOp: _sum,
    ast.JoinedStr: _format,
    ast.Call: _called,
    ast.Subscript: _sliced,
    ast.List: _items,
    ast.Tuple: _items,
}
