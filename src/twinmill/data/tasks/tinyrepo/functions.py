"""Small Python functions by the thousand: each family is a pure function of a random generator.

A family writes the source of one function with a docstring that says what it does, and draws arguments for it. The
vocabulary (names, phrases, predicates, transforms) is shared by all families; the split into training and held-out
families is by what the function does, so that held-out functions are new compositions of known words.
No function loops on a condition: whatever a fault does to it, it ends.
"""

import random

from . import composed
from .words import (
    ELEMENTS,
    LISTS,
    NUMBERS,
    TEXTS,
    TOTALS,
    Family,
    Function,
    build,
    distinct,
    ints,
    name_of,
    predicate,
    text,
    transform,
    words,
)  # fmt: skip


def arithmetic(rng: random.Random) -> Function:
    a, b, r = distinct(rng, NUMBERS, NUMBERS, TOTALS)
    op, word = rng.choice((("+", "plus"), ("-", "minus"), ("*", "times")))
    f, phrase, short = transform(rng, r)
    body = [f"{r} = {a} {op} {b}", f"return {f}"] if short else [f"return {a} {op} {b}"]
    doc = f"Return {a} {word} {b}" + (f", then {phrase}." if short else ".")
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(1, 9)}"  # noqa: E731
    return build(rng, "arithmetic", name_of(rng, word, short), f"{a}, {b}", doc, body, draw)


def fold(rng: random.Random) -> Function:
    xs, x, r = distinct(rng, LISTS, ELEMENTS, TOTALS)
    cond, phrase, short = predicate(rng, x)
    f, word, fshort = transform(rng, x)
    body = [f"{r} = 0", f"for {x} in {xs}:", f"    if {cond}:", f"        {r} += {f}", f"return {r}"]
    doc = f"Sum each {x} {word} that is {phrase}." if fshort else f"Sum each {x} that is {phrase}."
    return build(rng, "fold", name_of(rng, "sum", short, fshort), xs, doc, body, lambda: ints(rng))


def count(rng: random.Random) -> Function:
    xs, x, r = distinct(rng, LISTS, ELEMENTS, ("count", "hits", "total", "num"))
    cond, phrase, short = predicate(rng, x)
    body = [f"{r} = 0", f"for {x} in {xs}:", f"    if {cond}:", f"        {r} += 1", f"return {r}"]
    return build(
        rng,
        "count",
        name_of(rng, "count", short),
        xs,
        f"Count each {x} that is {phrase}.",
        body,
        lambda: ints(rng),
    )


def mapping(rng: random.Random) -> Function:
    xs, x, r = distinct(rng, LISTS, ELEMENTS, TOTALS)
    f, word, short = transform(rng, x)
    body = [f"{r} = []", f"for {x} in {xs}:", f"    {r}.append({f})", f"return {r}"]
    return build(
        rng,
        "mapping",
        name_of(rng, "map", short or "same"),
        xs,
        f"List each {x} {word}.",
        body,
        lambda: ints(rng, 1),
    )


def select(rng: random.Random) -> Function:
    xs, x, r = distinct(rng, LISTS, ELEMENTS, TOTALS)
    cond, phrase, short = predicate(rng, x)
    body = [f"{r} = []", f"for {x} in {xs}:", f"    if {cond}:", f"        {r}.append({x})", f"return {r}"]
    return build(
        rng,
        "select",
        name_of(rng, "keep", short),
        xs,
        f"Keep each {x} that is {phrase}.",
        body,
        lambda: ints(rng, 1),
    )


def comprehension(rng: random.Random) -> Function:
    xs, x = distinct(rng, LISTS, ELEMENTS)
    cond, phrase, short = predicate(rng, x)
    f, word, fshort = transform(rng, x)
    doc = f"List each {x} {word} if it is {phrase}."
    return build(
        rng,
        "comprehension",
        name_of(rng, "list", short, fshort),
        xs,
        doc,
        [f"return [{f} for {x} in {xs} if {cond}]"],
        lambda: ints(rng, 1),
    )


def branch(rng: random.Random) -> Function:
    (n,) = distinct(rng, NUMBERS)
    cond, phrase, short = predicate(rng, n)
    f, word, _ = transform(rng, n)
    g, other, _ = transform(rng, n)
    body = [f"if {cond}:", f"    return {f}", f"return {g}"]
    doc = f"Give {n} {word} if {phrase}, else {n} {other}."
    return build(rng, "branch", name_of(rng, "if", short), n, doc, body, lambda: str(rng.randint(-6, 14)))


