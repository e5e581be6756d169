"""Fault families: each turns one line of a function into a plausible wrong one.

As procedural mutation for SWE tasks does it, with one difference: every fault stays within one line, so that it can be
mended by line number. A family is a pure function (lines, index, rng) -> new line or None where it does not apply.
"""

import keyword
import random
import re
from collections.abc import Callable

Fault = Callable[[list[str], int, random.Random], str | None]

_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


def _swap(line: str, table: dict[str, tuple[str, ...]], rng: random.Random) -> str | None:
    """Replace one occurrence of one key (whole tokens, longest first) by one of its values."""
    keys = sorted(table, key=len, reverse=True)
    pattern = re.compile("|".join(rf"\b{re.escape(key)}\b" if key[0].isalpha() else re.escape(key) for key in keys))
    hits = list(pattern.finditer(line))
    if not hits:
        return None
    hit = rng.choice(hits)
    return line[: hit.start()] + rng.choice(table[hit.group()]) + line[hit.end() :]


def operator(lines: list[str], at: int, rng: random.Random) -> str | None:
    table = {
        " + ": (" - ", " * "),
        " - ": (" + ",),
        " * ": (" + ", " - "),
        " // ": (" * ", " % "),
        " % ": (" // ", " * "),
    }
    return _swap(lines[at], table, rng)


def comparison(lines: list[str], at: int, rng: random.Random) -> str | None:
    table = {
        " < ": (" > ", " <= "), " > ": (" < ", " >= "), " <= ": (" >= ", " < "), " >= ": (" <= ", " > "),
        " == ": (" != ",), " != ": (" == ",),
    }  # fmt: skip
    return _swap(lines[at], table, rng)


def constant(lines: list[str], at: int, rng: random.Random) -> str | None:
    hits = list(re.finditer(r"(?<![\w.\[])\d+(?!\w)", lines[at]))
    if not hits:
        return None
    hit = rng.choice(hits)
    value = int(hit.group()) + rng.choice((-1, 1))
    return lines[at][: hit.start()] + str(max(value, 0)) + lines[at][hit.end() :]


def _names(lines: list[str]) -> list[str]:
    """Parameters and assigned names, in order."""
    found: dict[str, None] = {}
    head = re.search(r"\((.*)\)", lines[0])
    for name in _NAME.findall(head.group(1) if head else ""):
        found.setdefault(name)
    for line in lines[2:]:
        for match in re.finditer(r"^\s*(\w+) [+*-]?= |for (\w+)(?:, (\w+))? in", line):
            for name in match.groups():
                if name:
                    found.setdefault(name)
    return list(found)


def _uses(lines: list[str], at: int) -> list[re.Match[str]]:
    names = set(_names(lines))
    return [m for m in _NAME.finditer(lines[at]) if m.group() in names]


def variable(lines: list[str], at: int, rng: random.Random) -> str | None:
    uses = _uses(lines, at)
    others = _names(lines)
    if not uses or len(others) < 2:
        return None
    use = rng.choice(uses)
    return lines[at][: use.start()] + rng.choice([o for o in others if o != use.group()]) + lines[at][use.end() :]


def typo(lines: list[str], at: int, rng: random.Random) -> str | None:
    uses = [m for m in _uses(lines, at) if len(m.group()) > 2]
    if not uses:
        return None
    use = rng.choice(uses)
    cut = rng.randrange(1, len(use.group()))
    return lines[at][: use.start()] + use.group()[:cut] + use.group()[cut + 1 :] + lines[at][use.end() :]


def initial(lines: list[str], at: int, rng: random.Random) -> str | None:
    match = re.match(r"^(\s*\w+ = )(0|1|\[\]|\{\}|\"\"|None)$", lines[at])
    if not match:
        return None
    other = {
        "0": ("1", "-1", "None"),
        "1": ("0", "2"),
        "[]": ("{}", "0"),
        "{}": ("[]",),
        '""': ('" "', "[]"),
        "None": ("0",),
    }
    return match.group(1) + rng.choice(other[match.group(2)])


def negation(lines: list[str], at: int, rng: random.Random) -> str | None:
    if " if not " in lines[at] or lines[at].lstrip().startswith("if not "):
        return lines[at].replace("if not ", "if ", 1)
    return lines[at].replace("if ", "if not ", 1) if re.search(r"\bif ", lines[at]) else None


