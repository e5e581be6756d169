"""Families of changes to a database: tables and rows before, what is wanted, a right migration, and what queries answer after.

Right answers follow from the rows by Python, not by SQL: no database is asked when a task is made. Everything a migration
could leave behind to answer falsely (a view in a table's place, a trigger, a rule, a policy) is in the answer of one
query; that rows can still be added, and that wrong ones are refused, is in others.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]
Rows = dict[str, list[Row]]
"""table -> rows, in the order of its columns"""
KINDS = ("sqlite", "postgresql")
THINGS = ("book", "lamp", "ticket", "chair", "kettle", "bike", "poster", "mug", "tent", "radio", "clock", "rope")
FIRST = ("Ada", "Bo", "Carla", "Dmitri", "Eve", "Femi", "Grace", "Hugo", "Ines", "Jun", "Kofi", "Lena")
LAST = ("Adams", "Berg", "Costa", "Diaz", "Evans", "Fischer", "Garcia", "Haddad", "Ito", "Jones", "Kaya", "Larsen")
CITIES = ("Oslo", "Lima", "Kyoto", "Accra", "Turin", "Quito", "Perth", "Cork", "Hanoi", "Graz")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One task's content. `seen` is there when the agent comes, `hidden` is added before its migration is judged."""

    family: str
    tables: str
    """SQL that makes the tables"""
    seen: Rows
    hidden: Rows
    wanted: str
    """what the instruction asks for"""
    migration: str
    """a right one"""
    queries: tuple[tuple[str, str, Any], ...]
    """(id, one SQL statement, its right answer: rows, or {"refused": which constraint})"""


Family = Callable[[random.Random, str], Change]
REFUSED = {word: {"refused": word} for word in ("unique", "not null", "foreign key", "check")}


def literal(value: object) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


def inserts(rows: Rows) -> str:
    return "".join(
        f"insert into {table} values {', '.join('(' + ', '.join(map(literal, row)) + ')' for row in some)};\n"
        for table, some in rows.items()
        if some
    )


def columns(kind: str, table: str, wanted: Sequence[tuple[str, str, int]]) -> tuple[str, str, Any]:
    """Name, type and whether it refuses nulls, of every column."""
    if kind == "sqlite":
        sql = f"select name, lower(type), \"notnull\" or pk > 0 from pragma_table_info('{table}') order by name"
    else:
        sql = (
            "select column_name, data_type, case is_nullable when 'NO' then 1 else 0 end from information_schema.columns "
            f"where table_schema = 'public' and table_name = '{table}' order by column_name"
        )
    return f"columns of {table}", sql, [list(row) for row in sorted(wanted)]


def nothing_else(kind: str, *tables: str) -> tuple[str, str, Any]:
    if kind == "sqlite":
        sql = "select type, name from sqlite_master where type <> 'index' and name not like 'sqlite_%' order by name"
    else:
        sql = (
            "select case table_type when 'BASE TABLE' then 'table' else table_type end as what, table_name::text as name "
            "from information_schema.tables where table_schema = 'public' "
            "union all select 'trigger', tgname::text from pg_trigger where not tgisinternal "
            "union all select 'rule', rulename::text from pg_rules where schemaname = 'public' "
            "union all select 'policy', policyname::text from pg_policies order by name"
        )
    return "nothing else", sql, [["table", name] for name in sorted(tables)]


def _ids(rng: random.Random, count: int, first: int) -> list[int]:
    """Ascending, with gaps."""
    found, at = [], first
    for _ in range(count):
        at += rng.randint(1, 4)
        found.append(at)
    return found


def _two(rng: random.Random, make: Callable[[int], Row], table: str) -> tuple[Rows, Rows]:
    """Seen and hidden rows of one table; `make` gets an id."""
    seen, hidden = _ids(rng, rng.randint(6, 10), 0), _ids(rng, rng.randint(4, 6), 100)
    return {table: [make(i) for i in seen]}, {table: [make(i) for i in hidden]}


def _both(seen: Rows, hidden: Rows, table: str) -> list[Row]:
    return [*seen.get(table, []), *hidden.get(table, [])]


