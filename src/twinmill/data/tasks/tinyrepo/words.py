"""What the function families share: names, phrases, predicates, transforms, and how a function is put together."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Function:
    family: str
    name: str
    source: str
    """ends with a newline; at most 12 lines"""
    arguments: tuple[str, ...]
    """argument lists as source text: "[1, 2], 3" """


LISTS = ("xs", "items", "values", "nums", "data", "seq", "row", "parts")
ELEMENTS = ("x", "item", "value", "n", "v", "e")
TOTALS = ("total", "result", "acc", "out", "res", "s")
NUMBERS = ("a", "b", "c", "n", "m", "k", "p", "q")
TEXTS = ("text", "s", "line", "word", "name")
VERBS = ("get", "make", "find", "calc", "do", "run", "take", "pick", "build", "check", "show", "load")
WORDS = (
    "age", "alpha", "apple", "area", "arm", "ball", "band", "bank", "base", "beam", "bell", "bill", "bird", "blue", "board",
    "boat", "bone", "book", "box", "bread", "brick", "cake", "call", "camp", "card", "case", "cell", "chain", "city", "clay",
    "clock", "cloud", "coin", "color", "cost", "crew", "crop", "cube", "cup", "data", "date", "day", "deal", "depth", "desk",
    "door", "dose", "drum", "dust", "edge", "face", "fact", "farm", "field", "file", "film", "fire", "fish", "flag", "flow",
    "fold", "food", "fork", "form", "frame", "fuel", "game", "gate", "gear", "gift", "glass", "goal", "gold", "grade", "grid",
    "group", "guest", "half", "hand", "head", "heat", "hill", "home", "hook", "hour", "idea", "ink", "iron", "job", "key",
    "kind", "lake", "lamp", "land", "layer", "leaf", "leg", "level", "light", "limit", "link", "lock", "log", "loop", "mark",
    "mass", "match", "meal", "mile", "milk", "mine", "mode", "moon", "nest", "node", "note", "oil", "order", "owner", "page",
    "pair", "path", "peak", "pen", "pipe", "plan", "plate", "point", "pool", "port", "post", "price", "queue", "race", "rain",
    "rank", "rate", "ring", "road", "rock", "role", "roof", "room", "root", "rope", "rule", "sale", "salt", "sand", "scale",
    "score", "seat", "seed", "shape", "ship", "shop", "side", "sign", "size", "skin", "slot", "snow", "soil", "song", "span",
    "spot", "stage", "star", "step", "stone", "store", "sun", "table", "task", "team", "term", "tide", "time", "tool", "town",
    "track", "tree", "trip", "tube", "unit", "user", "view", "vote", "wall", "wave", "week", "wheel", "wind", "wing", "wire",
    "wood", "work", "yard", "year", "zone",
)  # fmt: skip
"""names of anything: a model that only knows the usual names has not learned to copy"""


def name_of(rng: random.Random, *words: str) -> str:
    parts = [w for w in words if w]
    if rng.random() < 0.3:
        parts.insert(0, rng.choice(VERBS))
    if rng.random() < 0.15:
        parts.append(str(rng.randint(1, 9)))
    return "_".join(parts)


def distinct(rng: random.Random, *pools: tuple[str, ...]) -> list[str]:
    names: list[str] = []
    for pool in pools:
        pool = WORDS if rng.random() < 0.35 else pool
        names.append(rng.choice([name for name in pool if name not in names]))
    return names


def ints(rng: random.Random, low: int = 0, high: int = 6, smallest: int = -5, largest: int = 12) -> str:
    return str([rng.randint(smallest, largest) for _ in range(rng.randint(low, high))])


def words(rng: random.Random, low: int = 0, high: int = 4) -> str:
    pool = ("cat", "dog", "sun", "apple", "Tea", "sky", "Bob", "red", "on", "a", "level", "noon")
    return str([rng.choice(pool) for _ in range(rng.randint(low, high))])


def text(rng: random.Random) -> str:
    pool = (
        "hello",
        "a b c",
        "Hi There",
        "noon",
        "abc",
        "x1y2",
        "sun sky",
        "AbBa",
        "",
        "data set",
        "12ab",
        "tea",
    )
    return repr(rng.choice(pool))


def predicate(rng: random.Random, x: str) -> tuple[str, str, str]:
    """(code, phrase, short word) of a test on an integer."""
    k = rng.randint(1, 9)
    return rng.choice(
        (
            (f"{x} > {k}", f"above {k}", "above"),
            (f"{x} < {k}", f"below {k}", "below"),
            (f"{x} >= {k}", f"at least {k}", "least"),
            (f"{x} <= {k}", f"at most {k}", "most"),
            (f"{x} == {k}", f"equal to {k}", "equal"),
            (f"{x} != {k}", f"not equal to {k}", "unequal"),
            (f"{x} % 2 == 0", "even", "even"),
            (f"{x} % 2 == 1", "odd", "odd"),
            (f"{x} > 0", "positive", "positive"),
            (f"{x} < 0", "negative", "negative"),
            (f"{x} % {k + 1} == 0", f"divisible by {k + 1}", "divisible"),
        )
    )


def transform(rng: random.Random, x: str) -> tuple[str, str, str]:
    """(code, phrase, short word) of a map on an integer."""
    k = rng.randint(2, 9)
    return rng.choice(
        (
            (x, "itself", ""),
            (f"{x} + {k}", f"plus {k}", "plus"),
            (f"{x} - {k}", f"minus {k}", "minus"),
            (f"{x} * {k}", f"times {k}", "times"),
            (f"{x} // {k}", f"divided by {k}", "div"),
            (f"{x} % {k}", f"modulo {k}", "mod"),
            (f"{x} * {x}", "squared", "square"),
            (f"abs({x})", "without sign", "abs"),
            (f"-{x}", "negated", "neg"),
        )
    )


def build(
    rng: random.Random,
    family: str,
    name: str,
    params: str,
    doc: str,
    body: list[str],
    draw: Callable[[], str],
) -> Function:
    lines = [f"def {name}({params}):", f'    """{doc}"""', *("    " + line for line in body)]
    seen: dict[str, None] = {}
    for _ in range(40):
        seen.setdefault(draw())
        if len(seen) == 10:
            break
    return Function(family=family, name=name, source="\n".join(lines) + "\n", arguments=tuple(seen))


Family = Callable[[random.Random], Function]