def call(lines: list[str], at: int, rng: random.Random) -> str | None:
    table = {
        "append": ("extend", "remove"), "upper": ("lower", "title"), "lower": ("upper",), "title": ("upper",), "strip": ("lower",),
        "all": ("any",), "any": ("all",), "abs": ("int",), "len": ("sum", "max"), "isdigit": ("isalpha",),
        "isupper": ("islower",), "islower": ("isupper",), "get": ("pop",), "range": ("list",), "enumerate": ("zip",),
        "zip": ("map",), "join": ("split",),
    }  # fmt: skip
    return _swap(lines[at], table, rng)


def colon(lines: list[str], at: int, rng: random.Random) -> str | None:
    return lines[at][:-1] if lines[at].endswith(":") else None


def bracket(lines: list[str], at: int, rng: random.Random) -> str | None:
    hits = [m.start() for m in re.finditer(r"[)\]]", lines[at])]
    if not hits:
        return None
    cut = rng.choice(hits)
    return lines[at][:cut] + lines[at][cut + 1 :]


def index(lines: list[str], at: int, rng: random.Random) -> str | None:
    table = {
        "[0]": ("[1]", "[-1]"), "[-1]": ("[0]", "[-2]"), "[1:]": ("[:1]", "[2:]"), "[:-1]": ("[-1:]", "[1:]"),
        "[::-1]": ("[::1]",), "[::2]": ("[::3]",), "[0:2]": ("[0:1]", "[2:]"),
    }  # fmt: skip
    return _swap(lines[at], table, rng)


def augment(lines: list[str], at: int, rng: random.Random) -> str | None:
    return _swap(lines[at], {" += ": (" = ", " -= "), " *= ": (" = ", " += ")}, rng)


def swap_arguments(lines: list[str], at: int, rng: random.Random) -> str | None:
    if at == 0:
        return None
    match = re.search(r"\(([^(),]+), ([^(),]+)\)", lines[at])
    return (
        lines[at][: match.start()] + f"({match.group(2)}, {match.group(1)})" + lines[at][match.end() :]
        if match
        else None
    )


def returned(lines: list[str], at: int, rng: random.Random) -> str | None:
    if not lines[at].lstrip().startswith("return "):
        return None
    return lines[at].replace("return ", rng.choice(("", "return not ", "retrun ")), 1)


def bounds(lines: list[str], at: int, rng: random.Random) -> str | None:
    match = re.search(r"range\((.*)\)", lines[at])
    if not match:
        return None
    inner = match.group(1)
    options = (
        [f"1, {inner}", f"{inner} - 1"]
        if "," not in inner
        else [inner.replace(" + 1", ""), inner.replace("1, ", "2, ", 1)]
    )
    return lines[at][: match.start(1)] + rng.choice(options) + lines[at][match.end(1) :]


def indent(lines: list[str], at: int, rng: random.Random) -> str | None:
    """The last return slips into the block above it."""
    if at == len(lines) - 1 and lines[at].startswith("    return ") and lines[at - 1].startswith("        "):
        return "    " + lines[at]
    return None


def key_word(lines: list[str], at: int, rng: random.Random) -> str | None:
    words = [
        m
        for m in _NAME.finditer(lines[at])
        if keyword.iskeyword(m.group()) and len(m.group()) > 2 and m.group() not in ("None", "not")
    ]
    if not words:
        return None
    word = rng.choice(words)
    cut = rng.randrange(len(word.group()) - 1)
    w = word.group()
    return lines[at][: word.start()] + w[:cut] + w[cut + 1] + w[cut] + w[cut + 2 :] + lines[at][word.end() :]


FAULTS: dict[str, Fault] = {
    "operator": operator, "comparison": comparison, "constant": constant, "variable": variable, "typo": typo,
    "initial": initial, "negation": negation, "call": call, "colon": colon, "bracket": bracket, "index": index,
    "augment": augment, "swap_arguments": swap_arguments, "returned": returned, "bounds": bounds, "indent": indent,
    "key_word": key_word,
}  # fmt: skip


def inject(source: str, rng: random.Random) -> tuple[str, int, str] | None:
    """(faulty source, index of the changed line, family); None where the drawn family does not apply anywhere.

    The family is drawn first and evenly, so that rare constructs do not make rare faults.
    """
    lines = source.rstrip("\n").split("\n")
    family = rng.choice(list(FAULTS))
    candidates = [
        (i, new)
        for i in range(len(lines))
        if i != 1 and (new := FAULTS[family](lines, i, rng)) is not None and new != lines[i]
    ]
    if not candidates:
        return None
    at, new = rng.choice(candidates)
    return "\n".join([*lines[:at], new, *lines[at + 1 :]]) + "\n", at, family