def cents(rng: random.Random, kind: str) -> Change:
    thing, money = rng.choice(THINGS), rng.choice(("price", "fee", "cost", "deposit"))
    table = f"{thing}s"

    def row(i: int) -> Row:
        return (
            i,
            f"{thing} {rng.randint(10, 99)}",
            f"{rng.randint(0, 300)}.{rng.choice(('00', '05', '29', '50', '57', '99'))}",
        )

    seen, hidden = _two(rng, row, table)
    turned = f"cast(round(cast({money} as {'real' if kind == 'sqlite' else 'numeric'}) * 100) as integer)"
    add = f"alter table {table} add column {money}_cents integer not null default 0;\n"
    after = [[i, name, int(text.replace(".", ""))] for i, name, text in _both(seen, hidden, table)]
    return Change(
        family="cents",
        tables=f"create table {table} (id integer primary key, name text not null, {money} text not null);\n",
        seen=seen,
        hidden=hidden,
        wanted=f"Replace the text column {money} of {table} (such as '12.50') by an integer column {money}_cents that is "
        "never null and holds the amount in cents.",
        migration=f"{add}update {table} set {money}_cents = {turned};\nalter table {table} drop column {money};\n",
        queries=(
            columns(kind, table, [("id", "integer", 1), ("name", "text", 1), (f"{money}_cents", "integer", 1)]),
            nothing_else(kind, table),
            ("rows", f"select id, name, {money}_cents from {table} order by id", after),
            ("no null", f"insert into {table} (id, name, {money}_cents) values (9001, 'x', null)", REFUSED["not null"]),
            ("adding", f"insert into {table} (id, name, {money}_cents) values (9002, 'x', 7) returning {money}_cents", [[7]]),
            ("the key", f"insert into {table} (id, name, {money}_cents) values ({seen[table][0][0]}, 'x', 7)", REFUSED["unique"]),
        ),
    )  # fmt: skip


def split_name(rng: random.Random, kind: str) -> Change:
    table, full = rng.choice(("people", "members", "guests", "staff")), rng.choice(("name", "full_name", "called"))

    def row(i: int) -> Row:
        more = rng.choice((f" {rng.choice(LAST)}", f" {rng.choice(LAST)}", f" de {rng.choice(LAST)}", ""))
        return i, rng.choice(FIRST) + more, rng.choice(CITIES)

    seen, hidden = _two(rng, row, table)
    add_one = f"insert into {table} (id, first_name, last_name, city) values"
    place = f"instr({full}, ' ')" if kind == "sqlite" else f"strpos({full}, ' ')"
    after = [[i, name.partition(" ")[0], name.partition(" ")[2], city] for i, name, city in _both(seen, hidden, table)]
    add = "".join(f"alter table {table} add column {c}_name text not null default '';\n" for c in ("first", "last"))
    return Change(
        family="split_name",
        tables=f"create table {table} (id integer primary key, {full} text not null, city text not null);\n",
        seen=seen,
        hidden=hidden,
        wanted=f"Replace the column {full} of {table} by two text columns that are never null: first_name, what is before "
        "the first space, and last_name, everything after it ('' where there is no space).",
        migration=f"{add}update {table} set first_name = case when {place} > 0 then substr({full}, 1, {place} - 1) "
        f"else {full} end,\n  last_name = case when {place} > 0 then substr({full}, {place} + 1) else '' end;\n"
        f"alter table {table} drop column {full};\n",
        queries=(
            columns(kind, table, [("id", "integer", 1), ("city", "text", 1), ("first_name", "text", 1), ("last_name", "text", 1)]),
            nothing_else(kind, table),
            ("rows", f"select id, first_name, last_name, city from {table} order by id", after),
            ("no null", f"{add_one} (9001, null, 'x', 'y')", REFUSED["not null"]),
            ("adding", f"{add_one} (9002, 'a', 'b', 'c') returning last_name", [["b"]]),
        ),
    )  # fmt: skip


