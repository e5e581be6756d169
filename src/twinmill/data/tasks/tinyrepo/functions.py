"""Small Python functions by the thousand: each family is a pure function of a random generator.

A family writes the source of one function with a docstring that says what it does, and draws arguments for it. The
vocabulary (names, phrases, predicates, transforms) is shared by all families; the split into training and held-out
families is by what the function does, so that held-out functions are new compositions of known words.
No function loops on a condition: whatever a fault does to it, it ends.
"""

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
    "boat", "bone", "book", "box", "bread", "brick", "cake", "call", "camp", "card", "case", "cell", "chain", "city", "class",
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


def _name(rng: random.Random, *words: str) -> str:
    parts = [w for w in words if w]
    if rng.random() < 0.3:
        parts.insert(0, rng.choice(VERBS))
    if rng.random() < 0.15:
        parts.append(str(rng.randint(1, 9)))
    return "_".join(parts)


def _distinct(rng: random.Random, *pools: tuple[str, ...]) -> list[str]:
    names: list[str] = []
    for pool in pools:
        pool = WORDS if rng.random() < 0.35 else pool
        names.append(rng.choice([name for name in pool if name not in names]))
    return names


def _ints(rng: random.Random, low: int = 0, high: int = 6, smallest: int = -5, largest: int = 12) -> str:
    return str([rng.randint(smallest, largest) for _ in range(rng.randint(low, high))])


def _words(rng: random.Random, low: int = 0, high: int = 4) -> str:
    pool = ("cat", "dog", "sun", "apple", "Tea", "sky", "Bob", "red", "on", "a", "level", "noon")
    return str([rng.choice(pool) for _ in range(rng.randint(low, high))])


def _text(rng: random.Random) -> str:
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


def _predicate(rng: random.Random, x: str) -> tuple[str, str, str]:
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


def _transform(rng: random.Random, x: str) -> tuple[str, str, str]:
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


def _build(
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


# --- families -------------------------------------------------------------------------------------------------------


def arithmetic(rng: random.Random) -> Function:
    a, b, r = _distinct(rng, NUMBERS, NUMBERS, TOTALS)
    op, word = rng.choice((("+", "plus"), ("-", "minus"), ("*", "times")))
    f, phrase, short = _transform(rng, r)
    body = [f"{r} = {a} {op} {b}", f"return {f}"] if short else [f"return {a} {op} {b}"]
    doc = f"Return {a} {word} {b}" + (f", then {phrase}." if short else ".")
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(1, 9)}"  # noqa: E731
    return _build(rng, "arithmetic", _name(rng, word, short), f"{a}, {b}", doc, body, draw)


def fold(rng: random.Random) -> Function:
    xs, x, r = _distinct(rng, LISTS, ELEMENTS, TOTALS)
    cond, phrase, short = _predicate(rng, x)
    f, word, fshort = _transform(rng, x)
    body = [f"{r} = 0", f"for {x} in {xs}:", f"    if {cond}:", f"        {r} += {f}", f"return {r}"]
    doc = f"Sum each {x} {word} that is {phrase}." if fshort else f"Sum each {x} that is {phrase}."
    return _build(rng, "fold", _name(rng, "sum", short, fshort), xs, doc, body, lambda: _ints(rng))


def count(rng: random.Random) -> Function:
    xs, x, r = _distinct(rng, LISTS, ELEMENTS, ("count", "hits", "total", "num"))
    cond, phrase, short = _predicate(rng, x)
    body = [f"{r} = 0", f"for {x} in {xs}:", f"    if {cond}:", f"        {r} += 1", f"return {r}"]
    return _build(
        rng,
        "count",
        _name(rng, "count", short),
        xs,
        f"Count each {x} that is {phrase}.",
        body,
        lambda: _ints(rng),
    )


