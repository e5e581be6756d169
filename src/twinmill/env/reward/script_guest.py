"""Runs a test program in one process and the candidate in another; only plain values pass between them.

Self-contained, standard library only; sent into a machine by channel.py, behind values_guest. Input: a JSON object with
`nonce`, `program` (source), `tests` (names of its functions), `module` and `entry` (what `candidate` calls).
Output: {"n": nonce, "id": test, "ok": bool, "error": text} a line, and {"n": nonce, "end": number of tests}.

The candidate's process is forked before the input is read, so that neither the tests nor the nonce are in its memory;
it has no descriptor of the output. The test process never runs a line of the workspace, and is not dumpable: the
candidate, though of the same user, can neither trace it nor open its memory or files. It can kill or stop it: then
records are missing, and a missing record is a failure.
"""

import builtins
import contextlib
import ctypes
import importlib
import inspect
import json
import os
import random
import sys

PR_SET_DUMPABLE = 4
LONGEST_LINE = 1 << 22
SHOWN = 200


def dumpable(yes):
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(yes), 0, 0, 0) != 0:
        os._exit(3)


def quiet(*streams):
    null = os.open("/dev/null", os.O_RDWR)
    for fd in streams:
        os.dup2(null, fd)
    os.close(null)


def serve(calls, answers):
    """The candidate's process: import the module, answer calls, end with the pipe."""
    quiet(0, 1, 2)
    keep = {calls, answers}
    for fd in range(3, 256):
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)
    dumpable(True)
    sys.path.insert(0, os.getcwd())
    asking, answering = os.fdopen(calls, "rb"), os.fdopen(answers, "wb", buffering=0)
    module, entry = json.loads(asking.readline())
    function = None
    for line in asking:
        args, kwargs = (decode(tree) for tree in json.loads(line))  # noqa: F821 (values_guest stands in front)
        try:
            if function is None:
                function = getattr(importlib.import_module(module), entry)
            answer = {"value": encode(function(*args, **kwargs))}  # noqa: F821
        except BaseException as error:
            answer = {"raised": type(error).__name__, "text": str(error)[:SHOWN]}
        answering.write(json.dumps(answer).encode() + b"\n")


class Candidate:
    """What the tests call."""

    def __init__(self, calls, answers, module, entry):
        self._calls, self._answers = os.fdopen(calls, "wb", buffering=0), os.fdopen(answers, "rb")
        self._calls.write(json.dumps([module, entry]).encode() + b"\n")
        self.__name__ = entry

    def __call__(self, *args, **kwargs):
        self._calls.write(json.dumps([encode(args), encode(kwargs)]).encode() + b"\n")  # noqa: F821
        line = self._answers.readline(LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise RuntimeError("the candidate's process ended, or its answer is too long")
        answer = json.loads(line)
        if "raised" in answer:
            kind = getattr(builtins, str(answer["raised"]), None)
            known = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if known else RuntimeError)(str(answer.get("text", "")))
        return decode(answer["value"])  # noqa: F821


def main():
    dumpable(False)
    calls_r, calls_w = os.pipe()
    answers_r, answers_w = os.pipe()
    if os.fork() == 0:
        try:
            serve(calls_r, answers_w)
        finally:
            os._exit(0)
    os.close(calls_r)
    os.close(answers_w)
    asked = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    quiet(0, 1, 2)
    scope = {"__name__": "tests", "candidate": Candidate(calls_w, answers_r, asked["module"], asked["entry"])}
    random.seed(0)  # tests that draw numbers draw the same ones for every candidate
    failure = None
    try:
        exec(compile(asked["program"], "tests.py", "exec"), scope)
        scope[asked["entry"]] = scope["candidate"]  # some tests call the function by its name
    except BaseException as error:
        failure = f"the test program itself failed: {type(error).__name__}: {error}"
    for name in asked["tests"]:
        record = {"n": asked["nonce"], "id": name, "ok": False, "error": failure}
        if failure is None:
            try:
                test = scope[name]
                test(*(scope["candidate"] for _ in inspect.signature(test).parameters))
                record["ok"] = True
            except BaseException as error:
                record["error"] = f"{type(error).__name__}: {error}"[:SHOWN]
        os.write(channel, json.dumps(record).encode() + b"\n")
    os.write(channel, json.dumps({"n": asked["nonce"], "end": len(asked["tests"])}).encode() + b"\n")
    os._exit(0)


main()
