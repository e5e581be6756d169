"""Waits until a database answers, then runs a script. Behind database_guest; sent into a machine by base.py.

Input: a JSON object with `kind`, `path`, `script`, `patience_s`. Output: {"why": it does not answer yet, or "",
"refused": what it said to the script, or ""}.
"""

import json
import time


def main():
    asked = json.loads(sys.stdin.buffer.read())  # noqa: F821
    deadline = time.monotonic() + asked["patience_s"]
    why, refused = "", ""
    while True:
        try:
            database = connect(asked["kind"], asked["path"])  # noqa: F821 (database_guest stands in front)
            break
        except (OSError, Refused) as error:  # noqa: F821
            why, there = str(error), isinstance(error, Refused)  # noqa: F821
        if time.monotonic() > deadline:
            database = None
            break
        time.sleep(0.008 if there else 0.002)  # a refused connection costs the server a process
    if database is not None:
        why = ""
        try:
            if asked["script"]:
                database.script(asked["script"])
            database.rows("select 1")
        except Refused as error:  # noqa: F821
            refused = str(error)
        except OSError as error:
            why = f"it answered and then did not: {error}"
        database.close()
    print(json.dumps({"why": why, "refused": refused}))


main()