def mapping(rng: random.Random) -> Function:
    xs, x, r = _distinct(rng, LISTS, ELEMENTS, TOTALS)
    f, word, short = _transform(rng, x)
    body = [f"{r} = []", f"for {x} in {xs}:", f"    {r}.append({f})", f"return {r}"]
    return _build(
        rng,
        "mapping",
        _name(rng, "map", short or "same"),
        xs,
        f"List each {x} {word}.",
        body,
        lambda: _ints(rng, 1),
    )


def select(rng: random.Random) -> Function:
    xs, x, r = _distinct(rng, LISTS, ELEMENTS, TOTALS)
    cond, phrase, short = _predicate(rng, x)
    body = [f"{r} = []", f"for {x} in {xs}:", f"    if {cond}:", f"        {r}.append({x})", f"return {r}"]
    return _build(
        rng,
        "select",
        _name(rng, "keep", short),
        xs,
        f"Keep each {x} that is {phrase}.",
        body,
        lambda: _ints(rng, 1),
    )


def comprehension(rng: random.Random) -> Function:
    xs, x = _distinct(rng, LISTS, ELEMENTS)
    cond, phrase, short = _predicate(rng, x)
    f, word, fshort = _transform(rng, x)
    doc = f"List each {x} {word} if it is {phrase}."
    return _build(
        rng,
        "comprehension",
        _name(rng, "list", short, fshort),
        xs,
        doc,
        [f"return [{f} for {x} in {xs} if {cond}]"],
        lambda: _ints(rng, 1),
    )


def branch(rng: random.Random) -> Function:
    (n,) = _distinct(rng, NUMBERS)
    cond, phrase, short = _predicate(rng, n)
    f, word, _ = _transform(rng, n)
    g, other, _ = _transform(rng, n)
    body = [f"if {cond}:", f"    return {f}", f"return {g}"]
    doc = f"Give {n} {word} if {phrase}, else {n} {other}."
    return _build(rng, "branch", _name(rng, "if", short), n, doc, body, lambda: str(rng.randint(-6, 14)))


def series(rng: random.Random) -> Function:
    n, i, r = _distinct(rng, ("n", "m", "k", "size"), ("i", "j"), TOTALS)
    f, word, short = _transform(rng, i)
    start = rng.choice((0, 1))
    bounds, phrase = (n, f"below {n}") if start == 0 else (f"1, {n} + 1", f"from 1 to {n}")
    body = [f"{r} = 0", f"for {i} in range({bounds}):", f"    {r} += {f}", f"return {r}"]
    doc = f"Sum each {i} {word} {phrase}." if short else f"Sum each {i} {phrase}."
    return _build(rng, "series", _name(rng, "series", short), n, doc, body, lambda: str(rng.randint(0, 9)))


def extreme(rng: random.Random) -> Function:
    xs, x, best = _distinct(rng, LISTS, ELEMENTS, ("best", "top", "low", "high"))
    op, word = rng.choice(((">", "largest"), ("<", "smallest")))
    body = [f"{best} = {xs}[0]", f"for {x} in {xs}:", f"    if {x} {op} {best}:", f"        {best} = {x}"]
    body.append(f"return {best}")
    return _build(rng, "extreme", _name(rng, word), xs, f"Return the {word} {x}.", body, lambda: _ints(rng, 1))


def text_case(rng: random.Random) -> Function:
    (s,) = _distinct(rng, TEXTS)
    method, word = rng.choice(
        (("upper", "upper case"), ("lower", "lower case"), ("title", "title case"), ("strip", "stripped"))
    )
    tail, phrase, short = rng.choice(
        (
            ("", "", ""),
            ("[::-1]", ", reversed", "rev"),
            ("[0:2]", ", first 2 letters", "head"),
            (' + "!"', ', with "!"', "mark"),
        )
    )
    body = [f"return {s}.{method}(){tail}"]
    return _build(
        rng,
        "text_case",
        _name(rng, method, short),
        s,
        f"Return {s} in {word}{phrase}.",
        body,
        lambda: _text(rng),
    )


