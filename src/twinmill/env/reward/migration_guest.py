"""Runs a migration on the machine's live database and asks queries. Behind database_guest and values_guest.

Input: a JSON object with `nonce`, `kind`, `before` (SQL), `migration` (a path), `queries`, [[id, SQL], ...]. Output: one
JSON object a line, with `n` and `id`, as cases_guest writes it. The value of a query is its rows; of one that a
constraint refuses it is {"refused": which}. A query changes nothing: what it did is rolled back.
"""

import json
import os
import sys

SHOWN = 200
FILE = "app.db"


def answered(act, *what):
    try:
        value = act(*what)
    except Refused as error:  # noqa: F821
        if not error.constraint:
            return {"raised": str(error)[:SHOWN]}
        value = {"refused": error.constraint}
    except (OSError, ValueError) as error:
        return {"raised": f"{type(error).__name__}: {error}"[:SHOWN]}
    try:
        return {"value": canonical(encode(value)), "shown": repr(value)[:SHOWN]}  # noqa: F821
    except NotPlain as error:  # noqa: F821
        return {"other": str(error)}


def main():
    asked = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    kind, place = asked["kind"], FILE if asked["kind"] == "sqlite" else ""

    def script(sql):
        database = connect(kind, place)  # noqa: F821
        try:
            database.script(sql)
        except Refused as error:  # noqa: F821
            return f"not done: {error}"[:SHOWN]  # a broken constraint, too, is no success here
        finally:
            database.close()
        return "done"

    def migrate():
        with open(asked["migration"], encoding="utf-8") as file:
            return script(file.read())

    def write(id, line):
        os.write(channel, json.dumps({"n": asked["nonce"], "id": id, **line}).encode() + b"\n")

    before = answered(script, asked["before"] or "select 1")
    write("before", before)
    if before.get("shown") != "'done'":
        os._exit(0)
    write("migration", answered(migrate))
    database = None

    def query(sql):
        nonlocal database
        database = database or connect(kind, place)  # noqa: F821
        database.rows("begin")  # not script(), which commits in SQLite
        try:
            return database.rows(sql)
        finally:
            database.rows("rollback")

    for id, sql in asked["queries"]:
        write(id, answered(query, sql))
    os.write(channel, json.dumps({"n": asked["nonce"], "end": len(asked["queries"])}).encode() + b"\n")
    os._exit(0)


main()