def series(rng: random.Random) -> Function:
    n, i, r = distinct(rng, ("n", "m", "k", "size"), ("i", "j"), TOTALS)
    f, word, short = transform(rng, i)
    start = rng.choice((0, 1))
    bounds, phrase = (n, f"below {n}") if start == 0 else (f"1, {n} + 1", f"from 1 to {n}")
    body = [f"{r} = 0", f"for {i} in range({bounds}):", f"    {r} += {f}", f"return {r}"]
    doc = f"Sum each {i} {word} {phrase}." if short else f"Sum each {i} {phrase}."
    return build(rng, "series", name_of(rng, "series", short), n, doc, body, lambda: str(rng.randint(0, 9)))


def extreme(rng: random.Random) -> Function:
    xs, x, best = distinct(rng, LISTS, ELEMENTS, ("best", "top", "low", "high"))
    op, word = rng.choice(((">", "largest"), ("<", "smallest")))
    body = [f"{best} = {xs}[0]", f"for {x} in {xs}:", f"    if {x} {op} {best}:", f"        {best} = {x}"]
    body.append(f"return {best}")
    return build(rng, "extreme", name_of(rng, word), xs, f"Return the {word} {x}.", body, lambda: ints(rng, 1))


def text_case(rng: random.Random) -> Function:
    (s,) = distinct(rng, TEXTS)
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
    return build(
        rng,
        "text_case",
        name_of(rng, method, short),
        s,
        f"Return {s} in {word}{phrase}.",
        body,
        lambda: text(rng),
    )


def letters(rng: random.Random) -> Function:
    s, c, r = distinct(rng, TEXTS, ("c", "ch"), ("count", "total", "hits"))
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
    return build(
        rng,
        "letters",
        name_of(rng, "count", short),
        s,
        f"Count each {c} that is {phrase}.",
        body,
        lambda: text(rng),
    )


def tally(rng: random.Random) -> Function:
    xs, x, d = distinct(rng, LISTS, ELEMENTS, ("d", "table", "counts", "seen"))
    body = [f"{d} = {{}}", f"for {x} in {xs}:", f"    {d}[{x}] = {d}.get({x}, 0) + 1", f"return {d}"]
    draw = lambda: words(rng, 1) if rng.random() < 0.5 else ints(rng, 1, 5, 0, 3)  # noqa: E731
    return build(
        rng,
        "tally",
        name_of(rng, "tally", rng.choice(LISTS)),
        xs,
        f"Count how often each {x} occurs.",
        body,
        draw,
    )


def lookup(rng: random.Random) -> Function:
    xs, x, i = distinct(rng, LISTS, ELEMENTS, ("i", "j", "pos"))
    cond, phrase, short = predicate(rng, x)
    body = [f"for {i}, {x} in enumerate({xs}):", f"    if {cond}:", f"        return {i}", "return -1"]
    doc = f"Index of the first {x} that is {phrase}, or -1."
    return build(rng, "lookup", name_of(rng, "index", short), xs, doc, body, lambda: ints(rng))


def quantify(rng: random.Random) -> Function:
    xs, x = distinct(rng, LISTS, ELEMENTS)
    cond, phrase, short = predicate(rng, x)
    word = rng.choice(("all", "any"))
    return build(
        rng,
        "quantify",
        name_of(rng, word, short),
        xs,
        f"True if {word} {x} is {phrase}.",
        [f"return {word}({cond} for {x} in {xs})"],
        lambda: ints(rng),
    )


def ends(rng: random.Random) -> Function:
    (xs,) = distinct(rng, LISTS)
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
    return build(rng, "ends", name_of(rng, short), xs, f"Return the {phrase}, or None.", body, lambda: ints(rng, 0, 5))


def joined(rng: random.Random) -> Function:
    xs, w, r = distinct(rng, LISTS, ("w", "word", "part"), ("out", "result", "res"))
    sep, word = rng.choice((("-", "dash"), (",", "comma"), (" ", "space"), ("_", "line")))
    method = rng.choice(("upper", "lower", "title"))
    body = [f"{r} = []", f"for {w} in {xs}:", f"    {r}.append({w}.{method}())", f'return "{sep}".join({r})']
    return build(
        rng,
        "joined",
        name_of(rng, "join", word),
        xs,
        f"Join each {w} in {method} with a {word}.",
        body,
        lambda: words(rng, 1),
    )


def steps(rng: random.Random) -> Function:
    a, b, r = distinct(rng, NUMBERS, NUMBERS, TOTALS)
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
    return build(
        rng, "steps", name_of(rng, *names[:2]), f"{a}, {b}", f"Take {a}, then {', then '.join(phrases)}.", body, draw
    )


