"""The native forge: a warm Python, in the root that root_guest.py made, that serves orders in C (launcher/forge.c).

Self-contained like root_guest. Machines are clones of it; their process 1 never comes back to Python, only a fork of it
does, to run a command here.
"""

import gc
import os
import signal
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader

import python_guest

NOT_FOUND = 127


def load_launcher(fd):
    """The extension's bytes lie in a memory file: its path on the host is nobody's business in here."""
    loader = ExtensionFileLoader("_launcher", f"/proc/self/fd/{fd}")
    spec = spec_from_loader("_launcher", loader)
    module = module_from_spec(spec)
    loader.exec_module(module)
    os.close(fd)
    return module


def run(argv):
    """The command's whole life."""
    code = 126
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        words = python_guest.simple_command(argv)
        if program := python_guest.find_program(words):
            code = python_guest.run(words, *program)
        else:
            try:
                os.execvp(argv[0], argv)
            except OSError as error:
                sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
                sys.stderr.flush()
                code = NOT_FOUND
    finally:
        os._exit(code)


def main(fd, extension, outside, inside, user_xattr, spares):
    launcher = load_launcher(int(extension))
    python_guest.warm()
    gc.collect()
    gc.freeze()  # no collection in a machine writes to the pages they share
    argv = launcher.serve(fd, int(outside), int(inside), bool(int(user_xattr)), int(spares))
    if argv is not None:
        run(argv)