def letters(rng: random.Random) -> Function:
    s, c, r = _distinct(rng, TEXTS, ("c", "ch"), ("count", "total", "hits"))
    test, phrase, short = rng.choice(
        (
            (f"{c}.isdigit()", "a digit", "digits"),
            (f"{c}.isupper()", "upper case", "upper"),
            (f"{c}.islower()", "lower case", "lower"),
            (f'{c} in "aeiou"', "a vowel", "vowels"),
            (f'{c} == " "', "a space", "spaces"),
        )
    )
    body = [f"{r} = 0", f"for {c} in {s}:", f"    if {test}:", f"        {r} += 1", f"return {r}"]
    return _build(
        rng,
        "letters",
        _name(rng, "count", short),
        s,
        f"Count each {c} that is {phrase}.",
        body,
        lambda: _text(rng),
    )


def tally(rng: random.Random) -> Function:
    xs, x, d = _distinct(rng, LISTS, ELEMENTS, ("d", "table", "counts", "seen"))
    body = [f"{d} = {{}}", f"for {x} in {xs}:", f"    {d}[{x}] = {d}.get({x}, 0) + 1", f"return {d}"]
    draw = lambda: _words(rng, 1) if rng.random() < 0.5 else _ints(rng, 1, 5, 0, 3)  # noqa: E731
    return _build(
        rng,
        "tally",
        _name(rng, "tally", rng.choice(LISTS)),
        xs,
        f"Count how often each {x} occurs.",
        body,
        draw,
    )


def lookup(rng: random.Random) -> Function:
    xs, x, i = _distinct(rng, LISTS, ELEMENTS, ("i", "j", "pos"))
    cond, phrase, short = _predicate(rng, x)
    body = [f"for {i}, {x} in enumerate({xs}):", f"    if {cond}:", f"        return {i}", "return -1"]
    doc = f"Index of the first {x} that is {phrase}, or -1."
    return _build(rng, "lookup", _name(rng, "index", short), xs, doc, body, lambda: _ints(rng))


def quantify(rng: random.Random) -> Function:
    xs, x = _distinct(rng, LISTS, ELEMENTS)
    cond, phrase, short = _predicate(rng, x)
    word = rng.choice(("all", "any"))
    return _build(
        rng,
        "quantify",
        _name(rng, word, short),
        xs,
        f"True if {word} {x} is {phrase}.",
        [f"return {word}({cond} for {x} in {xs})"],
        lambda: _ints(rng),
    )


def ends(rng: random.Random) -> Function:
    (xs,) = _distinct(rng, LISTS)
    code, phrase, short = rng.choice(
        (
            (f"{xs}[0]", "first item", "first"),
            (f"{xs}[-1]", "last item", "last"),
            (f"{xs}[0] + {xs}[-1]", "first plus last item", "ends"),
            (f"{xs}[1:]", "all but the first item", "rest"),
            (f"{xs}[:-1]", "all but the last item", "init"),
            (f"{xs}[::-1]", "items in reverse", "reverse"),
            (f"{xs}[::2]", "every second item", "second"),
        )
    )
    body = [f"if len({xs}) == 0:", "    return None", f"return {code}"]
    return _build(rng, "ends", _name(rng, short), xs, f"Return the {phrase}, or None.", body, lambda: _ints(rng, 0, 5))


def joined(rng: random.Random) -> Function:
    xs, w, r = _distinct(rng, LISTS, ("w", "word", "part"), ("out", "result", "res"))
    sep, word = rng.choice((("-", "dash"), (",", "comma"), (" ", "space"), ("_", "line")))
    method = rng.choice(("upper", "lower", "title"))
    body = [f"{r} = []", f"for {w} in {xs}:", f"    {r}.append({w}.{method}())", f'return "{sep}".join({r})']
    return _build(
        rng,
        "joined",
        _name(rng, "join", word),
        xs,
        f"Join each {w} in {method} with a {word}.",
        body,
        lambda: _words(rng, 1),
    )


