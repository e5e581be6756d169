"""The native launcher's host side: whether it is there, the root that its machines get, and starting its forge.

What a program inside sees is what bwrap.py describes; what it is made of is in launcher/. Works as root, and without
root where user namespaces may be made, one inside another.
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import nest
from .base import MachineStartError
from .bwrap import ENVIRONMENT, ETC, INSIDE_UID, LINKS, OUTSIDE_UID, Python, base_python, masked_folders, search_path

SPARE_NETS = 8
"""empty network namespaces that a forge keeps ready"""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LIBRARIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@cache
def extension() -> bytes:
    """The launcher's machine code. Raises MachineStartError that says what to do where it was not compiled."""
    spec = find_spec("twinmill.env.machine._launcher")
    if spec is None or spec.origin is None:
        raise MachineStartError("it was not compiled: install a C compiler and Python's headers, then twinmill again")
    return Path(spec.origin).read_bytes()


def root_steps(python: Python) -> Iterator[list[Any]]:
    """What the root consists of, for root_guest."""
    for name in ("dev", "dev/shm", "dev/pts", "etc", "mnt", "opt", "proc", "tmp", "work"):
        yield ["folder", f"/{name}", 0o755]
    yield ["bind", "/usr", "/usr"]
    for name in LIBRARIES:
        top = Path("/", name)
        if top.is_symlink():
            yield ["link", str(top), os.readlink(top).lstrip("/")]
        elif top.is_dir():
            yield ["bind", str(top), str(top)]
    if not python.prefix.is_relative_to("/usr"):
        yield ["bind", str(python.prefix), str(python.prefix)]
    for folder in masked_folders(python):
        yield ["empty", str(folder)]
    for name in ("/etc/alternatives", "/etc/ld.so.cache"):
        yield ["bind", name, name]
    for name, text in ETC.items():
        yield ["file", name, text]
    for name, target in LINKS.items():
        yield ["link", name, target]
    for name in DEVICES:
        yield ["node", f"/dev/{name}", f"/dev/{name}"]
    yield ["link", "/dev/ptmx", "pts/ptmx"]
    yield ["link", "/dev/fd", "/proc/self/fd"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        yield ["link", f"/dev/{name}", f"/proc/self/fd/{number}"]


def launch(fd: int) -> tuple[nest.Process, int]:
    """Start a forge that takes orders from `fd`. Returns what nest.spawn does. Raises MachineStartError, OSError."""
    python, as_root = base_python(), os.geteuid() == 0
    files = list[int]()
    try:
        files += [nest.memory_file(extension(), "init"), nest.sources("native_guest"), nest.sources("root_guest")]
        library, guest, root = files
        outside = OUTSIDE_UID if as_root else 0  # without root: how the forge's user namespace calls the caller
        more = [str(word) for word in (library, outside, INSIDE_UID, int(not as_root), SPARE_NETS)]
        plan = {
            "uid": None if as_root else os.geteuid(),
            "steps": list(root_steps(python)),
            "command": [*nest.boot(python, guest, "native_guest", fd), *more],
            "environment": {**ENVIRONMENT, "PATH": search_path(python)},
        }
        files.append(nest.memory_file(json.dumps(plan).encode(), "plan"))
        argv = nest.boot(python, root, "root_guest", files[-1])
        return nest.spawn([argv[0], "-I", "-S", *argv[1:]], [*files, fd], {"PYTHONHASHSEED": "0"})
    finally:
        for file in files:
            os.close(file)


def supported() -> str:
    """ "" where this system may have native machines, else why not."""
    if sys.platform != "linux":
        return "it needs Linux"
    try:
        extension()
    except MachineStartError as error:
        return str(error)
    return ""