def multiply_range(rng: random.Random) -> Function:
    n, i, r = distinct(rng, ("n", "m", "k", "size"), ("i", "j"), TOTALS)
    body = [f"{r} = 1", f"for {i} in range(1, {n} + 1):", f"    {r} *= {i}", f"return {r}"]
    draw = lambda: str(rng.randint(0, 12))  # noqa: E731
    return build(rng, "multiply_range", name_of(rng, "multiply"), n, f"Multiply each {i} from 1 to {n}.", body, draw)


def first_match(rng: random.Random) -> Function:
    xs, x = distinct(rng, LISTS, ELEMENTS)
    cond, phrase, short = predicate(rng, x)
    body = [f"for {x} in {xs}:", f"    if {cond}:", f"        return {x}", "return None"]
    doc = f"Return the first {x} that is {phrase}, or None."
    return build(rng, "first_match", name_of(rng, "first", short), xs, doc, body, lambda: ints(rng))


def both(rng: random.Random) -> Function:
    (n,) = distinct(rng, NUMBERS)
    (one, first, a), (two, second, b) = predicate(rng, n), predicate(rng, n)
    word = rng.choice(("and", "or"))
    draw = lambda: str(rng.randint(-6, 14))  # noqa: E731
    return build(
        rng,
        "both",
        name_of(rng, a, word, b),
        n,
        f"True if {n} is {first} {word} {second}.",
        [f"return {one} {word} {two}"],
        draw,
    )


def spread(rng: random.Random) -> Function:
    xs, high, low = distinct(rng, LISTS, ("high", "top", "a"), ("low", "bottom", "b"))
    body = [f"{high} = max({xs})", f"{low} = min({xs})", f"return {high} - {low}"]
    return build(
        rng, "spread", name_of(rng, "spread"), xs, "Return the largest minus the smallest.", body, lambda: ints(rng, 1)
    )


def average(rng: random.Random) -> Function:
    xs, r = distinct(rng, LISTS, TOTALS)
    body = [f"if not {xs}:", "    return None", f"{r} = sum({xs})", f"return {r} // len({xs})"]
    return build(
        rng, "average", name_of(rng, "average"), xs, "Return the average, or None.", body, lambda: ints(rng, 0, 4)
    )


def keys_of(rng: random.Random) -> Function:
    d, k, v, r = distinct(rng, ("d", "table", "counts"), ("k", "key"), ("v", "value", "x"), TOTALS)
    cond, phrase, short = predicate(rng, v)
    body = [f"{r} = []", f"for {k}, {v} in {d}.items():", f"    if {cond}:", f"        {r}.append({k})", f"return {r}"]
    draw = lambda: str({rng.choice("abcdefgh"): rng.randint(-4, 12) for _ in range(rng.randint(1, 4))})  # noqa: E731
    return build(rng, "keys_of", name_of(rng, "keys", short), d, f"List each {k} whose {v} is {phrase}.", body, draw)


def balance(rng: random.Random) -> Function:
    xs, x, r = distinct(rng, LISTS, ELEMENTS, TOTALS)
    cond, phrase, short = predicate(rng, x)
    body = [
        f"{r} = 0",
        f"for {x} in {xs}:",
        f"    if {cond}:",
        f"        {r} += {x}",
        "    else:",
        f"        {r} -= {x}",
    ]
    doc = f"Add each {x} that is {phrase}, subtract the rest."
    return build(rng, "balance", name_of(rng, "balance", short), xs, doc, [*body, f"return {r}"], lambda: ints(rng, 1))


def where_best(rng: random.Random) -> Function:
    xs, i, best = distinct(rng, LISTS, ("i", "j", "pos"), ("best", "top", "at"))
    op, word = rng.choice(((">", "largest"), ("<", "smallest")))
    body = [
        f"{best} = 0",
        f"for {i} in range(len({xs})):",
        f"    if {xs}[{i}] {op} {xs}[{best}]:",
        f"        {best} = {i}",
    ]
    doc = f"Return the index of the {word} item."
    return build(
        rng, "where_best", name_of(rng, "where", word), xs, doc, [*body, f"return {best}"], lambda: ints(rng, 1)
    )


def cases_of(rng: random.Random) -> Function:
    (n,) = distinct(rng, NUMBERS)
    (one, first, a), (two, second, _) = predicate(rng, n), predicate(rng, n)
    x, y, z = rng.sample(("0", "1", "-1", "2", n, f"{n} + 1", f"-{n}", '"a"', '"b"', "None"), 3)
    body = [f"if {one}:", f"    return {x}", f"elif {two}:", f"    return {y}", "else:", f"    return {z}"]
    doc = f"Give {x} if {n} is {first}, {y} if it is {second}, else {z}."
    return build(rng, "cases_of", name_of(rng, "cases", a), n, doc, body, lambda: str(rng.randint(-6, 14)))