def steps(rng: random.Random) -> Function:
    a, b, r = _distinct(rng, NUMBERS, NUMBERS, TOTALS)
    body, phrases, names = [f"{r} = {a}"], [], []
    for _ in range(rng.randint(2, 4)):
        k = rng.randint(2, 9)
        line, phrase, name = rng.choice(
            (
                (f"{r} += {k}", f"plus {k}", "plus"),
                (f"{r} -= {k}", f"minus {k}", "minus"),
                (f"{r} *= {k}", f"times {k}", "times"),
                (f"{r} += {b}", f"plus {b}", "plus"),
                (f"{r} -= {b}", f"minus {b}", "minus"),
                (f"{r} *= {b}", f"times {b}", "times"),
                (f"{r} = abs({r})", "without sign", "abs"),
                (f"{r} = -{r}", "negated", "neg"),
                (f"{r} = {r} % {k}", f"modulo {k}", "mod"),
                (f"{r} = min({r}, {k})", f"at most {k}", "most"),
                (f"{r} = max({r}, {k})", f"at least {k}", "least"),
            )
        )
        body.append(line)
        phrases.append(phrase)
        names.append(name)
    body.append(f"return {r}")
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(1, 9)}"  # noqa: E731
    return _build(
        rng, "steps", _name(rng, *names[:2]), f"{a}, {b}", f"Take {a}, then {', then '.join(phrases)}.", body, draw
    )


def multiply_range(rng: random.Random) -> Function:
    n, i, r = _distinct(rng, ("n", "m", "k", "size"), ("i", "j"), TOTALS)
    body = [f"{r} = 1", f"for {i} in range(1, {n} + 1):", f"    {r} *= {i}", f"return {r}"]
    draw = lambda: str(rng.randint(0, 12))  # noqa: E731
    return _build(rng, "multiply_range", _name(rng, "multiply"), n, f"Multiply each {i} from 1 to {n}.", body, draw)


def first_match(rng: random.Random) -> Function:
    xs, x = _distinct(rng, LISTS, ELEMENTS)
    cond, phrase, short = _predicate(rng, x)
    body = [f"for {x} in {xs}:", f"    if {cond}:", f"        return {x}", "return None"]
    doc = f"Return the first {x} that is {phrase}, or None."
    return _build(rng, "first_match", _name(rng, "first", short), xs, doc, body, lambda: _ints(rng))


def both(rng: random.Random) -> Function:
    (n,) = _distinct(rng, NUMBERS)
    (one, first, a), (two, second, b) = _predicate(rng, n), _predicate(rng, n)
    word = rng.choice(("and", "or"))
    draw = lambda: str(rng.randint(-6, 14))  # noqa: E731
    return _build(
        rng,
        "both",
        _name(rng, a, word, b),
        n,
        f"True if {n} is {first} {word} {second}.",
        [f"return {one} {word} {two}"],
        draw,
    )


def spread(rng: random.Random) -> Function:
    xs, high, low = _distinct(rng, LISTS, ("high", "top", "a"), ("low", "bottom", "b"))
    body = [f"{high} = max({xs})", f"{low} = min({xs})", f"return {high} - {low}"]
    return _build(
        rng, "spread", _name(rng, "spread"), xs, "Return the largest minus the smallest.", body, lambda: _ints(rng, 1)
    )


def average(rng: random.Random) -> Function:
    xs, r = _distinct(rng, LISTS, TOTALS)
    body = [f"if not {xs}:", "    return None", f"{r} = sum({xs})", f"return {r} // len({xs})"]
    return _build(
        rng, "average", _name(rng, "average"), xs, "Return the average, or None.", body, lambda: _ints(rng, 0, 4)
    )


