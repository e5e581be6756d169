"""Run a Python program in a fork of a running interpreter, as its own main would: no new Python has to start.

Self-contained like init_guest and native_guest, which use it. What it does not do as a new interpreter does: objects that live in
imported modules are not finalised at the end (`__del__`, unflushed files of modules); modules that the forge has loaded
already are found loaded (unless the program's folder has one of such a name: then all are forgotten first).
"""

import contextlib
import gc
import os
import re
import signal
import stat
import sys
import threading
import types

WORK = "/work"
BARE_MODULES = frozenset(sys.modules)  # set by the boot line to what a bare interpreter has loaded
LOADED = {}  # name of a module beyond those -> its first part; see note_loaded
INTERRUPTED = -signal.SIGINT
WARM = (
    *("ast", "bisect", "collections.abc", "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum"),
    *("fractions", "functools", "hashlib", "heapq", "importlib.util", "inspect", "io", "itertools", "json", "math"),
    *("operator", "random", "re", "shlex", "string", "textwrap", "traceback", "typing", "unittest"),
)
SIMPLE = re.compile(r"python3? (-c )?[\w./-]+( [\w./=,:+-]+)*")


def simple_command(argv):
    """`sh -c "python3 FILE words"` without the shell, if it has nothing to say: no quote, glob, variable, operator."""
    if len(argv) == 3 and argv[:2] == ["sh", "-c"] and SIMPLE.fullmatch(argv[2]):
        return argv[2].split(" ")
    return argv


def find_program(argv):
    """(file name, source bytes, arguments, folder of imports) of `python3 FILE ...` and `python3 -c TEXT ...`.
    None = anything else, or a file that cannot be read: the real interpreter says what is wrong."""
    if argv[0] not in ("python3", "python") or len(argv) < 2:
        return None
    if argv[1] == "-c" and len(argv) > 2:
        return "<string>", argv[2].encode(), ["-c", *argv[3:]], ""
    if argv[1].startswith("-"):
        return None
    path = os.path.normpath(os.path.join(WORK, argv[1]))
    real = os.path.realpath(path)
    if not real.startswith((f"{WORK}/", "/tmp/")):  # process 1 reads it: nothing but what commands made
        return None
    try:
        if not stat.S_ISREG(os.stat(real).st_mode):
            return None
        with open(real, "rb") as file:
            source = file.read()
    except OSError:
        return None
    return None if b"\0" in source else (path, source, argv[1:], os.path.dirname(real))


def warm():
    """Load what small programs import, once in the forge instead of in each of them."""
    for name in WARM:
        __import__(name)
    note_loaded()


def note_loaded():
    """Called once, when everything is loaded that programs shall find loaded."""
    LOADED.update({name: name.partition(".")[0] for name in sys.modules if name not in BARE_MODULES})


def _fresh_modules(folder):
    """Forget what was loaded beyond a bare interpreter, if the program's folder has a module of such a name.

    Otherwise loaded modules stay, as if the program had a very fast disk."""
    try:
        here = {name.partition(".")[0] for name in os.listdir(folder or ".")}
    except OSError:
        here = set()
    if here.isdisjoint(LOADED.values()):
        return
    for name in LOADED:
        sys.modules.pop(name, None)


def run(argv, filename, source, arguments, folder):
    """What the interpreter's own main does, in a fork. Returns the exit code."""
    _fresh_modules(folder)
    main = types.ModuleType("__main__")
    main.__file__ = filename
    if filename == "<string>":
        del main.__file__
    main.__builtins__ = sys.modules["builtins"]
    sys.modules["__main__"] = main
    sys.argv, sys.orig_argv, sys.path[:0] = arguments, list(argv), [folder]
    sys.executable = os.path.join(os.path.dirname(sys.executable), argv[0])
    code = 0
    try:
        exec(compile(source, filename, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next  # without the frame of this function
        with contextlib.suppress(BaseException):
            sys.excepthook(type(error), error, error.__traceback__)
        code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    try:
        loaded = sys.modules.get("threading", threading)
        loaded._shutdown()
        with contextlib.suppress(BaseException):
            __import__("atexit")._run_exitfuncs()
        main.__dict__.clear()  # files that were never closed are flushed here
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 120
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def _exit_code(value):
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    with contextlib.suppress(BaseException):
        print(value, file=sys.stderr)
    return 1