def unique(rng: random.Random) -> Function:
    xs, x, r = distinct(rng, LISTS, ELEMENTS, TOTALS)
    body = [f"{r} = []", f"for {x} in {xs}:", f"    if {x} not in {r}:", f"        {r}.append({x})", f"return {r}"]
    draw = lambda: words(rng, 1) if rng.random() < 0.5 else ints(rng, 1, 6, 0, 4)  # noqa: E731
    return build(rng, "unique", name_of(rng, "unique"), xs, f"Keep the first of each {x}.", body, draw)


def steps_between(rng: random.Random) -> Function:
    xs, i, r = distinct(rng, LISTS, ("i", "j"), TOTALS)
    op, word = rng.choice((("-", "minus"), ("+", "plus"), ("*", "times")))
    body = [
        f"{r} = []",
        f"for {i} in range(1, len({xs})):",
        f"    {r}.append({xs}[{i}] {op} {xs}[{i} - 1])",
        f"return {r}",
    ]
    doc = f"List each item {word} the one before."
    return build(rng, "steps_between", name_of(rng, "steps", word), xs, doc, body, lambda: ints(rng, 2))


def wrapped(rng: random.Random) -> Function:
    s, r = distinct(rng, TEXTS, ("out", "res", "result"))
    left, right = rng.choice((("<", ">"), ("(", ")"), ("[", "]"), ("*", "*"), ("{", "}")))
    method, word = rng.choice((("upper", "upper case"), ("lower", "lower case"), ("strip", "stripped")))
    body = [f"{r} = {s}.{method}()", f'{r} = "{left}" + {r} + "{right}"', f"return {r}"]
    doc = f"Return {s} in {word} between {left} and {right}."
    return build(rng, "wrapped", name_of(rng, "wrap", method), s, doc, body, lambda: text(rng))


def ranked(rng: random.Random) -> Function:
    xs, r = distinct(rng, LISTS, TOTALS)
    k = rng.randint(1, 3)
    tail, phrase = rng.choice(((f"[:{k}]", f"first {k}"), (f"[-{k}:]", f"last {k}"), (f"[{k}:]", f"all after {k}")))
    how, word = rng.choice((("", "rising"), (", reverse=True", "falling")))
    body = [f"{r} = sorted({xs}{how})", f"return {r}{tail}"]
    return build(
        rng, "ranked", name_of(rng, "rank", word), xs, f"Sort {word}, keep {phrase}.", body, lambda: ints(rng, 3, 6)
    )


def common(rng: random.Random) -> Function:
    xs, ys, x, r = distinct(rng, LISTS, LISTS, ELEMENTS, TOTALS)
    word, phrase = rng.choice((("in", "also in"), ("not in", "not in")))
    body = [f"{r} = 0", f"for {x} in {xs}:", f"    if {x} {word} {ys}:", f"        {r} += 1", f"return {r}"]
    draw = lambda: f"{ints(rng, 2, 4, 0, 5)}, {ints(rng, 2, 4, 0, 5)}"  # noqa: E731
    return build(
        rng, "common", name_of(rng, "common"), f"{xs}, {ys}", f"Count each {x} that is {phrase} {ys}.", body, draw
    )


def lengths(rng: random.Random) -> Function:
    xs, w, d = distinct(rng, LISTS, ("w", "word", "part"), ("d", "table", "sizes"))
    k = rng.randint(0, 3)
    body = [
        f"{d} = {{}}",
        f"for {w} in {xs}:",
        f"    if len({w}) > {k}:",
        f"        {d}[{w}] = len({w})",
        f"return {d}",
    ]
    return build(
        rng,
        "lengths",
        name_of(rng, "lengths"),
        xs,
        f"Map each {w} over {k} letters to its length.",
        body,
        lambda: words(rng, 1),
    )


# held-out families: new compositions of the same words


def clamp(rng: random.Random) -> Function:
    n, low, high = distinct(rng, ("n", "x", "v"), ("low", "a"), ("high", "b"))
    body = [f"if {n} < {low}:", f"    return {low}", f"if {n} > {high}:", f"    return {high}", f"return {n}"]
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(-2, 3)}, {rng.randint(4, 9)}"  # noqa: E731
    return build(
        rng,
        "clamp",
        name_of(rng, "clamp"),
        f"{n}, {low}, {high}",
        f"Keep {n} at least {low} and at most {high}.",
        body,
        draw,
    )