def keys_of(rng: random.Random) -> Function:
    d, k, v, r = _distinct(rng, ("d", "table", "counts"), ("k", "key"), ("v", "value", "x"), TOTALS)
    cond, phrase, short = _predicate(rng, v)
    body = [f"{r} = []", f"for {k}, {v} in {d}.items():", f"    if {cond}:", f"        {r}.append({k})", f"return {r}"]
    draw = lambda: str({rng.choice("abcdefgh"): rng.randint(-4, 12) for _ in range(rng.randint(1, 4))})  # noqa: E731
    return _build(rng, "keys_of", _name(rng, "keys", short), d, f"List each {k} whose {v} is {phrase}.", body, draw)


def balance(rng: random.Random) -> Function:
    xs, x, r = _distinct(rng, LISTS, ELEMENTS, TOTALS)
    cond, phrase, short = _predicate(rng, x)
    body = [
        f"{r} = 0",
        f"for {x} in {xs}:",
        f"    if {cond}:",
        f"        {r} += {x}",
        "    else:",
        f"        {r} -= {x}",
    ]
    doc = f"Add each {x} that is {phrase}, subtract the rest."
    return _build(rng, "balance", _name(rng, "balance", short), xs, doc, [*body, f"return {r}"], lambda: _ints(rng, 1))


def where_best(rng: random.Random) -> Function:
    xs, i, best = _distinct(rng, LISTS, ("i", "j", "pos"), ("best", "top", "at"))
    op, word = rng.choice(((">", "largest"), ("<", "smallest")))
    body = [
        f"{best} = 0",
        f"for {i} in range(len({xs})):",
        f"    if {xs}[{i}] {op} {xs}[{best}]:",
        f"        {best} = {i}",
    ]
    doc = f"Return the index of the {word} item."
    return _build(
        rng, "where_best", _name(rng, "where", word), xs, doc, [*body, f"return {best}"], lambda: _ints(rng, 1)
    )


def cases_of(rng: random.Random) -> Function:
    (n,) = _distinct(rng, NUMBERS)
    (one, first, a), (two, second, _) = _predicate(rng, n), _predicate(rng, n)
    x, y, z = rng.sample(("0", "1", "-1", "2", n, f"{n} + 1", f"-{n}", '"a"', '"b"', "None"), 3)
    body = [f"if {one}:", f"    return {x}", f"elif {two}:", f"    return {y}", "else:", f"    return {z}"]
    doc = f"Give {x} if {n} is {first}, {y} if it is {second}, else {z}."
    return _build(rng, "cases_of", _name(rng, "cases", a), n, doc, body, lambda: str(rng.randint(-6, 14)))


def unique(rng: random.Random) -> Function:
    xs, x, r = _distinct(rng, LISTS, ELEMENTS, TOTALS)
    body = [f"{r} = []", f"for {x} in {xs}:", f"    if {x} not in {r}:", f"        {r}.append({x})", f"return {r}"]
    draw = lambda: _words(rng, 1) if rng.random() < 0.5 else _ints(rng, 1, 6, 0, 4)  # noqa: E731
    return _build(rng, "unique", _name(rng, "unique"), xs, f"Keep the first of each {x}.", body, draw)


def steps_between(rng: random.Random) -> Function:
    xs, i, r = _distinct(rng, LISTS, ("i", "j"), TOTALS)
    op, word = rng.choice((("-", "minus"), ("+", "plus"), ("*", "times")))
    body = [
        f"{r} = []",
        f"for {i} in range(1, len({xs})):",
        f"    {r}.append({xs}[{i}] {op} {xs}[{i} - 1])",
        f"return {r}",
    ]
    doc = f"List each item {word} the one before."
    return _build(rng, "steps_between", _name(rng, "steps", word), xs, doc, body, lambda: _ints(rng, 2))