def normalise(rng: random.Random, kind: str) -> Change:
    table, many, one = rng.choice(
        (("orders", "cities", "city"), ("visits", "places", "place"), ("trips", "towns", "town"))
    )

    def row(i: int) -> Row:
        return i, rng.choice(THINGS), rng.choice(CITIES)

    seen, hidden = _two(rng, row, table)
    rows = _both(seen, hidden, table)
    made = f"create table {many} (id integer primary key, name text not null unique);\n"
    fill = f"select distinct {one} from {table}"
    if kind == "sqlite":
        migration = (
            f"{made}insert into {many} (name) {fill};\n"
            f"create table made (id integer primary key, what text not null, {one}_id integer not null references {many} (id));\n"
            f"insert into made select t.id, t.what, m.id from {table} t join {many} m on m.name = t.{one};\n"
            f"drop table {table};\nalter table made rename to {table};\n"
        )
    else:
        migration = (
            f"{made}insert into {many} select row_number() over (), {one} from ({fill}) d;\n"
            f"alter table {table} add column {one}_id integer references {many} (id);\n"
            f"update {table} set {one}_id = m.id from {many} m where m.name = {table}.{one};\n"
            f"alter table {table} alter column {one}_id set not null;\nalter table {table} drop column {one};\n"
        )
    some = f"(select min(id) from {many})"
    return Change(
        family="normalise",
        tables=f"create table {table} (id integer primary key, what text not null, {one} text not null);\n",
        seen=seen,
        hidden=hidden,
        wanted=f"Give every {one} of {table} one row in a new table {many} (id integer primary key, name text, never null, "
        f"unique), and replace the column {one} of {table} by an integer {one}_id that is never null and a foreign key to it.",
        migration=migration,
        queries=(
            columns(kind, table, [("id", "integer", 1), ("what", "text", 1), (f"{one}_id", "integer", 1)]),
            columns(kind, many, [("id", "integer", 1), ("name", "text", 1)]),
            nothing_else(kind, table, many),
            ("rows", f"select t.id, t.what, m.name from {table} t join {many} m on m.id = t.{one}_id order by t.id",
             [list(row) for row in rows]),
            ("names", f"select name from {many} order by name", [[name] for name in sorted({row[2] for row in rows})]),
            ("the foreign key", f"insert into {table} (id, what, {one}_id) values (9001, 'x', 987654)", REFUSED["foreign key"]),
            ("no null", f"insert into {table} (id, what, {one}_id) values (9001, 'x', null)", REFUSED["not null"]),
            ("adding", f"insert into {table} (id, what, {one}_id) values (9002, 'x', {some}) returning what", [["x"]]),
            ("one of each", f"insert into {many} (id, name) values (9003, '{rows[0][2]}')", REFUSED["unique"]),
        ),
    )  # fmt: skip


def merge(rng: random.Random, kind: str) -> Change:
    users, orders = rng.choice((("users", "orders"), ("accounts", "payments"), ("members", "loans")))
    user_id = f"{users[:-1]}_id"

    def rows(first: int) -> Rows:
        names = rng.sample(FIRST, 4)
        people = [(i, f"{rng.choice(names)}@post.example") for i in _ids(rng, rng.randint(6, 8), first)]
        mixed = [(i, rng.choice((mail, mail.lower(), mail.upper()))) for i, mail in people]
        return {
            users: mixed,
            orders: [(i, rng.choice(people)[0], rng.randint(1, 90)) for i in _ids(rng, rng.randint(7, 10), first)],
        }

    seen, hidden = rows(0), rows(100)
    kept: dict[str, int] = {}
    for i, mail in _both(seen, hidden, users):
        kept.setdefault(mail.lower(), i)
    to = {i: kept[mail.lower()] for i, mail in _both(seen, hidden, users)}
    least = f"(select min(k.id) from {users} k join {users} u on lower(u.email) = lower(k.email) where u.id = {orders}.{user_id})"
    return Change(
        family="merge",
        tables=f"create table {users} (id integer primary key, email text not null);\ncreate table {orders} (id integer "
        f"primary key, {user_id} integer not null references {users} (id), total integer not null);\n",
        seen=seen,
        hidden=hidden,
        wanted=f"Merge the {users} whose email is the same but for upper and lower case into the one with the smallest id: "
        f"{orders} of the others go to it, the others are deleted. Then write all emails in lower case and make email unique.",
        migration=f"update {orders} set {user_id} = {least};\n"
        f"delete from {users} where id not in (select min(id) from {users} group by lower(email));\n"
        f"update {users} set email = lower(email);\ncreate unique index one_{users[:-1]} on {users} (email);\n",
        queries=(
            columns(kind, users, [("id", "integer", 1), ("email", "text", 1)]),
            columns(kind, orders, [("id", "integer", 1), (user_id, "integer", 1), ("total", "integer", 1)]),
            nothing_else(kind, users, orders),
            ("kept", f"select id, email from {users} order by id", sorted([i, mail] for mail, i in kept.items())),
            ("rows", f"select id, {user_id}, total from {orders} order by id",
             [[i, to[user], total] for i, user, total in _both(seen, hidden, orders)]),
            ("unique", f"insert into {users} (id, email) values (9001, '{next(iter(kept))}')", REFUSED["unique"]),
            ("adding", f"insert into {users} (id, email) values (9002, 'new@post.example') returning id", [[9002]]),
            ("the foreign key", f"insert into {orders} (id, {user_id}, total) values (9003, 987654, 1)", REFUSED["foreign key"]),
        ),
    )  # fmt: skip


