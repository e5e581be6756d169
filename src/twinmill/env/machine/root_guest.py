"""The root of the native forge and of all its machines: made once per process, in a mount namespace of its own.

Self-contained, standard library only; the host runs its text in a Python of its own (nest.py). `plan` says what to make:

    {"uid": of an unprivileged caller, or null for root, "outside": owner of what machines can write,
     "steps": [[kind, path, argument], ...], "command": [...], "environment": {...}}

    folder    path, mode               link     path, target            file     path, text
    bind      path, source             node     path, source (a device)
    empty     path                     hides a folder below an earlier bind

Nothing is mounted on the host: the namespace, and what is in it, ends with the forge and its last machine.
"""

import ctypes
import errno
import json
import os
import platform
import sys

NEWNS, NEWUSER, NEWNET = 0x00020000, 0x10000000, 0x40000000
NOSUID, NODEV, BIND, REC, PRIVATE, DETACH = 2, 4, 4096, 16384, 1 << 18, 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_MOUNT_SETATTR = 442
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_PDEATHSIG, SIGKILL = 1, 9
STAGES = ("/mnt", "/tmp", "/media", "/run")
LIBC = ctypes.CDLL(None, use_errno=True)


def sys_call(result, what):
    if result < 0:
        number = ctypes.get_errno()
        hint = " (Linux 5.12 or newer is needed)" if number == errno.ENOSYS else ""
        raise OSError(number, f"{what}: {os.strerror(number)}{hint}")


def _write(path, text):
    with open(path, "w") as file:
        file.write(text)


def mount(source, target, kind="", flags=0, options=""):
    result = LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())
    sys_call(result, f"mount {kind or source}")


def restrict(path, attributes, flags=0):
    """mount_setattr adds attributes and leaves those that a user namespace may not change."""
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    size = ctypes.c_size_t(32)
    result = LIBC.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, ctypes.byref(wanted), size)
    sys_call(result, f"make {path} read-only")


def leave_host(uid):
    """Mount and network namespaces of our own; without root, in a user namespace of our own, of which we are the root."""
    gid = os.getgid()
    sys_call(LIBC.unshare(NEWNS | NEWNET | (NEWUSER if uid is not None else 0)), "make namespaces")
    if uid is not None:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    mount("", "/", flags=REC | PRIVATE)


def folder(root, path, mode=0o755):
    os.makedirs(root + path, exist_ok=True)
    os.chmod(root + path, mode)


def link(root, path, target):
    os.symlink(target, root + path)


def file(root, path, text):
    with open(root + path, "w") as made:
        made.write(text)
    os.chmod(root + path, 0o444)


def bind(root, path, source):
    """`path` is made in the likeness of `source`; a file or folder that is not there is left out."""
    if os.path.isdir(source):
        os.makedirs(root + path, exist_ok=True)
    elif os.path.exists(source):
        _write(root + path, "")
    else:
        return
    mount(source, root + path, flags=BIND | REC)
    restrict(root + path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, AT_RECURSIVE)


def node(root, path, source):
    _write(root + path, "")
    mount(source, root + path, flags=BIND)
    restrict(root + path, ATTR_NOSUID | ATTR_NOEXEC)


def empty(root, path):
    mount(root + "/opt", root + path, flags=BIND)
    restrict(root + path, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)


STEPS = {"folder": folder, "link": link, "file": file, "bind": bind, "node": node, "empty": empty}


def build(plan):
    """Mount the root somewhere, fill it, make it ours."""
    sources = [step[2] for step in plan["steps"] if step[0] in ("bind", "node")]
    root = next(s for s in STAGES if os.path.isdir(s) and not any(x.startswith(s + "/") for x in sources))
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "mode=0755")
    for kind, path, *argument in plan["steps"]:
        STEPS[kind](root, path, *argument)
    mount("/proc", root + "/proc", flags=BIND | REC)  # a machine mounts its own; seeing this one is what allows it to
    mount("tmpfs", root + "/mnt", "tmpfs", NOSUID | NODEV, "mode=0700,size=64k")
    os.mkdir(root + "/mnt/upper")  # the lowest layer: nothing
    os.chdir(root)
    sys_call(LIBC.syscall(SYS_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    sys_call(LIBC.umount2(b".", DETACH), "leave the host's root")
    os.chdir("/")
    restrict("/", ATTR_RDONLY)


def main(fd):
    """`fd` holds the plan as JSON. Becomes plan["command"]."""
    with os.fdopen(fd, "rb") as text:
        plan = json.load(text)
    try:
        leave_host(plan["uid"])
        build(plan)
    except (OSError, KeyError) as error:
        sys.exit(f"{error}")
    LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    os.execve(plan["command"][0], plan["command"], plan["environment"])