def wrapped(rng: random.Random) -> Function:
    s, r = _distinct(rng, TEXTS, ("out", "res", "result"))
    left, right = rng.choice((("<", ">"), ("(", ")"), ("[", "]"), ("*", "*"), ("{", "}")))
    method, word = rng.choice((("upper", "upper case"), ("lower", "lower case"), ("strip", "stripped")))
    body = [f"{r} = {s}.{method}()", f'{r} = "{left}" + {r} + "{right}"', f"return {r}"]
    doc = f"Return {s} in {word} between {left} and {right}."
    return _build(rng, "wrapped", _name(rng, "wrap", method), s, doc, body, lambda: _text(rng))


def ranked(rng: random.Random) -> Function:
    xs, r = _distinct(rng, LISTS, TOTALS)
    k = rng.randint(1, 3)
    tail, phrase = rng.choice(((f"[:{k}]", f"first {k}"), (f"[-{k}:]", f"last {k}"), (f"[{k}:]", f"all after {k}")))
    how, word = rng.choice((("", "rising"), (", reverse=True", "falling")))
    body = [f"{r} = sorted({xs}{how})", f"return {r}{tail}"]
    return _build(
        rng, "ranked", _name(rng, "rank", word), xs, f"Sort {word}, keep {phrase}.", body, lambda: _ints(rng, 3, 6)
    )


def common(rng: random.Random) -> Function:
    xs, ys, x, r = _distinct(rng, LISTS, LISTS, ELEMENTS, TOTALS)
    word, phrase = rng.choice((("in", "also in"), ("not in", "not in")))
    body = [f"{r} = 0", f"for {x} in {xs}:", f"    if {x} {word} {ys}:", f"        {r} += 1", f"return {r}"]
    draw = lambda: f"{_ints(rng, 2, 4, 0, 5)}, {_ints(rng, 2, 4, 0, 5)}"  # noqa: E731
    return _build(
        rng, "common", _name(rng, "common"), f"{xs}, {ys}", f"Count each {x} that is {phrase} {ys}.", body, draw
    )


def lengths(rng: random.Random) -> Function:
    xs, w, d = _distinct(rng, LISTS, ("w", "word", "part"), ("d", "table", "sizes"))
    k = rng.randint(0, 3)
    body = [
        f"{d} = {{}}",
        f"for {w} in {xs}:",
        f"    if len({w}) > {k}:",
        f"        {d}[{w}] = len({w})",
        f"return {d}",
    ]
    return _build(
        rng,
        "lengths",
        _name(rng, "lengths"),
        xs,
        f"Map each {w} over {k} letters to its length.",
        body,
        lambda: _words(rng, 1),
    )


# held-out families: new compositions of the same words


def clamp(rng: random.Random) -> Function:
    n, low, high = _distinct(rng, ("n", "x", "v"), ("low", "a"), ("high", "b"))
    body = [f"if {n} < {low}:", f"    return {low}", f"if {n} > {high}:", f"    return {high}", f"return {n}"]
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(-2, 3)}, {rng.randint(4, 9)}"  # noqa: E731
    return _build(
        rng,
        "clamp",
        _name(rng, "clamp"),
        f"{n}, {low}, {high}",
        f"Keep {n} at least {low} and at most {high}.",
        body,
        draw,
    )


def running(rng: random.Random) -> Function:
    xs, x, s, r = _distinct(rng, LISTS, ELEMENTS, ("total", "s", "acc"), ("out", "result", "res"))
    body = [
        f"{s} = 0",
        f"{r} = []",
        f"for {x} in {xs}:",
        f"    {s} += {x}",
        f"    {r}.append({s})",
        f"return {r}",
    ]
    return _build(
        rng,
        "running",
        _name(rng, "running", "sum"),
        xs,
        f"List the sum up to each {x}.",
        body,
        lambda: _ints(rng, 1),
    )


