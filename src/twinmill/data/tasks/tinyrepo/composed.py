"""Function families made of parts: what is walked over, what is kept, what is done with it, how it ends.

Where `functions` writes each kind of function by hand, these draw their parts, so that a model cannot get far by
knowing the kinds and has to read the docstring. The family of such a function is named by its parts. Held-out functions
are new compositions of words that occur here in other ones: their words have neighbours below, they themselves have none.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from .words import (
    ELEMENTS,
    LISTS,
    NUMBERS,
    TEXTS,
    TOTALS,
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

DICTS = ("d", "table", "counts", "sizes", "prices", "marks")
LETTERS = "aeost"


def _dict(rng: random.Random) -> str:
    return str({rng.choice("abcdefgh"): rng.randint(-4, 12) for _ in range(rng.randint(1, 4))})


def _sentence(rng: random.Random) -> str:
    return repr(
        " ".join(rng.choice(("cat", "Sun", "tea", "at", "a", "Bob", "x1", "noon")) for _ in range(rng.randint(0, 4)))
    )


@dataclass(frozen=True, kw_only=True)
class Walk:
    """What a loop goes over."""

    name: str
    params: str
    head: str
    phrase: str
    element: str
    holds: str
    """int | word | char"""
    draw: Callable[[], str]


def _walk(rng: random.Random) -> Walk:
    xs, ys, x, n, m = distinct(rng, LISTS, LISTS, ELEMENTS, NUMBERS, NUMBERS)
    d, s, w, c, i = distinct(rng, DICTS, TEXTS, ("w", "word", "part"), ("c", "ch"), ("i", "j"))
    one, two = (lambda: ints(rng)), (lambda: f"{ints(rng, 0, 4)}, {ints(rng, 0, 4)}")
    whole, between = (lambda: str(rng.randint(0, 9))), (lambda: f"{rng.randint(-3, 4)}, {rng.randint(3, 9)}")
    some = (
        ("list", xs, xs, f"each {x}", x, "int", one),
        ("list", xs, xs, f"each {x} of {xs}", x, "int", one),
        ("back", xs, f"{xs}[::-1]", f"each {x} from the end", x, "int", one),
        ("rest", xs, f"{xs}[1:]", f"each {x} but the first", x, "int", one),
        ("most", xs, f"{xs}[:-1]", f"each {x} but the last", x, "int", one),
        ("second", xs, f"{xs}[::2]", f"every second {x}", x, "int", one),
        ("sorted", xs, f"sorted({xs})", f"each {x}, smallest first,", x, "int", one),
        ("once", xs, f"sorted(set({xs}))", f"each different {x}", x, "int", one),
        ("below", n, f"range({n})", f"each {i} below {n}", i, "int", whole),
        ("upto", n, f"range(1, {n} + 1)", f"each {i} from 1 to {n}", i, "int", whole),
        ("between", f"{n}, {m}", f"range({n}, {m})", f"each {i} from {n} to below {m}", i, "int", between),
        ("chain", f"{xs}, {ys}", f"{xs} + {ys}", f"each {x} of {xs} and {ys}", x, "int", two),
        ("values", d, f"{d}.values()", f"each {x} of {d}", x, "int", lambda: _dict(rng)),
        ("words", xs, xs, f"each {w}", w, "word", lambda: words(rng)),
        ("words", xs, xs, f"each {w} of {xs}", w, "word", lambda: words(rng)),
        ("keys", d, d, f"each {w} of {d}", w, "word", lambda: _dict(rng)),
        ("split", s, f"{s}.split()", f"each {w} of {s}", w, "word", lambda: _sentence(rng)),
        ("chars", s, s, f"each {c}", c, "char", lambda: text(rng)),
        ("chars", s, s, f"each {c} of {s}", c, "char", lambda: text(rng)),
        ("tail", s, f"{s}[1:]", f"each {c} but the first", c, "char", lambda: text(rng)),
    )  # fmt: skip
    name, params, over, phrase, element, holds, draw = rng.choice(some)
    return Walk(
        name=name,
        params=params,
        head=f"for {element} in {over}:",
        phrase=phrase,
        element=element,
        holds=holds,
        draw=draw,
    )


def _test(rng: random.Random, x: str, holds: str) -> tuple[str, str, str]:
    """(code, phrase after "that is", short word) of a test on an element."""
    if holds == "int":
        return predicate(rng, x)
    k, c = rng.randint(1, 4), rng.choice(LETTERS)
    if holds == "word":
        return rng.choice(
            (
                (f"len({x}) > {k}", f"longer than {k}", "long"),
                (f"len({x}) < {k}", f"shorter than {k}", "short"),
                (f"len({x}) == {k}", f"of length {k}", "len"),
                (f'"{c}" in {x}', f"with {c}", "with"),
                (f'"{c}" not in {x}', f"without {c}", "without"),
                (f"{x}.islower()", "lower case", "lower"),
                (f"{x}.isalpha()", "letters only", "alpha"),
                (f'{x}.startswith("{c}")', f"starting with {c}", "starts"),
                (f'{x}.endswith("{c}")', f"ending with {c}", "ends"),
                (f'{x} == "cat"', "cat", "cat"),
            )
        )
    return rng.choice(
        (
            (f"{x}.isdigit()", "a digit", "digit"),
            (f"{x}.isalpha()", "a letter", "letter"),
            (f"{x}.isupper()", "upper case", "upper"),
            (f"{x}.islower()", "lower case", "lower"),
            (f'{x} == "{c}"', f"equal to {c}", "is"),
            (f'{x} != "{c}"', f"not {c}", "no"),
            (f'{x} in "aeiou"', "a vowel", "vowel"),
            (f'{x} not in "aeiou"', "no vowel", "other"),
            (f'{x} != " "', "no space", "solid"),
        )
    )


def _value(rng: random.Random, x: str, holds: str) -> tuple[str, str, str]:
    """(code, phrase, short word) of what is made of an element."""
    if holds == "int":
        return transform(rng, x)
    c = rng.choice(LETTERS)
    options = (
        (x, "itself", ""),
        (f"{x}.upper()", "in upper case", "upper"),
        (f"{x}.lower()", "in lower case", "lower"),
        (f"{x} * 2", "twice", "twice"),
        (f'{x} + "-"', "with - after it", "dash"),
        (f'"{c}" + {x}', f"with {c} before it", "after"),
    )
    words_only = ((f"{x}.title()", "in title case", "title"), (f"{x}[::-1]", "reversed", "rev"))
    return rng.choice(options + words_only if holds == "word" else options)


def _number(rng: random.Random, x: str, holds: str) -> tuple[str, str, str]:
    """(code, phrase, short word) of a number made of an element."""
    if holds == "int":
        return transform(rng, x)
    c = rng.choice(LETTERS)
    if holds == "word":
        return rng.choice(((f"len({x})", "by length", "len"), (f'{x}.count("{c}")', f"by number of {c}", "count")))
    return f'"abcdefgh".find({x})', "by place in abcdefgh", "place"


def _finish(rng: random.Random, r: str, kind: str) -> tuple[str, str]:
    """(code, phrase) of what is returned in the end."""
    k = rng.randint(2, 9)
    if rng.random() < 0.6:
        return r, ""
    return rng.choice(
        {
            "int": ((f"{r} + {k}", f", plus {k}"), (f"{r} * {k}", f", times {k}"), (f"{r} % {k}", f", modulo {k}"),
                    (f"-{r}", ", negated"), (f"abs({r})", ", without sign"), (f"{r} // {k}", f", divided by {k}")),
            "list": ((f"{r}[::-1]", ", reversed"), (f"len({r})", ", and give the length"), (f"sorted({r})", ", sorted"),
                     (f"{r}[0:2]", ", first 2 only"), (f"{r}[1:]", ", without the first"), (f"{r} + {r}", ", twice over")),
            "text": ((f"{r}[::-1]", ", reversed"), (f"len({r})", ", and give the length"), (f"{r}.upper()", ", in upper case"),
                     (f'{r} + "!"', ', with "!"'), (f"{r}[0:2]", ", first 2 only")),
            "dict": ((f"len({r})", ", and give the length"), (f"sorted({r})", ", and give the sorted keys")),
        }[kind]
    )  # fmt: skip


def _update(rng: random.Random, r: str, x: str, holds: str) -> tuple[str, str, str, str, str]:
    """(kind of result, what it starts as, code, verb, words after the element)."""
    code, phrase, short = _value(rng, x, holds)
    number, by, _ = _number(rng, x, holds)
    after = phrase if short else ""
    start = rng.choice((0, 0, 0, 1, 10))
    from_ = f", from {start}," if start else ""
    options = [
        ("int", str(start), f"{r} += {number}", f"Sum{from_}", by if number != x else ""),
        ("int", "0", f"{r} += 1", "Count", ""),
        ("list", "[]", f"{r}.append({code})", "List", after),
        ("list", "[]", f"{r}.insert(0, {code})", "List in reverse", after),
        ("int", "0", f"{r} = max({r}, {number})", "Give 0 or the largest of", by if number != x else ""),
        ("int", str(start), f"{r} -= {number}", f"Subtract{from_}", by if number != x else ""),
    ]
    if holds == "int":
        k = rng.randint(2, 9)
        options += [
            ("text", '""', f"{r} += str({code})", "Write", after),
            ("dict", "{}", f"{r}[{x}] = {code}", "Map", f"to {phrase}"),
            ("int", "0", f"{r} = {r} * {k} + {x}", f"Take times {k} and add", ""),
            ("int", "0", f"{r} = {code} - {r}", "Take what is so far from", after),
        ]
    else:
        options += [
            ("text", '""', f"{r} += {code}", "Join", after),
            ("text", '""', f"{r} = {code} + {r}", "Join backwards", after),
            ("dict", "{}", f"{r}[{x}] = {r}.get({x}, 0) + 1", "Tally", ""),
            ("dict", "{}", f"{r}[{x}] = {code}", "Map", f"to {phrase}"),
        ]
    return rng.choice(options)


_VERB_NAMES = {
    "Sum": "sum", "Count": "count", "List": "list", "Give": "largest", "Subtract": "take", "Write": "write", "Map": "map",
    "Take": "shift", "Join": "join", "Tally": "tally",
}  # fmt: skip


def loop(rng: random.Random) -> Function:
    """A loop with or without a guard, one update, one way to finish."""
    walk = _walk(rng)
    (r,) = distinct(rng, TOTALS)
    while r in walk.params or r == walk.element:
        (r,) = distinct(rng, TOTALS)
    x = walk.element
    kind, start, update, verb, after = _update(rng, r, x, walk.holds)
    test, phrase, short = _test(rng, x, walk.holds)
    other, second, _ = _test(rng, x, walk.holds)
    limit = rng.choice([name for name in ("limit", "k", "top", "bound") if name not in (r, x)])
    params, draw = walk.params, walk.draw
    guard = rng.choice(("none", "if", "if", "and", "or", "skip", "param" if walk.holds == "int" else "if", "stop"))
    if guard == "none":
        inner, which, short = [f"    {update}"], "", ""
    elif guard == "skip":
        inner, which = [f"    if {test}:", "        continue", f"    {update}"], f" that is not {phrase}"
    elif guard == "stop":
        inner, which = [f"    if {test}:", "        break", f"    {update}"], f" until one is {phrase}"
    elif guard in ("and", "or"):
        inner, which = [f"    if {test} {guard} {other}:", f"        {update}"], f" that is {phrase} {guard} {second}"
    elif guard == "param":
        sign, word = rng.choice(((">", "above"), ("<", "below"), (">=", "at least"), ("<=", "at most"), ("!=", "not")))
        inner, which, short = [f"    if {x} {sign} {limit}:", f"        {update}"], f" that is {word} {limit}", word[:5]
        params, draw = f"{params}, {limit}", lambda: f"{walk.draw()}, {rng.randint(0, 6)}"
    else:
        inner, which = [f"    if {test}:", f"        {update}"], f" that is {phrase}"
    done, tail = _finish(rng, r, kind)
    body = [f"{r} = {start}", walk.head, *inner, f"return {done}"]
    doc = f"{verb} {walk.phrase}{' ' + after if after else ''}{which}{tail}."
    named = name_of(rng, _VERB_NAMES[verb.split()[0].strip(",")], short.strip().replace(" ", "_"))
    return build(rng, f"loop_{walk.name}_{kind}_{guard}", named, params, doc, body, draw)


def either(rng: random.Random) -> Function:
    """A loop that does one of two things with each element."""
    walk = _walk(rng)
    (r,) = distinct(rng, TOTALS)
    while r in walk.params or r == walk.element:
        (r,) = distinct(rng, TOTALS)
    test, phrase, short = _test(rng, walk.element, walk.holds)
    (f, first, _), (g, second, _) = (_value(rng, walk.element, walk.holds) for _ in range(2))
    start, add = rng.choice(
        (("[]", "{r}.append({f})"), ("0", "{r} += {f}") if walk.holds == "int" else ('""', "{r} += {f}"))
    )
    body = [
        f"{r} = {start}", walk.head, f"    if {test}:", f"        {add.format(r=r, f=f)}", "    else:",
        f"        {add.format(r=r, f=g)}", f"return {r}",
    ]  # fmt: skip
    verb = {"[]": "List", "0": "Sum", '""': "Join"}[start]
    doc = f"{verb} {walk.phrase} {first} if {phrase}, else {second}."
    return build(rng, f"either_{walk.name}_{verb}", name_of(rng, "either", short), walk.params, doc, body, walk.draw)


def expression(rng: random.Random) -> Function:
    """One expression over a list."""
    xs, x = distinct(rng, LISTS, ELEMENTS)
    test, phrase, short = predicate(rng, x)
    f, word, fshort = transform(rng, x)
    k = rng.randint(1, 3)
    each = f"each {x} {word}" if fshort else f"each {x}"
    code, doc, name = rng.choice(
        (
            (f"sum({f} for {x} in {xs} if {test})", f"Sum {each} if it is {phrase}.", "sum"),
            (f"len([{x} for {x} in {xs} if {test}])", f"Count each {x} that is {phrase}.", "count"),
            (f"max([{f} for {x} in {xs}], default=0)", f"Give the largest of {each}, or 0.", "max"),
            (f"min([{f} for {x} in {xs}], default=0)", f"Give the smallest of {each}, or 0.", "min"),
            (f"sorted({f} for {x} in {xs})", f"Sort {each}.", "sort"),
            (f"sorted({f} for {x} in {xs} if {test})", f"Sort {each} if it is {phrase}.", "sort"),
            (f"sorted({xs}, reverse=True)[:{k}]", f"Give the {k} largest of {xs}.", "largest"),
            (f"sorted(set({xs}))[:{k}]", f"Give the {k} smallest different of {xs}.", "smallest"),
            (f"{{{x}: {f} for {x} in {xs}}}", f"Map each {x} to {word}.", "map"),
            (f"{{{x}: {f} for {x} in {xs} if {test}}}", f"Map each {x} to {word} if it is {phrase}.", "map"),
            (f'"-".join(str({f}) for {x} in {xs})', f"Join {each} with -.", "join"),
            (f'" ".join(str({x}) for {x} in {xs} if {test})', f"Join each {x} with a space if it is {phrase}.", "join"),
            (f"[{f} for {x} in {xs}][::-1]", f"List {each}, reversed.", "back"),
            (f"[{f} for {x} in {xs}[{k}:]]", f"List {each} after the first {k}.", "after"),
            (f"[{f} for {x} in {xs}[:{k}]]", f"List {each} of the first {k}.", "head"),
            (
                f"len({xs}) > {k} and {xs}[0] == {xs}[-1]",
                f"True if longer than {k} with first equal to last.",
                "closed",
            ),
            (f"sum({xs}) - len({xs})", f"Sum of {xs} minus their number.", "less"),
            (f"sum({xs}[:{k}]) - sum({xs}[{k}:])", f"Sum of the first {k} minus the sum of the rest.", "tilt"),
            (f"{xs}[{k}:] + {xs}[:{k}]", f"Move the first {k} to the end.", "rotate"),
            (f"[{x} for {x} in {xs} if {xs}.count({x}) > {k}]", f"List each {x} that occurs over {k} times.", "often"),
            (f"[i for i, {x} in enumerate({xs}) if {test}]", f"List the index of each {x} that is {phrase}.", "where"),
            (f"[i * {x} for i, {x} in enumerate({xs})]", f"List each {x} times its index.", "weigh"),
            (f"[i + {x} for i, {x} in enumerate({xs}, {k})]", f"List each {x} plus its index from {k}.", "lift"),
        )
    )
    body = [f"return {code}"]
    if rng.random() < 0.3:
        (r,) = distinct(rng, TOTALS)
        if r not in (xs, x):
            body = [f"{r} = {code}", f"return {r}"]
    return build(rng, f"expression_{name}", name_of(rng, name, short), xs, doc, body, lambda: ints(rng, 0, 5))


def strings(rng: random.Random) -> Function:
    """Two or three steps on a text."""
    s, r = distinct(rng, TEXTS, ("out", "res", "result"))
    c, d, k = rng.choice(LETTERS), rng.choice("xyz_"), rng.randint(1, 3)
    steps = rng.sample(
        (
            ("{}.upper()", "upper case", "upper"), ("{}.lower()", "lower case", "lower"), ("{}.title()", "title case", "title"),
            ("{}.strip()", "stripped", "strip"), ("{}[::-1]", "reversed", "rev"), ("{}[1:]", "without the first", "rest"),
            ("{}[:-1]", "without the last", "init"), ("{}[0:2]", "first 2 only", "head"), ("{} + {}", "twice", "twice"),
            (f'{{}}.replace("{c}", "{d}")', f"{c} as {d}", "swap"), (f'{{}} + "{d}"', f"with {d} after", "post"),
            (f'"{d}" + {{}}', f"with {d} before", "pre"), (f"{{}} * {k + 1}", f"{k + 1} times", "times"),
            (f'{{}}.replace(" ", "{d}")', f"space as {d}", "fill"), ("{}.swapcase()", "cases swapped", "swapcase"),
        ),
        rng.randint(2, 3),
    )  # fmt: skip
    body, now = [], s
    for code, _, _ in steps:
        body.append(f"{r} = {code.replace('{}', now)}")
        now = r
    ends = rng.choice((("", r), (", and give the length", f"len({r})"), (f", and count {c}", f'{r}.count("{c}")')))
    doc = f"Take {s}, then {', then '.join(phrase for _, phrase, _ in steps)}{ends[0]}."
    named = name_of(rng, *(name for _, _, name in steps[:2]))
    return build(
        rng,
        f"strings_{'_'.join(n for _, _, n in steps)}",
        named,
        s,
        doc,
        [*body, f"return {ends[1]}"],
        lambda: text(rng),
    )


def compare(rng: random.Random) -> Function:
    """Two numbers and what they decide."""
    a, b = distinct(rng, NUMBERS, NUMBERS)
    (f, first, _), (g, second, _) = transform(rng, a), transform(rng, b)
    sign, word = rng.choice(
        ((">", "above"), ("<", "below"), ("==", "equal to"), ("!=", "not equal to"), (">=", "at least"))
    )
    of_f, of_g = (a if first == "itself" else f"{a} {first}"), (b if second == "itself" else f"{b} {second}")
    shape = rng.randrange(5)
    if shape == 0:
        body, doc = (
            [f"if {a} {sign} {b}:", f"    return {f}", f"return {g}"],
            f"If {a} is {word} {b} give {of_f}, else {of_g}.",
        )
    elif shape == 1:
        body = [f"if {f} {sign} {g}:", "    return True", "return False"]
        doc = f"True if {of_f} is {word} {of_g}."
    elif shape == 2:
        body = [f"if {a} == {b}:", "    return 0", f"if {a} > {b}:", "    return 1", "return -1"]
        doc = f"Give 0 if {a} and {b} are equal, 1 if {a} is above {b}, else -1."
    elif shape == 3:
        (r,) = distinct(rng, ("r", "res", "result"))
        body = [f"{r} = {f}", f"if {a} {sign} {b}:", f"    {r} += {b}", f"return {r}"]
        doc = f"Give {of_f}, and add {b} if {a} is {word} {b}."
    else:
        body = [f"return {f} if {a} {sign} {b} else {g}"]
        doc = f"Give {of_f} if {a} is {word} {b}, else {of_g}."
    draw = lambda: f"{rng.randint(-4, 9)}, {rng.randint(-4, 9)}"  # noqa: E731
    return build(rng, f"compare_{shape}", name_of(rng, "compare", word.split()[0]), f"{a}, {b}", doc, body, draw)


def straight(rng: random.Random) -> Function:
    """Names for parts of a sum."""
    a, b = distinct(rng, NUMBERS, NUMBERS)
    p, q = distinct(rng, ("left", "first", "one", "u"), ("right", "second", "two", "w"))
    (f, one, short), (g, two, _) = transform(rng, a), transform(rng, b)
    sign, word = rng.choice((("+", "plus"), ("-", "minus"), ("*", "times")))
    body = [f"{p} = {f}", f"{q} = {g}", f"return {p} {sign} {q}"]
    doc = f"Let {p} be {a} {one}, {q} be {b} {two}; give {p} {word} {q}."
    draw = lambda: f"{rng.randint(-4, 9)}, {rng.randint(-4, 9)}"  # noqa: E731
    return build(rng, "straight", name_of(rng, word, short), f"{a}, {b}", doc, body, draw)


def sized(rng: random.Random) -> Function:
    """What the length of a list decides."""
    (xs,) = distinct(rng, LISTS)
    k = rng.randint(1, 4)
    sign, word = rng.choice(((">", "longer than"), ("<", "shorter than"), ("==", "of length")))
    parts = [
        (f"{xs}[0]", "the first"), (f"{xs}[-1]", "the last"), (f"{xs}[::-1]", "it reversed"), (f"len({xs})", "its length"),
        (f"sum({xs})", "its sum"), (f"{xs}[1:]", "all but the first"), ("None", "None"), ("[]", "an empty list"), (str(k), str(k)),
        (f"{xs} + [{k}]", f"it with {k} after"), (f"sorted({xs})", "it sorted"),
    ]  # fmt: skip
    (f, one), (g, two) = rng.sample(parts, 2)
    body = [f"if len({xs}) {sign} {k}:", f"    return {f}", f"return {g}"]
    doc = f"If {xs} is {word} {k} give {one}, else {two}."
    return build(rng, "sized", name_of(rng, "sized", word.split()[0]), xs, doc, body, lambda: ints(rng, 1, 6))


def nested(rng: random.Random) -> Function:
    """Every pair of two lists."""
    xs, ys, x, y, r = distinct(rng, LISTS, LISTS, ("x", "a", "p"), ("y", "b", "q"), TOTALS)
    sign, word = rng.choice(((">", "above"), ("<", "below"), ("==", "equal to"), ("!=", "not equal to")))
    op, named = rng.choice((("+", "plus"), ("-", "minus"), ("*", "times")))
    start, update, verb = rng.choice(
        (
            ("0", f"{r} += 1", f"Count the pairs of {x} and {y}"),
            ("[]", f"{r}.append({x} {op} {y})", f"List {x} {named} {y} for the pairs"),
            ("0", f"{r} += {x} {op} {y}", f"Sum {x} {named} {y} for the pairs"),
        )
    )
    body = [f"{r} = {start}", f"for {x} in {xs}:", f"    for {y} in {ys}:"]
    if rng.random() < 0.7:
        body += [f"        if {x} {sign} {y}:", f"            {update}"]
        doc = f"{verb} with {x} {word} {y}."
    else:
        body.append(f"        {update}")
        doc = f"{verb}."
    draw = lambda: f"{ints(rng, 1, 3, -2, 6)}, {ints(rng, 1, 3, -2, 6)}"  # noqa: E731
    return build(
        rng,
        f"nested_{verb.split()[0]}",
        name_of(rng, "pairs", word.split()[0]),
        f"{xs}, {ys}",
        doc,
        [*body, f"return {r}"],
        draw,
    )


def grouped(rng: random.Random) -> Function:
    """A dict of what belongs together."""
    numbers = rng.random() < 0.5
    xs, d, key, x = distinct(rng, LISTS, DICTS, ("key", "k", "g"), ELEMENTS if numbers else ("w", "word", "part"))
    if numbers:
        draw = lambda: ints(rng, 1, 6)  # noqa: E731
        k = rng.randint(2, 5)
        code, phrase, short = rng.choice(
            ((f"{x} % {k}", f"modulo {k}", "mod"), (f"{x} // {k}", f"divided by {k}", "div"), (f"abs({x})", "without sign", "abs"),
             (f"{x} > {k}", f"above {k} or not", "above"))
        )  # fmt: skip
        update, verb = rng.choice(
            ((f"{d}[{key}] = {d}.get({key}, 0) + {x}", "Sum"), (f"{d}[{key}] = {d}.get({key}, 0) + 1", "Count"),
             (f"{d}.setdefault({key}, []).append({x})", "List"))
        )  # fmt: skip
    else:
        draw = lambda: words(rng, 1)  # noqa: E731
        code, phrase, short = rng.choice(
            (
                (f"len({x})", "length", "len"),
                (f"{x}[0]", "first letter", "first"),
                (f"{x}.lower()", "lower case", "lower"),
            )
        )
        update, verb = rng.choice(
            ((f"{d}[{key}] = {d}.get({key}, 0) + 1", "Count"), (f"{d}.setdefault({key}, []).append({x})", "List"),
             (f"{d}[{key}] = {x}", "Keep the last of"))
        )  # fmt: skip
    body = [f"{d} = {{}}", f"for {x} in {xs}:", f"    {key} = {code}", f"    {update}", f"return {d}"]
    named = name_of(rng, "group", short)
    return build(rng, f"grouped_{verb.split()[0]}", named, xs, f"{verb} each {x} by {phrase}.", body, draw)


def neighbours(rng: random.Random) -> Function:
    """Each item and the next."""
    xs, i, r = distinct(rng, LISTS, ("i", "j"), TOTALS)
    sign, word = rng.choice(((">", "above"), ("<", "below"), ("==", "equal to"), ("!=", "not equal to")))
    start, update, verb = rng.choice(
        (("0", f"{r} += 1", "Count"), ("[]", f"{r}.append({xs}[{i}])", "List"), ("0", f"{r} += {xs}[{i}]", "Sum"),
         ("[]", f"{r}.append({i})", "List the index of"))
    )  # fmt: skip
    body = [
        f"{r} = {start}", f"for {i} in range(len({xs}) - 1):", f"    if {xs}[{i}] {sign} {xs}[{i} + 1]:", f"        {update}",
        f"return {r}",
    ]  # fmt: skip
    doc = f"{verb} each item that is {word} the next."
    return build(
        rng,
        f"neighbours_{verb.split()[-1]}",
        name_of(rng, "next", word.split()[0]),
        xs,
        doc,
        body,
        lambda: ints(rng, 2, 6, 0, 5),
    )


def entries(rng: random.Random) -> Function:
    """The keys and values of a dict."""
    d, k, v, r = distinct(rng, DICTS, ("k", "key"), ("v", "value"), TOTALS)
    test, phrase, short = predicate(rng, v)
    f, word, fshort = transform(rng, v)
    start, update, verb = rng.choice(
        (("{}", f"{r}[{v}] = {k}", f"Map each {v} to its {k}"), ("{}", f"{r}[{k}] = {f}", f"Map each {k} to its {v} {word}"),
         ("0", f"{r} += {f}", f"Sum each {v} {word}" if fshort else f"Sum each {v}"), ('""', f"{r} += {k}", f"Join each {k}"),
         ("[]", f"{r}.append({f})", f"List each {v} {word}" if fshort else f"List each {v}"))
    )  # fmt: skip
    body = [f"{r} = {start}", f"for {k}, {v} in {d}.items():"]
    if rng.random() < 0.7:
        body += [f"    if {test}:", f"        {update}"]
        verb += f" if it is {phrase}"
    else:
        body.append(f"    {update}")
    named = name_of(rng, "entries", short)
    return build(rng, f"entries_{verb.split()[0]}", named, d, verb + ".", [*body, f"return {r}"], lambda: _dict(rng))


def found(rng: random.Random) -> Function:
    """Where something is in a list or text, or whether it is."""
    xs, x, i, k = distinct(rng, LISTS, ELEMENTS, ("i", "j", "pos"), ("wanted", "key", "goal"))
    code, doc, name = rng.choice(
        (
            ([f"if {k} in {xs}:", f"    return {xs}.index({k})", "return -1"], f"Index of {k} in {xs}, or -1.", "index"),
            ([f"if {k} not in {xs}:", "    return None", f"return {xs}.count({k})"], f"Count {k} in {xs}, or None.", "count"),
            ([f"for {i} in range(len({xs})):", f"    if {xs}[{i}] == {k}:", f"        return {i} + 1", "return 0"],
             f"Place of {k} in {xs} from 1, or 0.", "place"),
            ([f"for {x} in {xs}:", f"    if {x} > {k}:", f"        return {x} - {k}", "return 0"],
             f"First {x} above {k}, minus {k}, or 0.", "over"),
            ([f"for {x} in {xs}:", f"    if {x} == {k}:", "        return True", "return False"],
             f"True if {k} is in {xs}.", "has"),
            ([f"for {x} in {xs}:", f"    if {x} < {k}:", "        return False", "return True"],
             f"True if each {x} is at least {k}.", "all"),
            ([f"return [{x} for {x} in {xs} if {x} != {k}]"], f"List {xs} without {k}.", "without"),
            ([f"return {xs}[:{xs}.index({k})] if {k} in {xs} else {xs}"], f"Give {xs} before {k}, or all.", "before"),
            ([f"return [{x} % {k} for {x} in {xs}]"], f"List each {x} modulo {k}.", "mod"),
            ([f"return {xs} + [{k}] * 2"], f"Give {xs} with {k} twice after.", "pad"),
            ([f"return sum(1 for {x} in {xs} if {x} == {k})"], f"Count each {x} equal to {k}.", "same"),
        )
    )  # fmt: skip
    draw = lambda: f"{ints(rng, 1, 5, 0, 5)}, {rng.randint(1, 5)}"  # noqa: E731
    return build(rng, f"found_{name}", name_of(rng, name), f"{xs}, {k}", doc, code, draw)


def multiplied(rng: random.Random) -> Function:
    """A product over all that is walked (the held-out one is over a guard)."""
    n, m, i, r = distinct(rng, NUMBERS, NUMBERS, ("i", "j"), TOTALS)
    xs, x, k = *distinct(rng, LISTS, ELEMENTS), rng.randint(2, 9)
    params, over, phrase, name, draw = rng.choice(
        (
            (xs, xs, f"each {x}", x, lambda: ints(rng, 0, 5)),
            (xs, f"{xs}[1:]", f"each {x} but the first", x, lambda: ints(rng, 1, 5)),
            (xs, f"{xs}[:{k}]", f"each {x} of the first {k}", x, lambda: ints(rng, 1, 6)),
            (f"{n}, {m}", f"range({n}, {m})", f"each {i} from {n} to below {m}", i,
             lambda: f"{rng.randint(-2, 3)}, {rng.randint(2, 7)}"),
        )
    )  # fmt: skip
    while r in params or r == name:
        (r,) = distinct(rng, TOTALS)
    f, word, short = transform(rng, name)
    start = rng.choice((1, 1, 2, 10))
    body = [f"{r} = {start}", f"for {name} in {over}:", f"    {r} *= {f}", f"return {r}"]
    doc = f"Multiply {phrase} {word}" if short else f"Multiply {phrase}"
    doc += f", from {start}." if start != 1 else "."
    return build(rng, "multiplied", name_of(rng, "multiply", short), params, doc, body, draw)


def so_far(rng: random.Random) -> Function:
    """What is known up to each item (the held-out one is the sum)."""
    xs, x, s, r = distinct(rng, LISTS, ELEMENTS, ("total", "s", "acc", "most", "seen"), ("out", "result", "res"))
    test, phrase, _ = predicate(rng, x)
    start, update, what, name = rng.choice(
        (("0", f"{s} = max({s}, {x})", "largest, or 0,", "largest"), ("0", f"{s} = min({s}, {x})", "smallest, or 0,", "smallest"),
         ("1", f"{s} *= {x}", "product", "product"), ("0", f"{s} -= {x}", "negated sum", "less"),
         ("0", f"{s} += {x} * {x}", "sum of squares", "squares"), ("0", f"{s} += 1", "number of items", "number"))
    )  # fmt: skip
    body = [f"{s} = {start}", f"{r} = []", f"for {x} in {xs}:", f"    {update}", f"    {r}.append({s})", f"return {r}"]
    doc = f"List the {what} up to each {x}."
    if rng.random() < 0.4:
        body[3:5] = [f"    if {test}:", f"        {update}", f"    {r}.append({s})"]
        doc = f"List the {what} of those {phrase} up to each {x}."
    return build(rng, f"so_far_{name}", name_of(rng, "so_far", name), xs, doc, body, lambda: ints(rng, 1))


def rest(rng: random.Random) -> Function:
    """Two parts of a list against one another (the held-out one counts them)."""
    xs, x = distinct(rng, LISTS, ELEMENTS)
    a, b = distinct(rng, ("a", "p", "good", "some"), ("b", "q", "bad", "others"))
    while a in (xs, x) or b in (xs, x, a):
        a, b = distinct(rng, ("a", "p", "good", "some"), ("b", "q", "bad", "others"))
    test, phrase, short = predicate(rng, x)
    code, what, name = rng.choice(
        ((f"sum({a}) - {b}", "Sum", "tilt"), (f"sum({a}) * {b}", "Product of the sum of", "both"),
             (f"[sum({a}), {b}]", "List the sum of", "split"))
    )  # fmt: skip
    body = [f"{a} = [{x} for {x} in {xs} if {test}]", f"{b} = sum({xs}) - sum({a})", f"return {code}"]
    tail = {"tilt": " minus the sum of the rest", "both": " and the sum of the rest", "split": " and of the rest"}[name]
    doc = f"{what} each {x} that is {phrase}{tail}."
    return build(rng, f"rest_{name}", name_of(rng, name, short), xs, doc, body, lambda: ints(rng))


def bounded(rng: random.Random) -> Function:
    """One bound (the held-out one has two)."""
    n, bound, r = distinct(rng, ("n", "x", "v"), ("low", "high", "top", "limit"), ("r", "res", "out"))
    f, word, short = transform(rng, n)
    sign, phrase = rng.choice((("<", "at least"), (">", "at most")))
    of = f"{n} {word}" if short else n
    body, doc = rng.choice(
        (
            ([f"if {n} {sign} {bound}:", f"    return {bound}", f"return {f}"],
             f"Give {of}, but {bound} if {n} is not {phrase} {bound}."),
            ([f"{r} = {f}", f"if {r} {sign} {bound}:", f"    {r} = {bound}", f"return {r}"], f"Keep {of} {phrase} {bound}."),
            ([f"{r} = {f}", f"if {r} {sign} {bound}:", f"    return {bound}", f"return {r}"], f"Return {of}, {phrase} {bound}."),
        )
    )  # fmt: skip
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(-2, 9)}"  # noqa: E731
    return build(rng, "bounded", name_of(rng, "bound", phrase[3:], short), f"{n}, {bound}", doc, body, draw)


def apart(rng: random.Random) -> Function:
    """How far two numbers are apart (the held-out one has a limit)."""
    a, b, r = distinct(rng, NUMBERS, NUMBERS, ("d", "gap", "res"))
    k = rng.randint(2, 9)
    code, doc, name = rng.choice(
        ((f"{r} * {k}", f", times {k}", "times"), (f"{r} + {k}", f", plus {k}", "plus"),
             (f"{r} > {k}", f", and tell if above {k}", "far"),
         (f"{r} % {k}", f", modulo {k}", "mod"), (r, "", ""))
    )  # fmt: skip
    start, what = rng.choice(
        ((f"abs({a} - {b})", f"{a} minus {b} without sign"), (f"abs({a}) + abs({b})", f"{a} without sign plus {b} without sign"),
         (f"max({a}, {b})", f"the larger of {a} and {b}"), (f"min({a}, {b})", f"the smaller of {a} and {b}"))
    )  # fmt: skip
    draw = lambda: f"{rng.randint(-5, 12)}, {rng.randint(-5, 12)}"  # noqa: E731
    return build(
        rng,
        "apart",
        name_of(rng, "apart", name),
        f"{a}, {b}",
        f"Return {what}{doc}.",
        [f"{r} = {start}", f"return {code}"],
        draw,
    )


def last(rng: random.Random) -> Function:
    """What was seen last (the held-out one is the item itself under a guard)."""
    xs, x, i, r = distinct(rng, LISTS, ELEMENTS, ("i", "j"), ("found", "last", "res"))
    test, phrase, short = predicate(rng, x)
    f, word, fshort = transform(rng, x)
    start, value, what, none = rng.choice(
        (("-1", i, "index of the last", "-1"), ("0", f if fshort else f"{x} + 1",
             f"last {x} {word if fshort else 'plus 1'} of those", "0"))
    )  # fmt: skip
    body = [
        f"{r} = {start}",
        f"for {i}, {x} in enumerate({xs}):",
        f"    if {test}:",
        f"        {r} = {value}",
        f"return {r}",
    ]
    doc = f"Return the {what}{f' {x}' if value == i else ''} that is {phrase}, or {none}."
    return build(rng, f"last_{start}", name_of(rng, "last", short), xs, doc, body, lambda: ints(rng))


def side_by_side(rng: random.Random) -> Function:
    """Two lists walked together (the held-out one lists what each two make)."""
    xs, ys, r = distinct(rng, LISTS, LISTS, TOTALS)
    a, b = distinct(rng, ("a", "p", "x"), ("b", "q", "y"))
    while {a, b} & {xs, ys, r}:
        a, b = distinct(rng, ("a", "p", "x"), ("b", "q", "y"))
    op, word = rng.choice((("+", "plus"), ("-", "minus"), ("*", "times")))
    sign, than = rng.choice(((">", "above"), ("<", "below"), ("==", "equal to"), ("!=", "not equal to")))
    start, lines, doc = rng.choice(
        (
            ("0", [f"    {r} += {a} {op} {b}"], f"Sum each {a} {word} {b}."),
            ("0", [f"    if {a} {sign} {b}:", f"        {r} += 1"], f"Count each {a} that is {than} its {b}."),
            ("[]", [f"    if {a} {sign} {b}:", f"        {r}.append({a})"], f"Keep each {a} that is {than} its {b}."),
            ("0", [f"    if {a} {sign} {b}:", f"        {r} += {b}"], f"Sum each {b} whose {a} is {than} it."),
            ("{}", [f"    {r}[{a}] = {b}"], f"Map each {a} to its {b}."),
            ("[]", [f"    {r}.append(max({a}, {b}))"], f"List the larger of each {a} and {b}."),
        )
    )
    body = [f"{r} = {start}", f"for {a}, {b} in zip({xs}, {ys}):", *lines, f"return {r}"]
    draw = lambda: f"{ints(rng, 2, 4)}, {ints(rng, 2, 4)}"  # noqa: E731
    return build(rng, f"side_by_side_{doc.split()[0]}", name_of(rng, "together", word), f"{xs}, {ys}", doc, body, draw)


def lettered(rng: random.Random) -> Function:
    """One letter of each word (the held-out one joins them in one case)."""
    xs, w, r = distinct(rng, LISTS, ("w", "word"), ("out", "res", "result"))
    pos, which = rng.choice(((0, "first"), (-1, "last")))
    method = rng.choice(("upper", "lower"))
    start, line, doc = rng.choice(
        (
            ("[]", f"    {r}.append({w}[{pos}])", f"List the {which} letter of each {w}."),
            ("[]", f"    {r}.append({w}[{pos}].{method}())", f"List the {which} letter of each {w} in {method}."),
            ('""', f"    {r} += {w}[{pos}]", f"Join the {which} letter of each {w}."),
            ('""', f"    {r} = {w}[{pos}] + {r}", f"Join backwards the {which} letter of each {w}."),
            ("{}", f"    {r}[{w}] = {w}[{pos}]", f"Map each {w} to its {which} letter."),
            ("0", f'    {r} += {w}[{pos}] in "aeiou"', f"Count each {w} whose {which} letter is a vowel."),
        )
    )
    body = [f"{r} = {start}", f"for {w} in {xs}:", line, f"return {r}"]
    return build(rng, f"lettered_{doc.split()[0]}", name_of(rng, "letter", which), xs, doc, body, lambda: words(rng, 1))


FAMILIES = (
    loop, loop, loop, either, expression, strings, compare, straight, sized, nested, grouped, neighbours, entries, found,
    multiplied, so_far, rest, bounded, apart, last, side_by_side, lettered,
)  # fmt: skip
"""loops three times: they are the widest"""
