"""A program that runs in a fork of the warm interpreter behaves as one that a new interpreter runs."""

import pytest

PROGRAMS = {
    "arguments": "import sys\nprint(sys.argv, sys.orig_argv[-2:], sys.flags, sys.path)\n",
    "main module": "import sys, __main__\nprint(__name__, __file__, __spec__, __main__ is sys.modules['__main__'])\n",
    "input": "print(input(), end='|')\nimport sys; print(sys.stdin.read())\n",
    "error": "def f():\n    return 1 / 0\n\nf()\n",
    "chained error": "try:\n    {}['x']\nexcept KeyError:\n    raise ValueError('y')\n",
    "syntax error": "x = (\n",
    "indentation error": "def f():\nreturn 1\n",
    "assert": "print('before')\nassert 1 == 2, 'no'\n",
    "exit code": "import sys\nsys.exit(3)\n",
    "exit text": "raise SystemExit('gone')\n",
    "exit none": "raise SystemExit\n",
    "exit large": "exit(257)\n",
    "hard exit": "import os\nprint('lost', end='')\nos._exit(4)\n",
    "signal": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "interrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('not reached')\n",
    "atexit": "import atexit\natexit.register(print, 'bye')\nprint('hi')\n",
    "thread": "import threading, time\ndef f():\n    time.sleep(.1); print(1)\n\nthreading.Thread(target=f).start()\n",
    "unclosed file": "f = open('out.txt', 'w')\nf.write('text')\n",
    "recursion": "def f():\n    f()\n\ntry:\n    f()\nexcept RecursionError as e:\n    print(type(e))\n",
    "encoding": "print('é', '\\udce9'.encode('utf8', 'surrogateescape'))\nimport sys; print(sys.stdout.encoding)\n",
    "bad encoding": b"# coding: latin-1\nprint('\xe9')\n",
    "null byte": b"print(1)\0\n",
    "dataclass": "import dataclasses as d\n@d.dataclass\nclass A:\n    x: int = 1\n\nprint(A(), A.__module__)\n",
    "pickle of main": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))\n",
    "subprocess": "import subprocess as s, sys\nprint(s.check_output([sys.executable, '--version']), sys.executable)\n",
    "multiprocessing": (
        "import multiprocessing as m\n"
        "if __name__ == '__main__':\n    print(m.get_context('fork').Pool(2).map(abs, [-1, 2]))\n"
    ),
    "unittest": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(1, 2)\n\n"
        "unittest.main(argv=['x', '-q'], exit=False)\n"
    ),
    "import of neighbour": "import helper\nprint(helper.x, helper.__file__)\n",
    "shadowed module": "import random, json, sys\nprint(random.x, json.x, 'ast' in sys.modules)\n",
    "warnings": "import warnings\nwarnings.warn('careful')\n",
    "modules": "import sys\nprint('unittest' in dir(), 'json' in dir())\n",
}
FILES = {"helper.py": "x = 41\n"}


def both(machines, argv, files, stdin=b"first\nrest"):
    """What the two kinds of interpreter say. `-X utf8=0` is the default spelled out; the warm one leaves it alone."""

    async def body(machine):
        await machine.put({path: text.encode() if isinstance(text, str) else text for path, text in files.items()})
        results = []
        for first in (["python3"], ["python3", "-X", "utf8=0"]):
            result = await machine.exec([*first, *argv], timeout_s=30, stdin=stdin)
            out = await machine.get(["out.txt"])
            results.append((result.stdout, result.stderr, result.return_code, out))
            await machine.exec(["rm", "-f", "out.txt"], timeout_s=5)
        return results

    return machines.play(body)


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_interpreters_agree(machines, name):
    files = {"main.py": PROGRAMS[name], **FILES}
    if name == "shadowed module":
        files |= {"random.py": "x = 'mine'\n", "json/__init__.py": "x = 2\n"}
    warm, cold = both(machines, ["main.py", "a", "-b"], files)
    if name in ("unittest", "multiprocessing"):
        warm, cold = ((out, len(err.splitlines()), code) for out, err, code, _ in (warm, cold))
    assert warm == cold
    assert warm[0] or warm[1] or name.startswith(("exit", "hard", "signal", "unclosed"))


@pytest.mark.parametrize(
    "argv",
    [
        ["-c", "import sys\nprint(__name__, sys.argv, sys.path[0] == '', 'x')", "a"],
        ["-c", "1/0"],
        ["-c", "x = ("],
        ["missing.py"],
        ["."],
        ["d/inner.py"],
        ["--version"],
    ],
)
def test_both_interpreters_agree_on(machines, argv):
    warm, cold = both(
        machines,
        argv,
        {"d/inner.py": "import sys, sibling\nprint(sys.path[0], sibling.y)\n", "d/sibling.py": "y = 1\n"},
    )
    assert warm[:3] == cold[:3] or argv == ["missing.py"]
    if argv == ["missing.py"]:
        assert warm[2] == cold[2] == 2
        assert "No such file" in warm[1]


def test_a_simple_shell_line_that_runs_python_needs_no_shell_and_no_new_interpreter(machines):
    program = "import sys\nprint(sys.argv, 'ast' in sys.modules)\n"
    plain = machines.command("sh", "-c", "python3 main.py --n=3 x", files={"main.py": program})
    assert plain.stdout == "['main.py', '--n=3', 'x'] True\n"
    quoted = machines.command("sh", "-c", "python3 main.py 'a b' $HOME", files={"main.py": program})
    assert quoted.stdout == "['main.py', 'a b', '/tmp'] False\n"
    assert machines.command("sh", "-c", "python3 main.py; echo $?", files={"main.py": "exit(5)"}).stdout == "5\n"


def test_an_edit_within_the_same_second_is_seen(machines):
    async def body(machine):
        seen = []
        for op in "+-*":
            await machine.put({"calc.py": f"def f(a, b): return a {op} b\n".encode()})
            seen.append((await machine.exec(["python3", "main.py"], timeout_s=10)).stdout)
        assert sorted(await machine.get(["**"])) == ["calc.py", "main.py"]
        return seen

    assert machines.play(body, files={"main.py": "import calc\nprint(calc.f(6, 2))\n"}) == ["8\n", "4\n", "12\n"]
