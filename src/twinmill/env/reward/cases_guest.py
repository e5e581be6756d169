"""Evaluates cases in a machine: the candidate's own process, which knows the calls but not the right answers.

Self-contained, standard library only; sent into a machine by channel.py, behind values_guest. Input: a JSON object with
`nonce` and `cases`, [[id, module, call], ...]. Output: one JSON object a line, `n` = the nonce and `id`, and one of

    {"value": canonical text, "shown": start of the repr}    {"other": what is not plain}
    {"raised": "Type: message"}                              {"syntax": "SyntaxError: message line 3"}

written as each is known, so that a case that never returns costs only those after it. What the candidate prints, and
what it writes over these lines, can say only what it would answer: the comparison is the host's.
"""

import importlib
import json
import os
import sys

SHOWN = 200


def said(error):
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def evaluate(module, call, modules):
    """modules: name -> module, or what importing it said."""
    if module not in modules:
        try:
            modules[module] = importlib.import_module(module)
        except SyntaxError as error:
            modules[module] = {"syntax": f"{type(error).__name__}: {error.msg} line {error.lineno}"}
        except BaseException as error:
            modules[module] = {"raised": said(error)}
    if isinstance(modules[module], dict):
        return modules[module]
    try:
        value = eval(call, modules[module].__dict__)
        tree = encode(value)  # noqa: F821 (values_guest stands in front)
        return {"value": canonical(tree), "shown": repr(value)[:SHOWN]}  # noqa: F821
    except NotPlain as error:  # noqa: F821
        return {"other": str(error)}
    except BaseException as error:
        return {"raised": said(error)}


def main():
    asked = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    sys.path.insert(0, os.getcwd())
    modules = {}
    for id, module, call in asked["cases"]:
        line = json.dumps({"n": asked["nonce"], "id": id, **evaluate(module, call, modules)})
        os.write(channel, line.encode() + b"\n")
    os.write(channel, json.dumps({"n": asked["nonce"], "end": len(asked["cases"])}).encode() + b"\n")
    os._exit(0)  # atexit handlers and threads of the candidate have nothing to add


main()