def product(rng: random.Random) -> Function:
    xs, x, r = _distinct(rng, LISTS, ELEMENTS, TOTALS)
    cond, phrase, short = _predicate(rng, x)
    body = [f"{r} = 1", f"for {x} in {xs}:", f"    if {cond}:", f"        {r} *= {x}", f"return {r}"]
    return _build(
        rng,
        "product",
        _name(rng, "product", short),
        xs,
        f"Multiply each {x} that is {phrase}.",
        body,
        lambda: _ints(rng, 1),
    )


def pairs(rng: random.Random) -> Function:
    xs, ys, r = _distinct(rng, LISTS, LISTS, TOTALS)
    op, word = rng.choice((("+", "plus"), ("-", "minus"), ("*", "times")))
    body = [f"{r} = []", f"for a, b in zip({xs}, {ys}):", f"    {r}.append(a {op} b)", f"return {r}"]
    draw = lambda: f"{_ints(rng, 2, 4)}, {_ints(rng, 2, 4)}"  # noqa: E731
    return _build(rng, "pairs", _name(rng, "pairs", word), f"{xs}, {ys}", f"List each a {word} b.", body, draw)


def last_match(rng: random.Random) -> Function:
    xs, x, r = _distinct(rng, LISTS, ELEMENTS, ("found", "last", "res"))
    cond, phrase, short = _predicate(rng, x)
    body = [f"{r} = None", f"for {x} in {xs}:", f"    if {cond}:", f"        {r} = {x}", f"return {r}"]
    return _build(
        rng,
        "last_match",
        _name(rng, "last", short),
        xs,
        f"Return the last {x} that is {phrase}, or None.",
        body,
        lambda: _ints(rng),
    )


def difference(rng: random.Random) -> Function:
    xs, x = _distinct(rng, LISTS, ELEMENTS)
    cond, phrase, short = _predicate(rng, x)
    a, b = _distinct(rng, ("a", "p", "good"), ("b", "q", "bad"))
    body = [f"{a} = [{x} for {x} in {xs} if {cond}]", f"{b} = len({xs}) - len({a})", f"return len({a}) - {b}"]
    return _build(
        rng,
        "difference",
        _name(rng, "diff", short),
        xs,
        f"Count each {x} that is {phrase} minus the rest.",
        body,
        lambda: _ints(rng),
    )


def distance(rng: random.Random) -> Function:
    a, b, r = _distinct(rng, NUMBERS, NUMBERS, ("d", "dist", "res"))
    k = rng.randint(2, 9)
    body = [f"{r} = abs({a} - {b})", f"if {r} > {k}:", f"    return {k}", f"return {r}"]
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(-5, 12)}"  # noqa: E731
    return _build(
        rng,
        "distance",
        _name(rng, "distance"),
        f"{a}, {b}",
        f"Return {a} minus {b} without sign, at most {k}.",
        body,
        draw,
    )


def initials(rng: random.Random) -> Function:
    xs, w, r = _distinct(rng, LISTS, ("w", "word"), ("out", "res", "result"))
    pos, word = rng.choice(((0, "first"), (-1, "last")))
    method = rng.choice(("upper", "lower"))
    body = [f'{r} = ""', f"for {w} in {xs}:", f"    {r} += {w}[{pos}].{method}()", f"return {r}"]
    return _build(
        rng,
        "initials",
        _name(rng, "letters", word),
        xs,
        f"Join the {word} letter of each {w} in {method}.",
        body,
        lambda: _words(rng, 1),
    )


Family = Callable[[random.Random], Function]
TRAIN: tuple[Family, ...] = (
    arithmetic, fold, count, mapping, select, comprehension, branch, series, extreme, text_case, letters, tally, lookup,
    quantify, ends, joined, steps, multiply_range, first_match, both, spread, average, keys_of, balance, where_best,
    cases_of, unique, steps_between, wrapped, ranked, common, lengths,
)  # fmt: skip
HELD_OUT: tuple[Family, ...] = (clamp, running, product, pairs, last_match, difference, distance, initials)