def status(rng: random.Random, kind: str) -> Change:
    table, words = rng.choice((
        ("parcels", {"N": "new", "S": "sent", "D": "done"}),
        ("jobs", {"W": "waiting", "R": "running", "E": "ended"}),
        ("claims", {"O": "open", "P": "paid", "X": "refused"}),
    ))  # fmt: skip
    least = next(iter(words.values()))

    def row(i: int) -> Row:
        return i, f"{table[:-1]} {rng.randint(10, 99)}", rng.choice((*words, *words, None))

    seen, hidden = _two(rng, row, table)
    case = (
        "case state "
        + " ".join(f"when '{code}' then '{word}'" for code, word in words.items())
        + f" else '{least}' end"
    )
    check = f"check (state in ({', '.join(map(literal, words.values()))}))"
    if kind == "sqlite":
        migration = (
            f"create table made (id integer primary key, label text not null, state text not null {check});\n"
            f"insert into made select id, label, {case} from {table};\ndrop table {table};\nalter table made rename to {table};\n"
        )
    else:
        migration = (
            f"update {table} set state = {case};\nalter table {table} alter column state set not null;\n"
            f"alter table {table} add {check};\n"
        )
    after = [[i, label, words.get(code, least)] for i, label, code in _both(seen, hidden, table)]
    told = ", ".join(f"{code} = {word}" for code, word in words.items())
    return Change(
        family="status",
        tables=f"create table {table} (id integer primary key, label text not null, state text);\n",
        seen=seen,
        hidden=hidden,
        wanted=f"In the column state of {table}, write words for the codes ({told}) and {least} for null; from then on it is "
        "never null and a check constraint refuses all other words.",
        migration=migration,
        queries=(
            columns(kind, table, [("id", "integer", 1), ("label", "text", 1), ("state", "text", 1)]),
            nothing_else(kind, table),
            ("rows", f"select id, label, state from {table} order by id", after),
            ("the check", f"insert into {table} (id, label, state) values (9001, 'x', 'unheard of')", REFUSED["check"]),
            ("no null", f"insert into {table} (id, label, state) values (9001, 'x', null)", REFUSED["not null"]),
            ("adding", f"insert into {table} (id, label, state) values (9002, 'x', '{least}') returning state", [[least]]),
            ("the key", f"insert into {table} (id, label, state) values ({seen[table][0][0]}, 'x', '{least}')", REFUSED["unique"]),
        ),
    )  # fmt: skip