def running(rng: random.Random) -> Function:
    xs, x, s, r = distinct(rng, LISTS, ELEMENTS, ("total", "s", "acc"), ("out", "result", "res"))
    body = [
        f"{s} = 0",
        f"{r} = []",
        f"for {x} in {xs}:",
        f"    {s} += {x}",
        f"    {r}.append({s})",
        f"return {r}",
    ]
    return build(
        rng,
        "running",
        name_of(rng, "running", "sum"),
        xs,
        f"List the sum up to each {x}.",
        body,
        lambda: ints(rng, 1),
    )


def product(rng: random.Random) -> Function:
    xs, x, r = distinct(rng, LISTS, ELEMENTS, TOTALS)
    cond, phrase, short = predicate(rng, x)
    body = [f"{r} = 1", f"for {x} in {xs}:", f"    if {cond}:", f"        {r} *= {x}", f"return {r}"]
    return build(
        rng,
        "product",
        name_of(rng, "product", short),
        xs,
        f"Multiply each {x} that is {phrase}.",
        body,
        lambda: ints(rng, 1),
    )


def pairs(rng: random.Random) -> Function:
    xs, ys, r = distinct(rng, LISTS, LISTS, TOTALS)
    op, word = rng.choice((("+", "plus"), ("-", "minus"), ("*", "times")))
    body = [f"{r} = []", f"for a, b in zip({xs}, {ys}):", f"    {r}.append(a {op} b)", f"return {r}"]
    draw = lambda: f"{ints(rng, 2, 4)}, {ints(rng, 2, 4)}"  # noqa: E731
    return build(rng, "pairs", name_of(rng, "pairs", word), f"{xs}, {ys}", f"List each a {word} b.", body, draw)


def last_match(rng: random.Random) -> Function:
    xs, x, r = distinct(rng, LISTS, ELEMENTS, ("found", "last", "res"))
    cond, phrase, short = predicate(rng, x)
    body = [f"{r} = None", f"for {x} in {xs}:", f"    if {cond}:", f"        {r} = {x}", f"return {r}"]
    return build(
        rng,
        "last_match",
        name_of(rng, "last", short),
        xs,
        f"Return the last {x} that is {phrase}, or None.",
        body,
        lambda: ints(rng),
    )


def difference(rng: random.Random) -> Function:
    xs, x = distinct(rng, LISTS, ELEMENTS)
    cond, phrase, short = predicate(rng, x)
    a, b = distinct(rng, ("a", "p", "good"), ("b", "q", "bad"))
    body = [f"{a} = [{x} for {x} in {xs} if {cond}]", f"{b} = len({xs}) - len({a})", f"return len({a}) - {b}"]
    return build(
        rng,
        "difference",
        name_of(rng, "diff", short),
        xs,
        f"Count each {x} that is {phrase} minus the rest.",
        body,
        lambda: ints(rng),
    )


def distance(rng: random.Random) -> Function:
    a, b, r = distinct(rng, NUMBERS, NUMBERS, ("d", "dist", "res"))
    k = rng.randint(2, 9)
    body = [f"{r} = abs({a} - {b})", f"if {r} > {k}:", f"    return {k}", f"return {r}"]
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(-5, 12)}"  # noqa: E731
    return build(
        rng,
        "distance",
        name_of(rng, "distance"),
        f"{a}, {b}",
        f"Return {a} minus {b} without sign, at most {k}.",
        body,
        draw,
    )


def initials(rng: random.Random) -> Function:
    xs, w, r = distinct(rng, LISTS, ("w", "word"), ("out", "res", "result"))
    pos, word = rng.choice(((0, "first"), (-1, "last")))
    method = rng.choice(("upper", "lower"))
    body = [f'{r} = ""', f"for {w} in {xs}:", f"    {r} += {w}[{pos}].{method}()", f"return {r}"]
    return build(
        rng,
        "initials",
        name_of(rng, "letters", word),
        xs,
        f"Join the {word} letter of each {w} in {method}.",
        body,
        lambda: words(rng, 1),
    )


TRAIN: tuple[Family, ...] = (
    arithmetic, fold, count, mapping, select, comprehension, branch, series, extreme, text_case, letters, tally, lookup,
    quantify, ends, joined, steps, multiply_range, first_match, both, spread, average, keys_of, balance, where_best,
    cases_of, unique, steps_between, wrapped, ranked, common, lengths, *(3 * composed.FAMILIES),
)  # fmt: skip
"""drawn evenly; the composed ones three times, since they vary most"""
HELD_OUT: tuple[Family, ...] = (clamp, running, product, pairs, last_match, difference, distance, initials)