def totals(rng: random.Random, kind: str) -> Change:
    orders, items = rng.choice((("orders", "items"), ("invoices", "lines"), ("carts", "entries")))
    order_id = f"{orders[:-1]}_id"

    def rows(first: int) -> Rows:
        ids = _ids(rng, rng.randint(4, 6), first)
        return {
            orders: [(i, rng.choice(FIRST)) for i in ids],
            items: [(i, rng.choice(ids[1:]), rng.randint(1, 5), rng.randint(5, 900)) for i in _ids(rng, rng.randint(6, 9), first)],
        }  # fmt: skip

    seen, hidden = rows(0), rows(100)
    sums = {i: 0 for i, _ in _both(seen, hidden, orders)}
    for _, order, number, price in _both(seen, hidden, items):
        sums[order] += number * price
    return Change(
        family="totals",
        tables=f"create table {orders} (id integer primary key, buyer text not null);\ncreate table {items} (id integer "
        f"primary key, {order_id} integer not null references {orders} (id), number integer not null, cents integer not null);\n",
        seen=seen,
        hidden=hidden,
        wanted=f"Add to {orders} an integer column total_cents that is never null: the sum of number times cents of its "
        f"{items}, and 0 where it has none.",
        migration=f"alter table {orders} add column total_cents integer not null default 0;\nupdate {orders} set total_cents = "
        f"coalesce((select sum(i.number * i.cents) from {items} i where i.{order_id} = {orders}.id), 0);\n",
        queries=(
            columns(kind, orders, [("id", "integer", 1), ("buyer", "text", 1), ("total_cents", "integer", 1)]),
            nothing_else(kind, orders, items),
            ("rows", f"select id, buyer, total_cents from {orders} order by id",
             [[i, buyer, sums[i]] for i, buyer in _both(seen, hidden, orders)]),
            ("the rest", f"select id, {order_id}, number, cents from {items} order by id",
             [list(row) for row in _both(seen, hidden, items)]),
            ("no null", f"insert into {orders} (id, buyer, total_cents) values (9001, 'x', null)", REFUSED["not null"]),
            ("adding", f"insert into {orders} (id, buyer, total_cents) values (9002, 'x', 5) returning total_cents", [[5]]),
            ("the foreign key", f"insert into {items} (id, {order_id}, number, cents) values (9003, 987654, 1, 1)",
             REFUSED["foreign key"]),
        ),
    )  # fmt: skip


def tags(rng: random.Random, kind: str) -> Change:
    posts, tag = rng.choice((("posts", "tag"), ("photos", "label"), ("songs", "genre")))
    post_id, made = f"{posts[:-1]}_id", f"{posts[:-1]}_{tag}s"

    def row(i: int) -> Row:
        return i, f"{posts[:-1]} {rng.randint(10, 99)}", ",".join(rng.sample(THINGS, rng.randint(0, 3)))

    seen, hidden = _two(rng, row, posts)
    if kind == "sqlite":
        split = (
            f"with recursive cut (id, word, rest) as (select id, '', {tag}s || ',' from {posts} union all "
            "select id, substr(rest, 1, instr(rest, ',') - 1), substr(rest, instr(rest, ',') + 1) from cut where rest <> '')\n"
            f"insert into {made} select id, word from cut where word <> '';\n"
        )
    else:
        split = f"insert into {made} select id, w from {posts}, unnest(string_to_array({tag}s, ',')) w where w <> '';\n"
    pairs = sorted([i, word] for i, _, words in _both(seen, hidden, posts) for word in words.split(",") if word)
    taken = pairs[0] if pairs else [0, ""]
    return Change(
        family="tags",
        tables=f"create table {posts} (id integer primary key, title text not null, {tag}s text not null);\n",
        seen=seen,
        hidden=hidden,
        wanted=f"Replace the column {tag}s of {posts} (words with commas between them, or '') by a new table {made}: {post_id} "
        f"integer, a foreign key to {posts}, and {tag} text, neither ever null and both together its primary key; one row for "
        f"each {tag}.",
        migration=f"create table {made} ({post_id} integer not null references {posts} (id), {tag} text not null, "
        f"primary key ({post_id}, {tag}));\n{split}alter table {posts} drop column {tag}s;\n",
        queries=(
            columns(kind, posts, [("id", "integer", 1), ("title", "text", 1)]),
            columns(kind, made, [(post_id, "integer", 1), (tag, "text", 1)]),
            nothing_else(kind, posts, made),
            ("rows", f"select id, title from {posts} order by id", [[i, title] for i, title, _ in _both(seen, hidden, posts)]),
            ("pairs", f"select {post_id}, {tag} from {made} order by {post_id}, {tag}", pairs),
            ("the foreign key", f"insert into {made} ({post_id}, {tag}) values (987654, 'x')", REFUSED["foreign key"]),
            ("the key", f"insert into {made} ({post_id}, {tag}) select {post_id}, {tag} from {made} "
             f"where {post_id} = {taken[0]} and {tag} = '{taken[1]}'", REFUSED["unique"] if pairs else []),
            ("adding", f"insert into {made} ({post_id}, {tag}) values ({seen[posts][0][0]}, 'zebra') returning {tag}", [["zebra"]]),
        ),
    )  # fmt: skip


TRAIN: tuple[Family, ...] = (cents, split_name, normalise, status, totals)
HELD_OUT: tuple[Family, ...] = (merge, tags)
